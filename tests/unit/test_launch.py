"""What stands between systemd and kubelet, by the command line and the text of a script."""

from __future__ import annotations

import pytest

from installer.kubelet.launch import (
    Launch,
    Passing,
    came_through,
    find_launch,
    is_script,
    judge_inline,
    judge_script,
    misses_variable,
)
from installer.model.snapshot import UnitText
from installer.systemd_syntax.unit_file import merged, parse_exec, parse_unit


def launch(line: str) -> Launch:
    (found,) = merged(parse_unit(UnitText("k", f"[Service]\nExecStart={line}\n")), "Service", "ExecStart")
    return find_launch(parse_exec(found).words)


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("/usr/bin/kubelet --v=2", "/usr/bin/kubelet"),
        ("kubelet", "kubelet"),
        ("/usr/bin/nice -n -5 /usr/bin/kubelet --v=2", "/usr/bin/kubelet"),
        ("/usr/bin/env -u X LANG=C PATH=/a:/b kubelet --v=2", "kubelet"),
        ("/usr/bin/env A=/x nice --adjustment 5 chrt -r 10 /opt/bin/kubelet", "/opt/bin/kubelet"),
        ("/usr/bin/taskset -c 0-3 /usr/bin/kubelet", "/usr/bin/kubelet"),
        ("/usr/bin/nice -n 5", ""),
        ("/usr/bin/snap run kubelet.daemon", "/usr/bin/snap"),
    ],
)
def test_launchers_give_way(line: str, program: str) -> None:
    found = launch(line)
    assert (found.program, found.shell, found.inline) == (program, False, None)


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("/bin/sh /opt/kubelet.sh -c $A", "/opt/kubelet.sh"),
        ("/bin/bash -o pipefail -eu /opt/kubelet.sh", "/opt/kubelet.sh"),
        ("/usr/bin/env A=1 bash --norc /opt/kubelet.sh", "/opt/kubelet.sh"),
        ("/bin/busybox ash /opt/kubelet.sh", "/opt/kubelet.sh"),
    ],
)
def test_a_shell_with_a_script(line: str, program: str) -> None:
    found = launch(line)
    assert (found.program, found.shell, found.inline) == (program, True, None)


@pytest.mark.parametrize(
    ("line", "inline", "placed"),
    [
        ("/bin/sh -c 'exec kubelet'", "exec kubelet", False),
        ("/usr/bin/bash -euxc 'kubelet' $A", "kubelet", False),
        ("/usr/bin/env LANG=C bash -o pipefail -c 'kubelet' kubelet $A", "kubelet", True),
        ("/bin/busybox sh -ec 'kubelet' k", "kubelet", True),
    ],
)
def test_a_shell_with_a_command(line: str, inline: str, placed: bool) -> None:
    found = launch(line)
    assert (found.inline, found.placed) == (inline, placed)


def test_containers_and_kubelets_by_name() -> None:
    assert launch("/usr/bin/docker run --net=host kubelet /kubelet").is_container
    assert launch("/usr/bin/kubelet").is_kubelet
    assert launch("/usr/bin/hyperkube kubelet").is_kubelet
    assert not launch("/bin/sh -c 'exec kubelet'").is_kubelet


SERVED = [
    ('exec /usr/bin/kubelet --v=2 "$@"', Passing(appended=True)),
    ('# why\nset -eu\n\nexec kubelet \\\n  --v=2 \\\n  "$@"\n', Passing(appended=True)),
    ('set -- --v=2 "$@"\nexec kubelet $@;', Passing(appended=True)),
    ('mkdir -p /x\nexec 2>&1\nexec "$kubelet" ${A} "${@}"', Passing(appended=True)),
    ("exec kubelet $A $B", Passing(variable="B")),
    ("OTHER=1\nexec kubelet $A ${B}", Passing(variable="B")),
]
REFUSED = [
    ("", "last line"),
    ("exec kubelet --v=2", "neither"),
    ('kubelet "$@"', "last line"),
    ('exec kubelet "$@" --v=2', "neither"),
    ('exec kubelet "$@" # the rest', "neither"),
    ('exec kubelet "$A"', "neither"),
    ("exec kubelet ${A:-x}", "neither"),
    ('exec kubelet "$@" >/log', "last line"),
    ('exec kubelet $(cat /args) "$@"', "last line"),
    ('exec kubelet "$@"; sleep 1', "last line"),
    ('if a; then\n exec kubelet --x\nfi\nexec kubelet "$@"', "more than one"),
    ('set -- --v=2\nexec kubelet "$@"', "replaces its arguments"),
    ("B=--v=2\nexec kubelet $B", "may set $B"),
    ("export B+=x\nexec kubelet $B", "may set $B"),
    (': "${B:=x}"\nexec kubelet $B', "may set $B"),
    (". /etc/default/kubelet\nexec kubelet $B", "may set $B"),
    ("[ -f /x ] && . /x\nexec kubelet $B", "may set $B"),
    ("read -r B </x\nexec kubelet $B", "may set $B"),
    ("exec kubelet " + "x " * 20_000 + '"$@"', "last line"),
]


@pytest.mark.parametrize(("text", "passing"), SERVED)
def test_scripts_that_hand_on(text: str, passing: Passing) -> None:
    assert judge_script(Launch("/x", shell=True), f"#!/bin/sh\n{text}") == passing


@pytest.mark.parametrize(("text", "why"), REFUSED)
def test_scripts_of_which_that_is_not_certain(text: str, why: str) -> None:
    found = judge_script(Launch("/x", shell=True), f"#!/bin/sh\n{text}")
    assert not found.appended
    assert not found.variable
    assert why in found.why_not


def test_an_argument_needs_a_name_before_it() -> None:
    assert judge_inline(launch("""/bin/sh -c 'exec kubelet "$@"' kubelet""")).appended
    assert "$0" in judge_inline(launch("""/bin/sh -c 'exec kubelet "$@"'""")).why_not
    assert "$0" in judge_inline(launch("""/bin/sh -c 'exec kubelet "$@"' $ARGS""")).why_not


def test_an_emptied_environment() -> None:
    assert "env -i" in judge_inline(launch("/usr/bin/env -i sh -c 'exec kubelet $A'")).why_not
    assert judge_inline(launch("/usr/bin/env - sh -c 'exec kubelet \"$@\"' k")).appended


def test_which_programs_are_scripts() -> None:
    assert is_script(Launch("/x"), "#!/bin/bash -eu\n")
    assert is_script(Launch("/x"), "#! /usr/bin/env bash\n")
    assert is_script(Launch("/x", shell=True), "echo\n")
    assert not is_script(Launch("/x"), "#!/usr/bin/python3\n")
    assert not is_script(Launch("/x"), "\x7fELF")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("exec kubelet $ARGS", ""),
        ('exec kubelet "${ARGS:-}" --v=2', ""),
        ("exec kubelet $ARGS_OLD", "does not use"),
        ("# $ARGS\nexec kubelet", "does not use"),
        (". /lib/kubelet.sh\nstart", ""),
        ("exec kubelet $ARGS --container-runtime-endpoint=/x.sock", "behind $ARGS"),
        ("exec kubelet --container-runtime-endpoint=/x.sock $ARGS", ""),
    ],
)
def test_a_variable_that_settings_name(text: str, found: str) -> None:
    assert found in misses_variable(text, "ARGS")
    assert bool(found) == bool(misses_variable(text, "ARGS"))


def test_what_a_running_process_shows() -> None:
    words = ("/usr/bin/kube-start", "--v=2", "--x")
    assert came_through(words, ("/opt/real", "--v=2", "--x"), "/opt/real")
    assert came_through(words, ("python3", "-I", "/usr/bin/kube-start", "--other"), "/usr/bin/python3")
    assert came_through(words, ("mine", "--other"), "/usr/bin/kube-start")
    assert not came_through(words, ("/opt/real", "--v=3"), "/opt/real")
    assert not came_through(words[:1], ("/opt/real", "--v=3"), "/opt/real")
    assert not came_through(words, (), "")
