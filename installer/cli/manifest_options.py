"""The options of `manifests`."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_manifests(manifests: argparse.ArgumentParser) -> None:
    manifests.add_argument(
        "--values", type=Path, metavar="FILE", help="the values (YAML); see docs/operations.md"
    )
    manifests.add_argument("--mode", choices=("install", "remove"), help="remove: pods that clean the nodes")
    manifests.add_argument(
        "--provider-config",
        type=Path,
        metavar="FILE",
        action="append",
        default=[],
        help="a Gardener Shoot, Extension or ControllerDeployment, its values or a providerConfig alone; "
        "see docs/gardener.md",
    )
    manifests.add_argument(
        "--managed-resource", action="store_true", help="wrap everything in a ManagedResource (Gardener)"
    )
    manifests.add_argument(
        "--monitoring", action="store_true", help="add a PodMonitor, alerts and a Grafana dashboard"
    )
    manifests.add_argument(
        "--profile", choices=("privileged", "restricted"), help="the rights of the pods; default: privileged"
    )
    manifests.add_argument("--nodes", metavar="A,B,C", help="only these nodes")
    manifests.add_argument(
        "--agent",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="with or without cri-resmgr-agent",
    )
    manifests.add_argument(
        "--image",
        metavar="[NAME=]REFERENCE",
        action="append",
        default=[],
        help="image of the installer; NAME is installer, agent or extension",
    )
    _add_registration(manifests)


def _add_registration(manifests: argparse.ArgumentParser) -> None:
    manifests.add_argument(
        "--gardener-registration",
        action="store_true",
        help="print what registers the extension with Gardener instead; needs --image extension=REFERENCE",
    )
    manifests.add_argument(
        "--for",
        dest="registers_for",
        choices=("garden", "operator", "v1beta1"),
        default="garden",
        help="of the registration: operator: for gardener-operator; v1beta1: for Gardener before 1.96",
    )
    manifests.add_argument(
        "--chart-ref",
        default="",
        metavar="REFERENCE",
        help="of the registration: where its chart was pushed to; default: the chart is in the registration",
    )
