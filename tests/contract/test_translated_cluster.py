"""`translate --context` on an API server's stand-in with our manifests: it reads what the cluster uses."""

from __future__ import annotations

import json
from pathlib import Path

from tests.lib.throwaway.fleet import Fleet
from tests.lib.throwaway.installed_fleet import CONFIG_MAPS, VALUES, World

TOPOLOGY = "{policy: {Active: topology-aware, ReservedResources: {CPU: %s}}}"
GIVEN = f"fallback: '{TOPOLOGY % 1}', group.fast: '{TOPOLOGY % 2}'"
STATIC = "policy: {Active: static}"
OTHERS = (
    ("resources", "cri-resmgr-installer-configs-earlier", "fallback.cfg", STATIC),
    ("team", "mine", "fallback.cfg", STATIC),
    ("team", "cri-resmgr-config.node.n1", "policy", "Active: static"),
)


def test_neither_an_earlier_configuration_nor_a_tenants_counts(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    before = "fallback: 'policy: {Active: none}', default: 'policy: {Active: none}'"
    assert before in VALUES
    values.write_text(VALUES.replace(before, GIVEN))
    with Fleet(n1="ready") as fleet:
        world = World(fleet, values)
        for namespace, name, key, text in OTHERS:
            fleet.server.create(CONFIG_MAPS, namespace, {"metadata": {"name": name}, "data": {key: text}})
        context = json.loads(world.server.kubeconfig())["contexts"][0]["name"]
        done = world.run("--context", context, "-n", "plugins", verb="translate")
    assert "namespace: plugins" in done.stdout, done.stderr
    assert "name: group.fast" in done.stdout
    sources = [line for line in done.stderr.splitlines() if line.startswith("source ")]
    assert [line.split()[1] for line in sources] == ["fallback:", "group.fast:"], done.stderr
    assert "resources/cri-resmgr-installer-configs-" in sources[0]
    assert "earlier" not in sources[0]
