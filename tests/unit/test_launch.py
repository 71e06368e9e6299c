"""What stands between systemd and kubelet, by the command line."""

from __future__ import annotations

import pytest

from installer.inputs.systemd_syntax import merged, parse_exec, parse_unit
from installer.model.host import UnitText
from installer.node.kubelet_command import (
    Launch,
    Passing,
    came_through,
    find_launch,
    is_shell_script,
    judge_inline,
)


def launch(line: str) -> Launch:
    (found,) = merged(parse_unit(UnitText("k", f"[Service]\nExecStart={line}\n")), "Service", "ExecStart")
    return find_launch(parse_exec(found).words)


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("/usr/bin/kubelet --v=2", "/usr/bin/kubelet"),
        ("kubelet", "kubelet"),
        ("/usr/bin/nice -n -5 /usr/bin/kubelet --v=2", "/usr/bin/kubelet"),
        ("/usr/bin/env LANG=C PATH=/a:/b kubelet --v=2", "kubelet"),
        ("/usr/bin/env A=/x nice --adjustment=5 chrt -r 10 /opt/bin/kubelet", "/opt/bin/kubelet"),
        ("/usr/bin/ionice -c2 -n 0 numactl -N 0 --membind=0 taskset 0xf kubelet", "kubelet"),
        ("/usr/bin/flock -n /run/kubelet /usr/bin/kubelet --v=2", "/usr/bin/kubelet"),
        ("setsid stdbuf -oL prlimit --nofile=1024:unlimited systemd-cat nohup kubelet", "kubelet"),
        ("/usr/bin/taskset -c 0-3 /usr/bin/kubelet", "/usr/bin/kubelet"),
        ("/usr/bin/nice -n 5", "/usr/bin/nice"),
        ("/usr/bin/snap run kubelet.daemon", "/usr/bin/snap"),
    ],
)
def test_launchers_give_way(line: str, program: str) -> None:
    found = launch(line)
    assert (found.program, found.shell, found.inline) == (program, False, None)


@pytest.mark.parametrize(
    "line",
    [
        "systemd-cat -t kubelet /opt/script",
        "systemd-inhibit --who kubelet /opt/script",
        "env -a kubelet /opt/script",
        "runcon -t kubelet /opt/script",
        "env -u A sh -c 'exec kubelet $A'",
        "env -vi sh -c 'exec kubelet $A'",
        "env -S 'sh -c x' kubelet",
        "setpriv --reset-env sh -c 'exec kubelet $A'",
        "nice -n 5 env -i kubelet",
        "flock /run/kubelet -c kubelet",
        "flock -E 5 kubelet /opt/script",
        "setsid --fork kubelet",
        "taskset -p kubelet",
    ],
)
def test_any_other_option_makes_a_launcher_a_program_like_any_other(line: str) -> None:
    found = launch(line)
    assert found.inline is None
    assert not found.is_kubelet
    assert found.program.split("/")[-1] in line.split()[: 5 if "nice" in line else 1]


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
    (" exec kubelet\t--v=2 $@; ", Passing(appended=True)),
    ('exec nice -n -5 kubelet ${A} "${@}"', Passing(appended=True)),
    ("exec kubelet $A $B", Passing(variable="B")),
    ("exec kubelet --node-labels='a b' $A ${B}", Passing(variable="B")),
]
#: What a shell may do with a flag behind its command: each of these keeps it from kubelet, or could.
REFUSED = [
    *("", "exec kubelet --v=2", 'kubelet "$@"', 'exec kubelet "$@" --v=2', 'exec kubelet "$@" # the rest'),
    *('exec kubelet "$A"', "exec kubelet ${A:-x}", 'exec kubelet "$@" >/log', 'exec kubelet "$@" & wait'),
    *(
        'exec kubelet $(cat /args) "$@"',
        'exec kubelet "$@"; sleep 1',
        'exec echo "$@"',
        'exec -a x kubelet "$@"',
    ),
    *('set -- --v=2; exec kubelet "$@"', 'set -- "$@" --x; exec kubelet "$@"', 'shift; exec kubelet "$@"'),
    *('eval exec kubelet "$@"', 'exit; exec kubelet "$@"', 'true\nexec kubelet "$@"', "B=1; exec kubelet $B"),
    *(
        "unset B; exec kubelet $B",
        "printf -v B x; exec kubelet $B",
        "IFS=x; exec kubelet $B",
        "B=1 exec kubelet $B",
    ),
    *(
        'exec() { true; }; exec kubelet "$@"',
        'exec kubelet <<E "$@"',
        'exec kubelet \\\n# "$@"',
        "exec kubelet #$B $B",
    ),
    *("exec kubelet 'a $B", 'exec kubelet "a $B', "exec env -i kubelet $B", "exec kubelet\\ $B"),
]


@pytest.mark.parametrize(("text", "passing"), SERVED)
def test_one_plain_exec_hands_on(text: str, passing: Passing) -> None:
    assert judge_inline(Launch(inline=text, placed=True)) == passing


@pytest.mark.parametrize("text", REFUSED)
def test_anything_else_that_a_shell_is_given_is_not_judged(text: str) -> None:
    found = judge_inline(Launch(inline=text, placed=True))
    assert found.why_not
    assert (found.appended, found.variable) == (False, "")


def test_an_argument_needs_a_name_before_it() -> None:
    assert judge_inline(launch("""/bin/sh -c 'exec kubelet "$@"' kubelet""")).appended
    assert "$0" in judge_inline(launch("""/bin/sh -c 'exec kubelet "$@"'""")).why_not
    assert "$0" in judge_inline(launch("""/bin/sh -c 'exec kubelet "$@"' $ARGS""")).why_not


def test_an_environment_that_a_launcher_changes() -> None:
    assert "another value" in judge_inline(launch("/usr/bin/env A=x sh -c 'exec kubelet $A'")).why_not
    assert judge_inline(launch("/usr/bin/env A=x sh -c 'exec kubelet \"$@\"' k")).appended


def test_which_programs_are_scripts() -> None:
    assert is_shell_script("#!/bin/bash -eu\n")
    assert is_shell_script("#! /usr/bin/env bash\n")
    assert not is_shell_script("#!/usr/bin/python3\n")
    assert not is_shell_script("\x7fELF")


def test_what_a_running_process_shows() -> None:
    words = ("/usr/bin/kube-start", "--v=2", "--x")
    assert came_through(words, ("/opt/real", "--v=2", "--x"), "/opt/real")
    assert came_through(words, ("python3", "-I", "/usr/bin/kube-start", "--other"), "/usr/bin/python3")
    assert came_through(words, ("mine", "--other"), "/usr/bin/kube-start")
    assert not came_through(words, ("/opt/real", "--v=3"), "/opt/real")
    assert not came_through(words[:1], ("/opt/real", "--v=3"), "/opt/real")
    assert not came_through(words, (), "")
    of_the_same_name = ("/opt/bin/kubelet",)
    assert not came_through(of_the_same_name, ("/usr/bin/kubelet", "--v=3"), "/usr/bin/kubelet")
    assert came_through(("kubelet-agent",), ("/usr/bin/kubelet-agent",), "/usr/bin/kubelet-agent")
