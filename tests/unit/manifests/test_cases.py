"""Values in, Kubernetes YAML out: the cases are data, and what every output has to keep."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from installer.cli import main
from installer.cli.options import parse_options
from installer.cluster.selection import selects
from installer.errors import InstallerError
from installer.manifests import render_manifests, render_objects
from installer.manifests.text import parse_objects, quote
from tests.unit.manifests.rendering import (
    CASES,
    NAMES,
    TEMPLATES,
    Maker,
    expected,
    objects,
    options_of,
    pod_of,
    rendered,
    the,
)


@pytest.mark.parametrize("case", NAMES)
def test_a_case(case: str) -> None:
    """After an intended change, `python -m tests.unit.manifests.test_cases` writes them: read the
    difference."""
    file, text = expected(case)
    assert file.read_text() == text


@pytest.mark.parametrize("case", NAMES)
def test_what_is_printed_reads_as_it_was_made(case: str) -> None:
    assert objects(rendered(case)) == render_objects(options_of(case), lambda _: None)


def test_the_same_input_gives_the_same_bytes() -> None:
    assert render_manifests(options_of("full")) == rendered("full")


def test_the_order_of_what_has_none_makes_no_difference(make: Maker) -> None:
    one = make.text({"nodes": ["b", "a"], "labels": {"x": "1", "a": "2"}, "imagePullSecrets": ["s", "r"]})
    other = make.text({"imagePullSecrets": ["r", "s"], "labels": {"a": "2", "x": "1"}, "nodes": ["a", "b"]})
    assert one == other


def test_every_value_in_a_template_goes_through_the_filter() -> None:
    """Text that is made in a block goes through it as a whole; the macros of cel.j2 make such text."""
    for template in TEMPLATES.glob("*.yaml.j2"):
        text = re.sub(r"(?s){% (set \w+|call [^%]*) %}.*?{% end(set|call) %}", "", template.read_text())
        macros = set(re.findall(r"{% macro (\w+)", text))
        for part in re.sub(r"(?s){[%#].*?[%#]}", "", text).split("{{")[1:]:
            inside, closed, _ = part.partition("}}")
            assert closed
            assert inside.strip().partition("(")[0] in {"yaml", *macros}, f"{template.name}: {inside}"


# -- what no value can do ----------------------------------------------------------------

HOSTILE = (
    "quote\" and ' and \\",
    "two\nlines: {{ name }} {% raw %}\n---\nkind: Secret\n",
    "!!python/object:os.system x",
    "&anchor *alias <<: {a: b} # no comment",
    "  leading and trailing \t ",
    "ä \U0001f600 \u2028 \u0085 \ufeff end",
    "yes",
    "1e3",
    "012",
    "0o17",
    "2026-01-01",
    "~",
    "",
    "\n",
    "- a\n- b\n\n\n",
    "trailing space \nhere\n",
    "=",
    "null",
    "y",
    "\x07\x7f",
    "%YAML 1.1",
    "...\n",
)


def test_hostile_values_arrive_as_they_were(make: Maker) -> None:
    notes = {f"example.org/note-{number}": text for number, text in enumerate(HOSTILE)}
    found = objects(make.text({"annotations": notes}))
    assert [each["kind"] for each in found] == [each["kind"] for each in objects(rendered("minimal"))]
    for each in found:
        assert each["metadata"]["annotations"] == notes


@pytest.mark.parametrize("text", HOSTILE)
def test_the_filter_alone_keeps_it_a_text(text: str) -> None:
    assert yaml.safe_load(f"a: {quote(text)}\nb: 1\n") == {"a": text, "b": 1}


def test_configs_arrive_byte_for_byte(make: Maker) -> None:
    text = '# ü "quoted" {{ x }}\npolicy:\n\n    Active: none   \n# end, without a line\'s end'
    found = objects(make.text({"configs": {"fallback": text}}))
    config_map = next(each for each in found if "fallback.cfg" in each.get("data", {}))
    assert config_map["data"]["fallback.cfg"] == text


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(InstallerError, match="kind: already given on line 1"):
        parse_objects("kind: A\nmetadata: {}\nkind: B\n")


class _Strict(yaml.CSafeLoader):
    """Refuses a key that stands twice in one mapping."""


def _construct(loader: yaml.CSafeLoader, node: yaml.MappingNode) -> dict[object, object]:
    pairs = loader.construct_pairs(node, deep=True)
    assert len(dict(pairs)) == len(pairs), f"a key twice: {[key for key, _ in pairs]}"
    return dict(pairs)


_Strict.add_constructor("tag:yaml.org,2002:map", _construct)


@pytest.mark.parametrize("case", NAMES)
def test_no_key_stands_twice(case: str) -> None:
    assert list(yaml.load_all(rendered(case), Loader=_Strict))


# -- the objects -------------------------------------------------------------------------


def test_another_config_is_another_config_map_and_another_pod_template(make: Maker) -> None:
    def look(policy: str) -> tuple[str, dict[str, Any]]:
        found = make({"configs": {"fallback": f"policy: {{Active: {policy}}}"}})
        config_map = next(each for each in found if "fallback.cfg" in each.get("data", {}))
        assert config_map["immutable"] is True
        return config_map["metadata"]["name"], the(found, "DaemonSet")

    (one, before), (other, after) = look("none"), look("balloons")
    assert one != other
    assert {"configMap": {"name": one}, "name": "configs"} in pod_of(before)["volumes"]
    assert {"configMap": {"name": other}, "name": "configs"} in pod_of(after)["volumes"]
    assert look("none") == (one, before)


def test_other_settings_are_another_pod_template(make: Maker) -> None:
    one = the(make({"settings": {"proxy": {"deadSeconds": 21}}}), "DaemonSet")
    assert one != the(make({"settings": {"proxy": {"deadSeconds": 22}}}), "DaemonSet")


def test_pods_are_started_with_what_is_mounted(make: Maker) -> None:
    container = pod_of(the(make({"configs": {"force": "policy: {Active: none}"}}), "DaemonSet"))[
        "containers"
    ][0]
    places = [mount["mountPath"] for mount in container["volumeMounts"]]
    environment = {each["name"]: each.get("value", "") for each in container["env"]}
    for option in ("CONFIG", "CONFIGS"):
        path = environment[f"CRI_RESMGR_INSTALLER_{option}"]
        assert any(path == place or path.startswith(f"{place}/") for place in places)
    assert container["command"][-1] == "run"


@pytest.mark.parametrize("configs", [{}, {"fallback": "policy: {Active: none}"}])
def test_a_command_in_the_pod_asks_for_the_same(
    make: Maker, configs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kubectl exec POD -- cri-resmgr-installer status` has the pod's environment and nothing else."""
    container = pod_of(the(make({"configs": configs}), "DaemonSet"))["containers"][0]
    for each in container["env"]:
        monkeypatch.setenv(each["name"], each.get("value", ""))
    by_hand = parse_options(["status"])[1]
    assert (str(by_hand.host_root), str(by_hand.payload)) == ("/host", "/payload")
    assert str(by_hand.config) == "/etc/cri-resmgr-installer/settings/settings.yaml"
    assert by_hand.configs == (Path("/etc/cri-resmgr-installer/configs") if configs else None)
    assert by_hand.default_configs is not bool(configs)
    assert replace(by_hand, output="json") == parse_options(container["command"][1:])[1]


def test_installation_and_removal_never_share_pods() -> None:
    install = the(objects(rendered("minimal")), "DaemonSet")
    remove = the(objects(rendered("remove")), "DaemonSet")
    assert install["metadata"]["name"] != remove["metadata"]["name"]
    assert install["spec"]["selector"] != remove["spec"]["selector"]
    for each in (install, remove):
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert each["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_installation_and_removal_have_the_same_rights(make: Maker) -> None:
    """Else applying the one would take from the pods of the other, which are still there."""
    other = ("ConfigMap", "DaemonSet")
    install, remove = make({}), make({}, mode="remove")
    assert [each for each in install if each["kind"] not in other] == [
        each for each in remove if each["kind"] not in other
    ]


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
OTHER_ZONE = {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["b"]}]}
NAMED = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}


def template_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    template: dict[str, Any] = the(found, "DaemonSet")["spec"]["template"]
    return template


def test_the_operators_conditions_and_ours_hold_in_every_term(make: Maker) -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in "ab"]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = {"nodeAffinity": {required: {"nodeSelectorTerms": [*terms, {}]}}}
    pod = pod_of(the(make({"affinity": affinity, "nodes": ["n1", "n2"]}), "DaemonSet"))
    found = pod["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"]
    assert len(found) == 4
    for term in found:
        keys = [condition["key"] for condition in term["matchExpressions"]]
        assert keys == [
            "zone",
            "node-role.kubernetes.io/control-plane",
            "node-role.kubernetes.io/master",
            "eks.amazonaws.com/compute-type",
            "type",
        ]
        assert [len(field["values"]) for field in term["matchFields"]] == [1]
    nodes = {
        (term["matchExpressions"][0]["values"][0], term["matchFields"][0]["values"][0]) for term in found
    }
    assert nodes == {("a", "n1"), ("a", "n2"), ("b", "n1"), ("b", "n2")}


def test_the_control_plane_only_when_asked_for(make: Maker) -> None:
    labels = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    labels["node-role.kubernetes.io/control-plane"] = ""
    assert not selects(template_of(make({})), "n1", labels)
    assert selects(template_of(make({"controlPlane": True})), "n1", labels)


@pytest.mark.parametrize("label", ["eks.amazonaws.com/compute-type=fargate", "type=virtual-kubelet"])
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"controlPlane": True},
        {"nodes": ["n1", "n2"]},
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [ZONE, OTHER_ZONE]}}}},
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [NAMED]}}}, "controlPlane": True},
    ],
    ids=str,
)
def test_a_node_that_is_no_machine_gets_no_pod(make: Maker, label: str, values: dict[str, Any]) -> None:
    """We tolerate every taint, and its pods would never run."""
    labels = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "zone": "a"}
    made = make({**values, "agent": {"enabled": True}})
    templates = [each["spec"]["template"] for each in made if each["kind"] == "DaemonSet"]
    assert len(templates) == 2
    for template in templates:
        assert selects(template, "n1", {**labels, "type": "large", "eks.amazonaws.com/compute-type": "auto"})
        assert selects(template, "n1", labels)
        assert not selects(template, "n1", {**labels, **dict([label.split("=")])})


def test_a_dynamic_config_has_one_key_for_each_section(make: Maker) -> None:
    configs = {"node.n1": "policy:\n  Active: none\nlogger:\n  Debug: cache\n"}
    found = make({"configs": configs}, agent=True)
    config_map = the(found, "ConfigMap", "cri-resmgr-config.node.n1")
    agent = pod_of(the(found, "DaemonSet", "cri-resmgr-agent"))["containers"][0]
    assert agent["args"][:2] == ["-config-ns", config_map["metadata"]["namespace"]]
    assert the(found, "Namespace", config_map["metadata"]["namespace"])
    assert "immutable" not in config_map
    assert {key: yaml.safe_load(text) for key, text in config_map["data"].items()} == {
        "policy": {"Active": "none"},
        "logger": {"Debug": "cache"},
    }


RELAY_DIRECTORY = "/var/run/cri-resmgr"


@pytest.mark.parametrize(
    ("settings", "directory"),
    [
        ({}, f"{RELAY_DIRECTORY}/agent"),
        ({"proxy": {"agentSockets": "own"}}, f"{RELAY_DIRECTORY}/agent"),
        ({"proxy": {"agentSockets": "shared"}}, RELAY_DIRECTORY),
    ],
)
def test_the_agent_and_the_proxy_meet_where_no_relay_is_unless_told_otherwise(
    make: Maker, settings: dict[str, Any], directory: str
) -> None:
    """Flags of the agent as upstream's pkg/agent/flags.go has them, the probe's as its main.go."""
    found = make({"settings": settings}, agent=True)
    pod = pod_of(the(found, "DaemonSet", "cri-resmgr-agent"))
    (agent,), (volume,) = pod["containers"], pod["volumes"]
    own = directory != RELAY_DIRECTORY
    agent_socket, config_socket = f"{directory}/cri-resmgr-agent.sock", f"{directory}/cri-resmgr-config.sock"
    assert volume["hostPath"] == {"path": directory, "type": "Directory"}
    assert [mount["mountPath"] for mount in agent["volumeMounts"]] == [directory]
    assert agent["args"][2:] == (
        ["-agent-socket", agent_socket, "-cri-resmgr-socket", config_socket] if own else []
    )
    for probe in ("readinessProbe", "livenessProbe"):
        assert (f"-agent-socket={agent_socket}" in agent[probe]["exec"]["command"]) is own
    mounted = [
        each for each in found if each["metadata"]["name"].startswith("cri-resmgr-installer-settings-")
    ]
    proxy = yaml.safe_load(mounted[0]["data"]["settings.yaml"])["proxy"]
    assert proxy == {"agentSockets": "own" if own else "shared"}


def test_without_the_agent_nothing_is_said_of_its_sockets(make: Maker) -> None:
    assert "agentSockets" not in str(make({}))


def test_the_agent_reads_config_maps_in_one_namespace_only(make: Maker) -> None:
    for named in ("", "kube-system"):
        found = make({"agent": {"enabled": True, "namespace": named}})
        names = {each["metadata"]["name"] for each in found if each["kind"] == "Namespace"}
        assert ("cri-resmgr-installer-agent" in names) == (named == "")
        rules = [rule for each in found if each["kind"].endswith("Role") for rule in each["rules"]]
        wanted = {"resources": ["configmaps"], "verbs": ["get", "list", "watch"]}
        (config_maps,) = (rule for rule in rules if wanted.items() <= rule.items())
        (role,) = (each for each in found if config_maps in each.get("rules", ()))
        assert role["metadata"]["namespace"] == (named or "cri-resmgr-installer-agent")


def test_an_empty_dynamic_config_is_an_empty_config_map(make: Maker) -> None:
    found = make({"configs": {"default": "# nothing yet\n"}}, agent=True)
    assert the(found, "ConfigMap", "cri-resmgr-config.default")["data"] == {}


def test_the_verb_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Without root, without a host."""
    assert main(["manifests", "--values", str(CASES / "minimal" / "values.yaml")]) == 0
    assert capsys.readouterr().out == rendered("minimal")


def test_the_verb_refuses_what_is_bad(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifests", "--image", "Not An Image", "--nodes", "A"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "images.installer: must be an image reference" in printed.err
    assert "nodes.0: must be an object's name" in printed.err


def test_the_restricted_profile_is_restricted(make: Maker) -> None:
    pod = pod_of(the(make({}, profile="restricted"), "DaemonSet"))
    security = pod["containers"][0]["securityContext"]
    assert security["privileged"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"]["drop"] == ["ALL"]
    assert "SYS_ADMIN" not in security["capabilities"]["add"]
    assert "/" not in [volume.get("hostPath", {}).get("path") for volume in pod["volumes"]]


def test_the_restricted_profile_mounts_nothing_that_the_host_may_lack(make: Maker) -> None:
    """A runtime would make it."""
    for arch, there in (("amd64", True), ("arm64", False)):
        pod = pod_of(the(make({"arch": arch}, profile="restricted"), "DaemonSet"))
        assert ({"name": "host-lib64", "hostPath": {"path": "/lib64"}} in pod["volumes"]) == there


def test_images_of_the_command_line_win(make: Maker) -> None:
    found = make({}, images=("example.org/a:1", "agent=example.org/b:2"), agent=True)
    images = {pod_of(each)["containers"][0]["image"] for each in found if each["kind"] == "DaemonSet"}
    assert images == {"example.org/a:1", "example.org/b:2"}


if __name__ == "__main__":
    for name in NAMES:
        path, content = expected(name)
        path.write_text(content)
