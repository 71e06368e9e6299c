"""A case for both programs: a configuration, a machine, a list of pods. What they said of each is recorded,
so that it can be compared without them.

    python -m tests.lib.judge.case --real-cri-resmgr PATH --real-nri-plugin DIR

asks them all again, and writes tests/cases/translated/recorded.jsonl: a line with versions and date, then one
for each question.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import re
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

from installer.errors import InvalidInputError
from installer.model.containers import parse_list
from installer.operator.annotations import translate_annotations
from installer.operator.translate import Entry, Translation, translate
from tests.lib import yamltext
from tests.lib.judge.answers import Answer, Placed
from tests.lib.judge.machines import MACHINES
from tests.lib.judge.made import COUNT, made
from tests.lib.judge.plugin import ask_plugin
from tests.lib.judge.pods import ANNOTATED, POD_LISTS, Pod
from tests.lib.judge.proxy import ask_proxy
from tests.lib.throwaway import real

_CASES = Path(__file__).parents[2] / "cases/translated"
_RECORDED = _CASES / "recorded.jsonl"
_POLICIES = {"TopologyAwarePolicy": "topology-aware", "BalloonsPolicy": "balloons"}
_LISTS_OF_EACH = 4
_ANNOTATED_ON = (
    ("topology-aware", "one"),
    ("topology-aware", "isolated"),
    ("balloons, two types", "two"),
    ("podpools, two pools", "two"),
)
_NOTHING = Answer("not translated")


@dataclass(frozen=True, slots=True)
class Case:
    """`machine` and `pods` are names."""

    config: str
    machine: str
    pods: str

    @property
    def translation(self) -> Translation | None:
        """None for what `translate` refuses, because cri-resmgr does."""
        try:
            return translate({"fallback": self.config})
        except InvalidInputError:
            return None

    @property
    def asked(self) -> Sequence[Pod]:
        """The pods as cri-resmgr gets them."""
        return (POD_LISTS | ANNOTATED)[self.pods]

    def pods_of_plugin(self) -> tuple[list[Pod], dict[str, tuple[Entry, ...]]]:
        """The same with the plugin's annotations, and by NAMESPACE/POD what became of the old ones."""
        pods, reports = [], {}
        for pod in self.asked:
            key = f"{pod.namespace}/{pod.name}"
            new, reports[key] = translate_annotations(
                pod.annotations, [each.name for each in pod.containers], key
            )
            pods.append(replace(pod, annotations=new))
        return pods, reports

    def ask(self) -> tuple[Answer, Answer]:
        """What the real programs say."""
        proxy = real.named("cri-resmgr")
        assert proxy
        with tempfile.TemporaryDirectory() as old, tempfile.TemporaryDirectory() as new:
            before = ask_proxy(proxy, Path(old), MACHINES[self.machine], self.config, self.asked)
            resource = self._resource()
            if resource is None:
                return before, _NOTHING
            plugin = real.nri_plugin(_POLICIES[resource["kind"]])
            assert plugin
            pods, _ = self.pods_of_plugin()
            return before, ask_plugin(
                plugin, Path(new), MACHINES[self.machine], resource, pods, self._blockio_classes()
            )

    def recall(self) -> tuple[Answer, Answer]:
        """What they said. Raises LookupError for what they were not asked."""
        old, new = (_recorded()[key] for key in self.keys)
        return old, new

    @property
    def keys(self) -> tuple[str, str]:
        """What stands for the question to either of them: a change of it makes it another question."""
        pods, _ = self.pods_of_plugin()
        return _digest(self.config, self.machine, self.asked), _digest(
            self._resource(), self.machine, pods, sorted(self._blockio_classes())
        )

    @property
    def conditions(self) -> frozenset[str]:
        """short, if the pods ask for two of five CPUs: a balloon has whole ones; isolated, if some are. What
        a type has from the start is not there for the others."""
        machine, spec = MACHINES[self.machine], (self._resource() or {}).get("spec", {})
        available = spec.get("availableResources", {}).get("cpu", "")
        held = sum(each["minBalloons"] * each["minCPUs"] for each in spec.get("balloonTypes", ()))
        cpus = parse_list(available.removeprefix("cpuset:")) if available else frozenset(machine.cpus)
        asked = sum(each.request for pod in self.asked for each in pod.containers)
        is_short = 5 * asked > 2000 * (len(cpus.intersection(machine.cpus)) - held)
        found = {"short": is_short, "isolated": bool(machine.isolated)}
        return frozenset(condition for condition, holds in found.items() if holds)

    def _resource(self) -> Mapping[str, Any] | None:
        found = self.translation
        return found.resources[0] if found and found.resources else None

    def _blockio_classes(self) -> Collection[str]:
        """Those that the runtime knows: `translate` says that they belong into its file."""
        return ((yamltext.load(self.config) or {}).get("blockio") or {}).get("Classes") or ()


def corpus() -> dict[str, list[Case]]:
    """By the name of the configuration: each meets a few machines and lists of pods."""
    texts: dict[str, str] = yamltext.load((_CASES / "corpus.yaml").read_text())
    machines, lists = [*MACHINES], [*POD_LISTS]
    found = {}
    for name, text in texts.items():
        first = crc32(name.encode())  # a new configuration leaves the others what they have
        turns = range(first, first + _LISTS_OF_EACH)
        cases = [Case(text, machines[turn % len(machines)], lists[turn * 3 % len(lists)]) for turn in turns]
        found[name] = cases
    return found


def annotated() -> dict[str, list[Case]]:
    """By the name of the list of pods: with each policy, as most annotations are for one of them."""
    texts: dict[str, str] = yamltext.load((_CASES / "corpus.yaml").read_text())
    return {
        name: [Case(texts[config], machine, name) for config, machine in _ANNOTATED_ON] for name in ANNOTATED
    }


def made_up(first: int = 0) -> list[Case]:
    """As many as a run has, from this number on. The first ones are recorded."""
    return [Case(*made(number)) for number in range(first, first + COUNT)]


def _digest(*question: object) -> str:
    return hashlib.sha256(repr(question).encode()).hexdigest()[:16]


@cache
def _recorded() -> dict[str, Answer]:
    lines = _RECORDED.read_text().splitlines()[1:]
    return {key: _unpack(answer) for key, answer in map(json.loads, lines)}


def _pack(answer: Answer) -> Any:
    if answer.refused:
        return answer.refused
    return {key: _words(placed) for key, placed in answer.containers.items()}


def _words(placed: Placed) -> str:
    parts = (placed.cpus, placed.mems, placed.shares, placed.rdt, placed.blockio)
    return placed.refused or " ".join(str(part) or "-" for part in parts)


def _unpack(packed: Any) -> Answer:
    if isinstance(packed, str):
        return Answer(packed)
    return Answer("", {key: _placed(words.split()) for key, words in packed.items()})


def _placed(words: Sequence[str]) -> Placed:
    if words in (["room"], ["class"]):
        return Placed("room" if words == ["room"] else "class")
    cpus, mems, shares, rdt, blockio = ("" if word == "-" else word for word in words)
    return Placed(cpus=cpus, mems=mems, shares=int(shares), rdt=rdt, blockio=blockio)


def _record(cases: Sequence[Case]) -> Iterator[str]:
    versions = {}
    for program in (real.named("cri-resmgr"), *map(real.nri_plugin, _POLICIES.values())):
        assert program
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
        versions[program.name] = " ".join(re.findall(r"- version: +v?(\S+)", said.stdout + said.stderr)[:1])
    yield json.dumps({"date": datetime.date.today().isoformat(), **versions})
    seen = set()
    with ThreadPoolExecutor(2) as pool:
        for case, answers in zip(cases, pool.map(Case.ask, cases), strict=True):
            for key, answer in zip(case.keys, answers, strict=True):
                if key not in seen:
                    seen.add(key)
                    yield json.dumps([key, _pack(answer)], separators=(",", ":"))


def main() -> None:
    parser = argparse.ArgumentParser()
    real.add_options(parser.add_argument, ("cri-resmgr", "nri-plugin"))
    real.take_arguments(parser, parser.parse_args())
    cases = [case for each in (corpus() | annotated()).values() for case in each] + made_up()
    lines = list(_record(cases))
    _RECORDED.write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
