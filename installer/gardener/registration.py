"""Builds the objects that register the extension with Gardener, with the chart that each gardenlet renders
and applies to its seed: an Extension for gardener-operator, or ControllerDeployment and
ControllerRegistration for the garden (docs/extensions/registration.md of gardener/gardener).

The chart is templates/chart/. It is text for Helm: nothing is filled in here but the ControllerDeployment's
values.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace

from pydantic import ValidationError

from installer.errors import InvalidInputError
from installer.inputs.reading import reword
from installer.manifests.inputs import ManifestOptions, load_inputs
from installer.manifests.provider import EXTENSION_TYPE
from installer.manifests.sources import parse_mapping, read_file
from installer.manifests.text import dump_objects, render_template
from installer.manifests.values import Images
from installer.rendering import template_text

CHART = (
    "Chart.yaml",
    "values.yaml",
    "templates/config.yaml",
    "templates/deployment.yaml",
    "templates/disruption-budget.yaml",
    "templates/rbac.yaml",
    "templates/service-account.yaml",
    "templates/vpa.yaml",
)
_ELSEWHERE = {
    "--mode": "set `disabled` in the Shoot",
    "--profile": "set `profile` in --values",
    "--nodes": "set `nodes` in --values",
    "--agent": "set `agent.enabled` in --values",
    "--managed-resource": "leave it out: each Shoot has one",
    "--monitoring": "apply the output of `manifests --monitoring` in each Shoot with the Prometheus operator",
}
"""Options that shape the objects of a Shoot, and how to get the same for all Shoots."""
_NAME = "gardener-extension-cri-resmgr"


def render_registration(options: ManifestOptions, warn: Callable[[str], None] = lambda _: None) -> str:
    """Return the YAML stream; `warn` as for `render_manifests`. `images` also has `extension=REFERENCE`,
    the image of the controller. `values` become those of every Shoot.

    Raises InvalidInputError with every fault of them that no Shoot could correct.
    """
    own = [each for each in options.images if not each.startswith("extension=")]
    controllers = [each.partition("=")[2] for each in options.images if each.startswith("extension=")]
    faults = [
        f"{option}: has no effect on a registration; {instead}"
        for option, instead in _ELSEWHERE.items()
        if getattr(options, option.removeprefix("--").replace("-", "_"))
    ]
    if options.provider_configs:
        faults.append(
            "--provider-config: has no effect on a registration; add its values to the ControllerDeployment"
        )
    if options.chart_ref and options.registers_for == "v1beta1":
        faults.append("--chart-ref: needs Gardener 1.96 or later; leave out --for v1beta1")
    if options.registers_for == "operator" and not options.chart_ref:
        faults.append("--chart-ref REFERENCE: must be given with --for operator; it says where the chart is")
    if len(controllers) != 1:
        faults.append("--image extension=REFERENCE: must be given once; it is the image of the controller")
    if faults:
        raise InvalidInputError(faults, "docs/gardener.md shows the command")
    checked = replace(options, images=tuple(own), managed_resource=True)
    inputs = load_inputs(checked, warn)
    installer = (
        dict(parse_mapping(read_file(options.values), str(options.values)).data) if options.values else {}
    )
    images = {"installer": inputs.values.images.installer, "agent": inputs.values.images.agent}
    installer["images"] = {**installer.get("images", {}), **images}
    installer.pop("registration", None)
    repository, tag = _split("--image extension=", controllers[0])
    chart_ref = options.chart_ref.removeprefix("oci://")
    if chart_ref:
        _split("--chart-ref ", chart_ref)
    objects = render_template(
        "registration",
        api=options.registers_for,
        type=EXTENSION_TYPE,
        chart=b64encode(build_chart()).decode(),
        chart_ref=chart_ref,
        registration=inputs.values.registration,
        values={"image": {"repository": repository, "tag": tag}, "installer": installer},
    )
    return dump_objects(objects)


def _split(option: str, reference: str) -> tuple[str, str]:
    """Return the repository, and the tag or digest. Raises InvalidInputError."""
    try:
        Images(installer=reference)
    except ValidationError as error:
        raise InvalidInputError([f"{option}{reference}: {reword(error.errors()[0]['msg'])}"]) from None
    repository, at, digest = reference.partition("@")
    if at and digest.startswith("sha256:"):
        return repository, digest
    repository, _, tag = reference.rpartition(":")
    if at or not repository or "/" in tag:
        raise InvalidInputError([f"{option}{reference}: needs a tag or a digest"])
    return repository, tag


def build_chart() -> bytes:
    """Return the archive, as `helm package` makes it. The same files are the same bytes on every machine:
    it has no times, and is not compressed, because compression differs."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in CHART:
            text = template_text(f"chart/{name}").encode()
            member = tarfile.TarInfo(f"{_NAME}/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=0, fileobj=packed, mtime=0) as stream:
        stream.write(content.getvalue())
    return packed.getvalue()
