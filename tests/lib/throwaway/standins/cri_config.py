"""cri-resmgr's own YAML configuration, refused where the real one refuses it.

Sections whose fields are of no use to a test (cpu, rdt, blockio,
resource-manager) are only checked to be mappings.
"""

import os
import sys
from typing import Any

from tests.lib.throwaway.standins.words import panic

POLICIES = (
    "none",
    "topology-aware",
    "memtier",
    "balloons",
    "static-pools",
    "podpools",
    "static",
    "static-plus",
    "dynamic-pools",
)

#: Sections with the fields they know; None: any.
SECTIONS: dict[str, frozenset[str] | None] = {
    "policy": frozenset({"Active", "AvailableResources", "ReservedResources"}),
    "logger": frozenset({"Debug", "Level", "LogSource", "Prefix", "SkipHeaders"}),
    "dump": frozenset({"Config", "File", "Disabled"}),
    "instrumentation": frozenset(
        {
            "HTTPEndpoint",
            "JaegerAgent",
            "JaegerCollector",
            "PrometheusExport",
            "ReportPeriod",
            "Sampling",
        }
    ),
    "resource-manager": None,
    "cpu": None,
    "rdt": None,
    "blockio": None,
}

POLICY_FIELDS = frozenset(
    {
        "AllocatorTopologyBalancing",
        "BalloonTypes",
        "ColocateNamespaces",
        "ColocatePods",
        "ConfDirPath",
        "ConfFilePath",
        "DynamicPoolTypes",
        "FakeHints",
        "IdleCPUClass",
        "LabelNode",
        "PinCPU",
        "PinMemory",
        "Pools",
        "PreferIsolatedCPUs",
        "PreferSharedCPUs",
        "ReservedPoolNamespaces",
        "TaintNode",
        "pools",
    }
)


class ConfigError(Exception):
    """The configuration is refused; the text says why."""


def parse(text: str) -> dict[str, Any]:
    """Reads and checks a configuration; an empty one is fine.

    Returns it with dotted keys unfolded. Raises ConfigError.
    """
    if not text.strip():
        return {}
    # Started without site: the distribution's PyYAML is looked for by hand.
    sys.path.append("/usr/lib/python3/dist-packages")
    import yaml

    try:
        data = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ConfigError(f"error converting YAML to JSON: {' '.join(str(error).split())}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"cannot unmarshal {type(data).__name__} into configuration data")
    return check(unfold(data))


def unfold(data: dict[Any, Any]) -> dict[str, Any]:
    """Turns `policy.balloons: ...` into `policy: {balloons: ...}`."""
    out: dict[str, Any] = {}
    for key, value in data.items():
        head, dot, rest = str(key).partition(".")
        section = out.setdefault(head, {})
        new = {rest: value} if dot else value
        if isinstance(section, dict) and isinstance(new, dict):
            section.update(new)
        elif new is not None:
            out[head] = new
    return out


def check(data: dict[str, Any]) -> dict[str, Any]:
    for name, section in data.items():
        if name not in SECTIONS:
            raise ConfigError(f'unknown configuration module "{name}"')
        if not isinstance(section, dict):
            raise ConfigError(f'module "{name}": cannot unmarshal {type(section).__name__} into an object')
        fields = SECTIONS[name]
        if fields is None:
            continue
        for field, value in section.items():
            if name == "policy" and field in POLICIES:
                check_policy(field, value)
            elif field not in fields:
                raise ConfigError(f'module "{name}": unknown field "{field}"')
            elif isinstance(value, dict) != (field in ("AvailableResources", "ReservedResources", "Prefix")):
                raise ConfigError(f'module "{name}": wrong type of field "{field}"')
    active = data.get("policy", {}).get("Active")
    if active is not None and not isinstance(active, str):
        raise ConfigError('module "policy": wrong type of field "Active"')
    reserved_cpus(data)
    return data


def check_policy(name: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise ConfigError(f'module "policy.{name}": cannot unmarshal {type(value).__name__} into an object')
    for field in value:
        if field not in POLICY_FIELDS:
            raise ConfigError(f'module "policy.{name}": unknown field "{field}"')


def active_policy(data: dict[str, Any]) -> str:
    """The policy that a checked configuration asks for."""
    return data.get("policy", {}).get("Active") or "none"


def reserved_cpus(data: dict[str, Any]) -> float | None:
    """The CPUs set aside, as a number. Raises ConfigError on what is not one."""
    resources = data.get("policy", {}).get("ReservedResources") or {}
    given = {key.lower(): value for key, value in resources.items()}
    for key in resources:
        if key.lower() not in ("cpu", "memory"):
            raise ConfigError(f'module "policy": unknown field "{key}"')
    value = given.get("cpu")
    if value is None:
        return None
    text = str(value)
    if text.startswith("cpuset:"):
        return float(len(text.removeprefix("cpuset:").split(",")))
    try:
        return float(text[:-1]) / 1000 if text.endswith("m") else float(text)
    except ValueError:
        raise ConfigError(f'module "policy": invalid CPU quantity "{text}"') from None


def check_creation(data: dict[str, Any]) -> None:
    """What a start refuses before it looks for the runtime, and neither a signal nor the agent's call: its
    policy is made then."""
    active, reserved = active_policy(data), reserved_cpus(data)
    if active not in POLICIES:
        raise ConfigError(f'cannot activate unknown policy "{active}"')
    if active in ("topology-aware", "memtier") and reserved is None:
        raise ConfigError("topology-aware policy: cannot start without CPU reservation")
    if active in ("balloons", "podpools", "dynamic-pools", "static-plus") and reserved is None:
        raise ConfigError(f"{active} cannot run without reserved CPUs that are also AvailableResources")
    if active not in ("none", "static", "static-pools"):
        check_fits(data)


def check_start(data: dict[str, Any], agent: bool) -> None:
    """What only a real start refuses, when its policy has met the machine and the agent."""
    active, reserved = active_policy(data), reserved_cpus(data)
    if active == "static" and reserved is None:
        raise ConfigError("failed to start policy static: cannot start without CPU reservation")
    if active == "static" and reserved and reserved > cpu_count():
        panic("interface conversion: policy.Constraint is resource.Quantity, not int")
    if active == "podpools" and (named := highest_cpu(data, "AvailableResources")) >= cpu_count():
        panic(f"runtime error: index out of range [{named}] with length {cpu_count()}")
    if active == "static-pools" and not agent:
        raise ConfigError("failed to start policy static-pools: agent connection required")
    pools = data.get("policy", {}).get("static-pools") or {}
    files = [pools.get("ConfDirPath", "/etc/cmk"), pools.get("ConfFilePath")]
    if (
        active == "static-pools"
        and not pools.get("pools")
        and not any(map(os.path.exists, filter(None, files)))
    ):
        raise ConfigError("failed to start policy static-pools: invalid config, no pools configured")


def check_fits(data: dict[str, Any]) -> None:
    """Refuses more reserved CPUs than there are."""
    reserved = reserved_cpus(data)
    if reserved is not None and reserved > cpu_count():
        raise ConfigError(f"cannot reserve {reserved:g} CPUs, only {cpu_count()} available")


def cpu_count() -> int:
    return os.cpu_count() or 1


def highest_cpu(data: dict[str, Any], field: str) -> int:
    """The highest CPU that is named; -1 if none is."""
    resources = data.get("policy", {}).get(field) or {}
    text = next((str(value) for key, value in resources.items() if key.lower() == "cpu"), "")
    numbers = text.removeprefix("cpuset:").replace("-", ",").split(",") if text.startswith("cpuset:") else []
    return max(map(int, numbers), default=-1)
