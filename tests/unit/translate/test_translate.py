"""translate: whatever a configuration says is in the resource or in the report, and the resource is one that
nri-plugins take."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from installer.errors import InvalidInputError
from installer.operator.nri_table import Grade
from installer.operator.translate import Entry, Translation, leaves, translate
from tests.lib import yamltext
from tests.lib.nri import check_form, check_schema, load_schemas

ROOT = Path(__file__).parents[3]
FULL = {
    "topology-aware": """
        policy:
          Active: topology-aware
          AvailableResources: {cpu: cpuset:0-63}
          ReservedResources: {CPU: 1.5}
          topology-aware: {PinMemory: false, ReservedPoolNamespaces: ["mon-*"], ColocatePods: true}
          static: {RelaxedIsolation: true}
        rdt:
          options: {mode: Full, monitoringDisabled: false, l3: {optional: true}, mb: {optional: true}}
          partitions:
            one:
              l3Allocation: "60%"
              mbAllocation: ["100%"]
              classes:
                Guaranteed: {l3Allocation: {all: "100%", 1: {code: "0xf", data: "0xf"}}}
                Burstable: {kubernetes: {denyPodAnnotation: true, denyContainerAnnotation: false}}
                BestEffort: {}
        blockio: {Classes: {Slow: [{Weight: 80}, {Devices: [/dev/sda], ThrottleReadBps: 50M}]}}
        logger: {Debug: "on:policy,cache,off:cri", LogSource: true, Klog: {skip_headers: false, v: 2}}
        dump: {Config: "off:.*"}
        instrumentation: {Sampling: production, ReportPeriod: 30000000000, JaegerAgent: "localhost:1"}
        resource-manager: {control: {Controllers: {rdt: required}}}
        """,
    "balloons": """
        policy.Active: balloons
        policy.ReservedResources: {CPU: 0-1}
        policy.balloons:
          IdleCPUClass: idle
          AllocatorTopologyBalancing: true
          BalloonTypes:
          - {Name: a, CPUClass: fast, MinCPUs: 2, MaxCPUs: 4, AllocatorPriority: 3, ShareIdleCPUsInSame: numa}
          - {name: b, Namespaces: [x, "y*"], PreferNewBalloons: true, Unheard: 1}
        cpu: {classes: {idle: {minFreq: 800000, maxFreq: 900000}, fast: {}}}
        """,
    "podpools": """
        policy:
          Active: podpools
          ReservedResources: {CPU: 1}
          podpools:
            PinMemory: false
            Pools:
            - {Name: one, CPU: 1, Instances: 3, MaxPods: 2}
            - {Name: two, CPU: "2", Instances: 50 %, FillOrder: Packed}
        """,
}


def one(content: str) -> tuple[dict[str, Any], dict[str, Entry]]:
    """The only resource's spec, and the report by path."""
    found = translate({"fallback": content})
    [resource] = found.resources
    check_form(resource)
    return resource["spec"], {".".join(each.path): each for each in found.report}


def at(value: Any, path: str) -> Any:
    for key in path.split("."):
        if isinstance(value, list):
            value = {
                **{each.get("name"): each for each in value},
                **{str(i): each for i, each in enumerate(value)},
            }
        value = value[key]
    return value


def check_nothing_silent(configs: Mapping[str, str], found: Translation) -> None:
    """Each value is reported once, and what the report claims is in the output."""
    from installer.inputs.policy import unfold

    for key, content in configs.items():
        data = {
            each: unfold(it) if isinstance(it, dict) else it
            for each, it in unfold(yamltext.load(content)).items()
        }
        reported = [each.path for each in found.report if each.config == key and each.path]
        assert sorted(reported) == sorted(path for path, _ in leaves(data))
    names = {each["metadata"]["name"]: each for each in found.resources}
    for entry in found.report:
        resource = names.get(entry.config, names.get("default"))
        for target in entry.to:
            at(resource, target)
        if entry.grade is Grade.EXACT and not entry.to:
            assert entry.note


def made_cases() -> Iterator[tuple[str, Mapping[str, str]]]:
    """Every configuration that the cases of other tests and the documentation have."""
    for path in sorted((ROOT / "tests/cases").glob("[!k]*/**/*.yaml")):
        for document in yamltext.load_all(path.read_text()):
            for number, configs in enumerate(_configs(document)):
                yield f"{path.relative_to(ROOT)}#{number}", configs
    for path in sorted((ROOT / "docs").glob("*.md")):
        for number, block in enumerate(path.read_text().split("\n\n")):
            lines = [line for line in block.splitlines() if line.startswith("    ")]
            if lines and lines[0].strip() == "policy:":
                yield f"{path.name}#{number}", {"fallback": "\n".join(line[4:] for line in lines)}


def _configs(value: Any) -> Iterator[Mapping[str, str]]:
    for key, each in (
        value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    ):
        if key == "configs" and isinstance(each, dict):
            yield {
                str(name).removesuffix(".cfg"): text for name, text in each.items() if isinstance(text, str)
            }
        else:
            yield from _configs(each)


def translated(configs: Mapping[str, str]) -> Translation | None:
    """None for what cri-resmgr refuses as well."""
    try:
        return translate(configs)
    except InvalidInputError:
        return None


CASES = dict(made_cases()) | {policy: {"fallback": text} for policy, text in FULL.items()}


@pytest.mark.parametrize("name", CASES)
def test_every_sample_and_test_configuration(name: str) -> None:
    configs = {key: text for key, text in CASES[name].items() if key != "EXTRA_OPTIONS"}
    found = translated(configs)
    if found is None:
        return
    check_nothing_silent(configs, found)
    for resource in found.resources:
        check_form(resource)


def test_every_one_of_them_by_the_schema(pytestconfig: pytest.Config) -> None:
    schemas, seen = load_schemas(pytestconfig), 0
    for configs in CASES.values():
        found = translated(configs)
        for resource in found.resources if found else ():
            check_schema(resource, schemas)
            seen += 1
    assert seen > 10


# Made configurations: any known key with a value of its type, some that nobody knows, any policy.
SWITCH, NUMBER, WORD = st.booleans(), st.integers(0, 9), st.text("abcXYZ-_%", min_size=1, max_size=6)
CPUS = st.sampled_from(["750m", "cpuset:0-3", "0-3", 2, 1.5, "4", "0,2"])
LISTED = st.sampled_from(["cpuset:0-15", "0-7", "0,1-4"])
UNKNOWN = st.dictionaries(WORD.map("x".__add__), st.one_of(NUMBER, SWITCH, WORD, st.none()), max_size=2)


def some(known: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda a, b: a | b, st.fixed_dictionaries({}, optional=known), UNKNOWN)


def section(known: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """cri-resmgr refuses an unknown key of a section itself."""
    return st.fixed_dictionaries({}, optional=known)


CAT = st.one_of(
    st.just("60%"),
    st.dictionaries(
        st.sampled_from(["all", "0", "1"]),
        st.one_of(st.just("50%"), some({"unified": st.just("0xf")})),
        max_size=2,
    ),
)
MB = st.one_of(
    st.lists(st.just("80%"), max_size=2), st.fixed_dictionaries({"all": st.lists(st.just("1000MBps"))})
)
CLASS = some(
    {
        "l2Allocation": CAT,
        "l3Allocation": CAT,
        "mbAllocation": MB,
        "kubernetes": some({"denyPodAnnotation": SWITCH}),
    }
)
PIN = {"PinCPU": SWITCH, "PinMemory": SWITCH, "ReservedPoolNamespaces": st.lists(WORD, max_size=2)}
TYPE = st.builds(
    lambda name, rest: {"Name": name, **rest},
    WORD,
    some(
        {
            "Namespaces": st.lists(WORD, max_size=2),
            **dict.fromkeys(("MinCPUs", "MaxCPUs", "MinBalloons", "MaxBalloons"), NUMBER),
            "CpuClass": WORD,
            "AllocatorPriority": st.integers(0, 3),
            **dict.fromkeys(
                ("PreferNewBalloons", "PreferSpreadingPods", "AllocatorTopologyBalancing"), SWITCH
            ),
            "ShareIdleCPUsInSame": st.sampled_from(
                ["system", "package", "die", "numa", "core", "thread", ""]
            ),
        }
    ),
)
POOL = st.builds(
    lambda name, rest: {"Name": name, **rest},
    WORD,
    some(
        {
            "CPU": st.integers(1, 9),
            "Instances": st.sampled_from([1, "2", "50 %", "3 CPUs"]),
            "MaxPods": NUMBER,
        }
    ),
)
SECTIONS = {
    "topology-aware": section(
        {**PIN, "PreferIsolatedCPUs": SWITCH, "PreferSharedCPUs": SWITCH, "ColocatePods": SWITCH}
    ),
    "balloons": section({**PIN, "IdleCPUClass": WORD, "BalloonTypes": st.lists(TYPE, max_size=3)}),
    "podpools": section({"PinCPU": SWITCH, "Pools": st.lists(POOL, max_size=3)}),
    "static": section({"RelaxedIsolation": SWITCH}),
}
POLICY = st.builds(
    lambda active, reserved, rest: {"Active": active, "ReservedResources": {"CPU": reserved}, **rest},
    st.sampled_from(
        [
            "topology-aware",
            "memtier",
            "balloons",
            "podpools",
            "static-plus",
            "none",
            "static",
            "dynamic-pools",
        ]
    ),
    CPUS,
    section({**SECTIONS, "AvailableResources": st.fixed_dictionaries({"cpu": LISTED})}),
)
CONFIGURATION = st.builds(
    lambda policy, rest: {"policy": policy, **rest},
    POLICY,
    section(
        {
            "rdt": section(
                {
                    "options": some(
                        {
                            "mode": st.sampled_from(["Full", "Discovery", "Disabled"]),
                            "monitoringDisabled": SWITCH,
                        }
                    ),
                    "partitions": st.dictionaries(
                        st.just("p"),
                        some(
                            {
                                "l3Allocation": CAT,
                                "mbAllocation": MB,
                                "classes": st.dictionaries(WORD, CLASS, max_size=2),
                            }
                        ),
                    ),
                }
            ),
            "cpu": st.fixed_dictionaries(
                {"classes": st.dictionaries(WORD, some({"minFreq": NUMBER, "maxFreq": NUMBER}))}
            ),
            "blockio": section(
                {"Classes": st.dictionaries(WORD, st.lists(some({"Weight": NUMBER}), max_size=2))}
            ),
            "logger": section(
                {"Debug": st.just("on:a,off:b"), "Klog": section({"v": NUMBER, "skip_headers": SWITCH})}
            ),
            "dump": section({"Config": WORD, "Disabled": SWITCH}),
            "instrumentation": section(
                {"HTTPEndpoint": WORD, "Sampling": st.sampled_from([0.5, "testing"]), "JaegerAgent": WORD}
            ),
        }
    ),
)


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=CONFIGURATION, more=st.none() | CONFIGURATION)
def test_no_key_is_lost_in_silence(
    data: dict[str, Any], more: dict[str, Any] | None, pytestconfig: pytest.Config
) -> None:
    configs = {"default": yaml.safe_dump(data)}
    if more is not None:
        configs["group.g"] = yaml.safe_dump(more)
    found = translated(configs)
    assume(found)  # cri-resmgr refuses some
    assert found
    check_nothing_silent(configs, found)
    for resource in found.resources:
        check_form(resource)
        if pytestconfig.getoption("--nri"):
            check_schema(resource, load_schemas(pytestconfig))


def test_topology_aware_in_full() -> None:
    spec, report = one(FULL["topology-aware"])
    assert spec["reservedResources"] == {"cpu": "1500m"}
    assert spec["availableResources"] == {"cpu": "cpuset:0-63"}
    assert (spec["pinCPU"], spec["pinMemory"], spec["colocatePods"]) == (True, False, True)
    assert spec["control"]["rdt"] == {
        "enable": True,
        "usePodQoSAsDefaultClass": True,
        "options": {"l3": {"optional": True}, "mb": {"optional": True}},
        "partitions": {
            "one": {
                "l3Allocation": {"all": {"unified": "60%"}},
                "mbAllocation": {"all": ["100%"]},
                "classes": {
                    "Guaranteed": {
                        "l3Allocation": {"all": {"unified": "100%"}, "1": {"code": "0xf", "data": "0xf"}}
                    },
                    "BestEffort": {},
                    "Burstable": {},
                },
            }
        },
    }
    assert spec["control"]["blockio"] == {"enable": True, "usePodQoSAsDefaultClass": False}
    assert spec["log"] == {
        "debug": ["policy", "cache", "cri:off"],
        "source": True,
        "klog": {"skip_headers": False, "v": 2},
    }
    assert spec["instrumentation"]["samplingRatePerMillion"] == 100_000
    assert spec["instrumentation"]["reportPeriod"] == "30s"
    lost = {path for path, entry in report.items() if entry.grade is Grade.LOST}
    assert lost == {
        "rdt.options.monitoringDisabled",
        "rdt.partitions.one.classes.Burstable.kubernetes.denyPodAnnotation",
        "blockio.Classes.Slow.0.Weight",
        "blockio.Classes.Slow.1.Devices",
        "blockio.Classes.Slow.1.ThrottleReadBps",
        "dump.Config",
        "resource-manager.control.Controllers.rdt",
    }


def test_balloons_in_full() -> None:
    spec, report = one(FULL["balloons"])
    assert spec["reservedResources"] == {"cpu": "cpuset:0-1"}
    assert spec["allocatorTopologyBalancing"] is True
    _, _, first, second = spec["balloonTypes"]
    assert (first["allocatorPriority"], first["shareIdleCPUsInSame"], first["cpuClass"]) == (
        "none",
        "numa",
        "fast",
    )
    assert (second["allocatorPriority"], second["namespaces"], second["minCPUs"]) == ("high", ["x", "y*"], 0)
    assert spec["cpuClasses"] == [
        {"name": "idle", "minFreq": "800000", "maxFreq": "900000"},
        {"name": "fast"},
    ]
    assert [path for path, entry in report.items() if entry.grade is Grade.LOST] == [
        "policy.balloons.BalloonTypes.1.Unheard"
    ]


def test_podpools_become_balloons() -> None:
    spec, report = one(FULL["podpools"])
    _, _, first, second = spec["balloonTypes"]
    assert [first[key] for key in ("minCPUs", "maxCPUs", "minBalloons", "maxBalloons")] == [1, 1, 3, 3]
    assert [second[key] for key in ("minBalloons", "maxBalloons", "preferNewBalloons")] == [0, 0, False]
    assert report["policy.Active"].grade is Grade.APPROXIMATE
    assert report["policy.podpools.Pools.0.MaxPods"].grade is Grade.LOST
    assert "node's CPUs" in report["policy.podpools.Pools.1.Instances"].note


def test_levels_never_merge() -> None:
    topology = "policy: {Active: topology-aware, ReservedResources: {CPU: 1}}\n"
    found = translate(
        {"fallback": topology, "default": topology, "group.g": FULL["balloons"], "node.n": topology}
    )
    assert [each["metadata"]["name"] for each in found.resources] == ["default", "group.g", "node.n"]
    assert {each.grade for each in found.report if each.config == "fallback"} == {Grade.IDLE}
    assert [each.config for each in found.report if not each.path] == [
        "BalloonsPolicy and TopologyAwarePolicy",
        "groups",
    ]


def test_force_counts_everywhere() -> None:
    topology = "policy: {Active: topology-aware, ReservedResources: {CPU: 1}}\n"
    found = translate({"force": topology, "fallback": FULL["balloons"], "node.n": FULL["balloons"]})
    [resource] = found.resources
    assert (resource["kind"], resource["metadata"]["name"]) == ("TopologyAwarePolicy", "default")
    assert {each.grade for each in found.report if each.config != "force"} == {Grade.IDLE}


@pytest.mark.parametrize("key", ["mode", "Mode"])
@pytest.mark.parametrize("mode", ["Disabled", "Discovery"])
def test_without_mode_full_partitions_have_no_effect(mode: str, key: str) -> None:
    spec, report = one(FULL["topology-aware"].replace("mode: Full", f"{key}: {mode}"))
    assert spec["control"]["rdt"] == {"enable": mode == "Discovery", "usePodQoSAsDefaultClass": False}
    assert report["rdt.partitions.one.l3Allocation"].grade is Grade.IDLE


SECTIONS_OF_CLASSES = {
    "rdt": "rdt: {{partitions: {{p: {{l3Allocation: 60%, classes: {{{}}}}}}}}}",
    "blockio": "blockio: {{Classes: {{{}}}}}",
}


@pytest.mark.parametrize("kind", SECTIONS_OF_CLASSES)
@pytest.mark.parametrize(
    ("classes", "used", "missing"),
    [
        ("Guaranteed: {}, Burstable: {}, BestEffort: {}, gold: {}", True, None),
        ("Guaranteed: , Burstable: , BestEffort: ", True, None),
        ("Guaranteed: {}, gold: {}", False, "BestEffort, Burstable"),
        ("guaranteed: {}, gold: {}", False, None),
        ("gold: {}", False, None),
    ],
)
def test_a_pod_gets_the_class_of_its_qos_only_where_all_three_exist(
    kind: str, classes: str, used: bool, missing: str | None
) -> None:
    section = SECTIONS_OF_CLASSES[kind].format(classes)
    content = f"{{policy: {{Active: topology-aware, ReservedResources: {{CPU: 1}}}}, {section}}}"
    found = translate({"fallback": content})
    control = found.resources[0]["spec"]["control"][kind]
    assert (control["enable"], control["usePodQoSAsDefaultClass"]) == (True, used)
    said = [
        each.note for each in found.report if each.config == f"fallback: {kind}" and each.grade is Grade.LOST
    ]
    assert len(said) == (missing is not None)
    assert all(f"a class for {missing} pods" in note for note in said)
    if kind == "rdt":
        assert len(control["partitions"]["p"]["classes"]) == classes.count(":") - classes.count("{}: ")


@pytest.mark.parametrize(
    ("rdt", "enable"),
    {
        "{}": False,
        "{options: {mb: {optional: true}}}": False,
        "{options: {mode: Full}}": False,
        "{options: {mode: Discovery}}": True,
        "{options: {mode: full}, partitions: {p: {l3Allocation: 60%}}}": False,
        "{options: {mode: Disabled}, partitions: {p: {l3Allocation: 60%}}}": False,
        "{partitions: {p: {l3Allocation: 60%}}}": True,
    }.items(),
)
def test_the_plugin_needs_resctrl_only_for_partitions_and_discovery(rdt: str, enable: bool) -> None:
    found = translate(
        {"fallback": f"{{policy: {{Active: topology-aware, ReservedResources: {{CPU: 1}}}}, rdt: {rdt}}}"}
    )
    assert found.resources[0]["spec"]["control"]["rdt"]["enable"] == enable
    assert any("without resctrl" in each.note for each in found.report) == enable


@pytest.mark.parametrize(
    ("policy", "lost"), [("none", 0), ("static", 3), ("static-pools", 3), ("dynamic-pools", 3)]
)
def test_a_policy_without_a_plugin(policy: str, lost: int) -> None:
    pools = "static-pools: {pools: {a: 1}}" if policy == "static-pools" else "static-pools: {ConfDirPath: /x}"
    found = translate({"fallback": f"policy: {{Active: {policy}, ReservedResources: {{CPU: 1}}, {pools}}}"})
    assert (found.resources, sum(each.grade is Grade.LOST for each in found.report)) == ((), lost)


RESERVED = "policy:\n  Active: balloons\n  ReservedResources: {CPU: 1}\n"


@pytest.mark.parametrize(
    ("config", "fault"),
    {
        "policy: {Active: topology-aware}": "fallback: policy.ReservedResources.CPU: topology-aware needs it",
        "policy: {Active: topology-aware, ReservedResources: {CPU: x}}": "'x' is neither a quantity nor",
        "policy: {Active: topology-aware, ReservedResources: {CPU: .inf}}": ".inf is not a number of JSON",
        f"{RESERVED}  balloons: {{PinCPU: 3}}": "must be true or false",
        f"{RESERVED}  balloons: {{BalloonTypes: [{{MinCPUs: 1}}]}}": "has no Name",
        "policy: {Active: podpools, podpools: {Pools: [{Name: a, CPU: 1500m}]}}": "whole number",
        "policy: {Active: static-plus, ReservedResources: {CPU: 1}, static-plus: {PinCPU: true}}": "no such",
        f"{RESERVED}logger: {{Klog: {{odd: 1}}}}": "logger.Klog.odd: cri-resmgr knows no such key",
        f"{RESERVED}rdt: {{Options: {{mode: Disabled}}}}": "rdt.Options.mode: cri-resmgr knows no such key",
        f"{RESERVED}  balloons: {{balloontypes: [{{Name: a}}]}}": "balloontypes.0.Name: cri-resmgr knows no",
        f"{RESERVED}nosuch: {{}}": "nosuch: cri-resmgr knows no such key",
        f"{RESERVED}  balloons: {{BalloonTypes: [{{Name: a, MaxCPUs: -1}}]}}": "maxCPUs -1",
        f"{RESERVED}  balloons: {{BalloonTypes: [{{Name: a, AllocatorPriority: low}}]}}": "a whole number",
        "policy: {Active: memtier, ReservedResources: {CPU: 0}}": "does not start with 0",
        "policy: {Active: memtier, ReservedResources: {CPU: -1}}": "-1 is neither a quantity nor",
        "policy: {Active: memtier, ReservedResources: {CPU: 'cpuset:'}}": "is neither a quantity nor",
        f"{RESERVED}  AvailableResources: {{CPU: 8}}": "does not start with 8",
        "policy: {Active: memtier, AvailableResources: {CPU: 0-3}, ReservedResources: {CPU: 3-4}}": "has not",
        f"{RESERVED.replace('1', '4-5')}  AvailableResources: {{CPU: 0-3}}": "has not",
        f"{RESERVED}instrumentation: {{ReportPeriod: 30s}}": "whole number",
        "policy: {Active: baloons}": "did you mean balloons?",
        "policy: [": "not YAML",
    }.items(),
)
def test_what_cri_resmgr_refuses_is_refused(config: str, fault: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        translate({"fallback": config})
    assert fault in raised.value.message


def test_nothing_is_lost_with_an_empty_mapping() -> None:
    found = translate({"fallback": f"{RESERVED}dump: {{}}\nblockio: {{Classes: {{}}}}\n"})
    assert not any(each.grade is Grade.LOST for each in found.report)


def test_cpus_of_a_cgroup_are_lost_and_said() -> None:
    spec, report = one("policy: {Active: balloons, ReservedResources: {CPU: cgroup:/kube.slice}}")
    assert spec["reservedResources"] == {}
    assert report["policy.ReservedResources.CPU"].grade is Grade.LOST


def test_values_of_a_chart_leave_nothing_of_its_own() -> None:
    found = translate({"fallback": FULL["topology-aware"], "group.g": FULL["balloons"]})
    found = found.as_values()
    [values] = found.resources
    assert values["config"]["control"]["rdt"]["partitions"].keys() == {"one", "fullCache"}
    assert values["config"]["control"]["rdt"]["partitions"]["fullCache"] is None
    assert [each.config for each in found.report if "charts take only the default" in each.note] == [
        "group.g"
    ]
    assert json.dumps(values)
