"""Units of every shape on a real systemd: what we read from the files is what systemd has read.

Many units at once, one daemon-reload, and each is compared. Where we refuse a unit that systemd takes,
that is said, and not wrong: kubelet is not served then. To read something else would be.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from installer.errors import UnservableHostError
from installer.host.files import RootedFiles
from installer.host.kubelet_files import matching
from installer.host.systemd import BusSystemd
from installer.inputs.settings import KubeletSettings, Settings
from installer.inputs.systemd_syntax import ExecCommand, parse_environment_file
from installer.model.host import KubeletBase, UnitDetail, UnitState, UnitText
from installer.node.desired import desired_kubelet
from installer.node.kubelet_command import parse_base
from installer.node.kubelet_strategy import Choice, choose_strategy, effective
from installer.node.snapshot import read_environment_files
from tests.faults import Report
from tests.lib.throwaway.host import ThrowawayHost

_BATCH = 300
_DIRECTORY = "/run/systemd/system"
_FILES = "/run/agree"

_SPECIFIER = re.compile("%([%ni])")


def _each(texts: str) -> tuple[str, ...]:
    return tuple(texts.split(" ¦ "))


_ENDS = ("\n",) * 30 + _each(
    "\r\n ¦ \r\n ¦ \r ¦ \n\r ¦ \n\n ¦ \\\n ¦  \\\n ¦ \\\n# c\n ¦  \\\n  ; c \\\n ¦ \\\\\n ¦ \x00\n"
    " ¦ \x0c\n ¦ \u2028\n"
)
_SECTIONS = ("[Service]",) * 8 + ("[Unit]", " [Service] ", "\t[Service]", "[X-Other]", "[Other]", "[service]")
_WORDS = _each(
    "--v=2 ¦ --a ¦ b ¦ a b ¦ \xe9\u20ac ¦ \U0001f600 ¦ --x=y=z ¦ #no ¦ a;b ¦ - ¦ = ¦ \u2028 ¦ \x0c"
    ' ¦ \x85 ¦ \xa0 ¦ "a b" ¦ \'a b\' ¦ a"b c"d ¦ x\'y z\' ¦ "" ¦ \'\' ¦ "a ¦ it\'s ¦ "it\'s"'
    ' ¦ "\\"" ¦ \'\\\'\' ¦ "a\\ b" ¦ \\n ¦ \\t ¦ \\s ¦ \\x41 ¦ \\101 ¦ \\u00e9 ¦ \\U0001F600'
    " ¦ \\\\ ¦ \\q ¦ \\\" ¦ \\' ¦ \\  ¦ a\\ b ¦ \\x00 ¦ \\000 ¦ \\xe9 ¦ \\351 ¦ \\777 ¦ \\ud800"
    " ¦ \\uffff ¦ \\u12 ¦ \\x4 ¦ \\8 ¦ \\U00110000 ¦ $X ¦ ${X} ¦ $$ ¦ $$X ¦ $X$Y ¦ ${X}b ¦ $ ¦ ${"
    " ¦ $1 ¦ %% ¦ %%n ¦ a%%b ¦ %n ¦ %i ¦ %! ¦ % ¦ \\; ¦ ;"
)
_COMMANDS = ("/bin/true",) * 8 + _each(
    "true ¦ /bin//true ¦ /bin/../bin/true ¦ \"/bin/true\" ¦ '/bin/true' ¦ /bin/tr\\x75e ¦ /no such"
    " ¦ relative/x ¦ /bin/true/ ¦  ¦ % ¦ /bin/%%x ¦ $X ¦ /bin/$X"
)
_PREFIXES = ("",) * 10 + _each('- ¦ @ ¦ : ¦ + ¦ ! ¦ !! ¦ -@ ¦ @- ¦ | ¦ -  ¦ "- ¦ -- ¦ ::')
_ASSIGNED = _each(
    'A=1 ¦ B= ¦ A=x=y ¦ "C=a b" ¦ \'C=a b\' ¦ D="a b" ¦ E=\\n ¦ F=%% ¦ H=\\x41 ¦ I=\xe9 ¦ J ¦ =x'
    " ¦ 1A=b ¦ K-L=m ¦ M=\\q ¦ N=' ¦ O=\"a ¦ P=$A ¦ Q=\\\\ ¦ R=\\u00e9 ¦ S=\\xe9 ¦ T=a\\ b ¦ U=;"
    " ¦ V=# ¦ W=% ¦ X=\\x00"
)
_PATHS = _each(
    "/run/agree/a ¦ /run/agree/b ¦ -/run/agree/a ¦ -/run/agree/none ¦ //run//agree/a/"
    ' ¦ -/run/./agree/b ¦ /run/agree/../agree/a ¦ - /run/agree/a ¦ "/run/agree/a" ¦ /run/agree/a b'
    " ¦ /run/agree/%% ¦ /run/agree/* ¦ relative ¦ - ¦ --/run/agree/a ¦ /run/agree/\xe9"
    " ¦ /run/agree/% ¦ /run/agree/a\\x41 ¦ -%%"
)


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """The unit file and its drop-ins in order, by path, as bytes."""

    name: str
    texts: dict[str, bytes]

    def base(self, unit: UnitState, detail: UnitDetail) -> KubeletBase:
        """As they would be of a kubelet."""
        texts = (UnitText(path, raw.decode("utf-8", "surrogateescape")) for path, raw in self.texts.items())
        return KubeletBase(detail, tuple(texts))

    def __str__(self) -> str:
        return " + ".join(str(raw) for raw in self.texts.values())


def make_case(number: int, chance: random.Random) -> Case:
    name = f"agree-{number}.service"
    texts = {f"{_DIRECTORY}/{name}": _text(chance, 1)}
    for index in range(chance.choice((0, 0, 1, 2))):
        texts[f"{_DIRECTORY}/{name}.d/{index}0-x.conf"] = _text(chance, 0)
    return Case(name, texts)


def _text(chance: random.Random, commands: int) -> bytes:
    """Mostly what people write; now and then what nobody would."""
    lines = [chance.choice(("[Service]", "[Service]", "[Unit]\nDescription=x\n[Service]", "\ufeff[Service]"))]
    keys = ["ExecStart"] * commands + chance.choices(
        ("Environment", "EnvironmentFile", "ExecStart", "section", "comment", "junk", "reset"),
        (8, 6, 1, 1, 1, 1, 1),
        k=chance.randint(1, 4),
    )
    chance.shuffle(keys)
    lines += [_line(key, chance) for key in keys]
    text = "".join(line + chance.choice(_ENDS) for line in lines)
    return text.encode() if chance.random() < 0.97 else text.encode() + b"# \xff\n"


def _line(key: str, chance: random.Random) -> str:
    equals = chance.choice(("=",) * 12 + (" = ", "=\t", " ="))
    if key == "section":
        return chance.choice(_SECTIONS)
    if key == "comment":
        return chance.choice(("# x", "; x", "  # x", "# x \\", "#ExecStart=/bin/false"))
    if key == "junk":
        return chance.choice(
            ("nonsense", "execstart=/bin/false", "X-Key=1", "=x", "ExecStart", "\u2028Environment=Z=1")
        )
    if key == "reset":
        return f"{chance.choice(('ExecStart', 'Environment', 'EnvironmentFile'))}{equals}"
    if key == "ExecStart":
        words = chance.choices(_WORDS, k=chance.randint(0, 4))
        return f"ExecStart{equals}{chance.choice(_PREFIXES)}{' '.join((chance.choice(_COMMANDS), *words))}"
    if key == "EnvironmentFile":
        return f"EnvironmentFile{equals}{chance.choice(_PATHS)}"
    return f"Environment{equals}{' '.join(chance.choices(_ASSIGNED, k=chance.randint(1, 3)))}"


def differences(case: Case, unit: UnitState, detail: UnitDetail) -> Iterable[str]:
    """What systemd has read otherwise."""
    base = parse_base(case.base(unit, detail))
    try:
        commands = base.commands()
    except ValueError:
        return
    if len(commands) == 1 and not commands[0].several:
        argv = [line.argv for line in detail.exec_start]
        if argv != [_argv(commands[0], case.name)]:
            yield f"ExecStart: {argv}, we read {_argv(commands[0], case.name)}"
    variables = dict(pair.partition("=")[::2] for pair in unit.environment)
    if variables != base.environment({}):
        yield f"Environment: {variables}, we read {base.environment({})}"
    files = tuple(path for path, _optional in detail.environment_files)
    read = base.environment_files()
    if files not in (read, _expanded(read, case.name)):
        yield f"EnvironmentFile: {files}, we read {read}"


def _argv(command: ExecCommand, name: str) -> tuple[str, ...]:
    return _expanded(command.words[1:] if "@" in command.prefixes else command.words, name)


def _expanded(words: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Specifiers are not expanded by us: nothing that we decide depends on one."""
    return tuple(
        _SPECIFIER.sub(lambda found: {"%": "%", "n": name, "i": ""}[found[1]], word) for word in words
    )


class Laboratory:
    """One host, on which batch after batch is tried. `tried` counts the units that could be compared."""

    def __init__(self, host: ThrowawayHost, seed: int | None) -> None:
        self._host = host
        self._chance = random.Random(seed)
        self._systemd = BusSystemd(RootedFiles(host.root))
        self.tried = self.repeated = self.environments = self.patterns = 0

    def close(self) -> None:
        self._systemd.close()

    def try_units(self, count: int) -> list[str]:
        """Reads units as systemd has; then puts our drop-in, which repeats their command, behind each that
        could be kubelet's: it adds what it should, and nothing else. A line for each that is otherwise."""
        shutil.rmtree(self._host.root / _DIRECTORY[1:], ignore_errors=True)
        cases = [make_case(number, self._chance) for number in range(count)]
        self._lay({path: raw for case in cases for path, raw in case.texts.items()})
        seen = {case: shown for case in cases if (shown := self._show(case.name)) is not None}
        self.tried += len(seen)
        wrong = [f"{case}: {line}" for case, found in seen.items() for line in differences(case, *found)]
        choices = {case: choice for case in seen if (choice := self._choose(case, *seen[case])) is not None}
        base = "unix:///run/containerd/containerd.sock"
        drop_ins = {
            case: desired_kubelet(_settings(case), seen[case][1], choices[case], base) for case in choices
        }
        self._lay(
            {
                files[0].path: files[0].content
                for files, _ in drop_ins.values()
                if isinstance(files[0].content, bytes)
            }
        )
        self.repeated += len(drop_ins)
        for case, (_, desired) in drop_ins.items():
            now, (unit, detail) = self._show(case.name), seen[case]
            what = effective(now[1], now[0], desired) if now else "it is not loaded any more"
            if now and not what:
                what = _added(unit, detail, *now, desired.variable)
            wrong += [f"{case}: with our drop-in, {what}"] if what else []
        return wrong

    def _lay(self, texts: Mapping[str, bytes]) -> None:
        for path, raw in texts.items():
            place = self._host.root / path[1:]
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(raw)
        self._systemd.daemon_reload(timeout=60)

    def _show(self, name: str) -> tuple[UnitState, UnitDetail] | None:
        """Nothing where systemd does not load the unit, or cannot say what it has read: D-Bus has no bytes
        that are not UTF-8. We serve none of them."""
        try:
            unit = self._systemd.unit(name)
            return (unit, self._systemd.detail(name)) if unit.load_state == "loaded" else None
        except UnservableHostError:
            return None

    @staticmethod
    def _choose(case: Case, unit: UnitState, detail: UnitDetail) -> Choice | None:
        base = case.base(unit, detail)
        choice = choose_strategy(parse_base(base), _settings(case), base)
        # What a shell makes of a variable is not systemd's.
        return choice if isinstance(choice, Choice) and not choice.passed_on else None

    def try_environments(self, count: int) -> list[str]:
        """What a process is given from EnvironmentFiles is what we read there."""
        texts = [_environment(self._chance) for _ in range(count)]
        units = {
            f"{_DIRECTORY}/agree-env-{number}.service": (
                f"[Service]\nType=oneshot\nEnvironmentFile=-{_FILES}/{number}\n"
                f"ExecStart=/bin/cp /proc/self/environ {_FILES}/{number}.out\n"
            )
            for number in range(count)
        }
        shutil.rmtree(self._host.root / _FILES[1:], ignore_errors=True)
        files = {f"{_FILES}/{number}": text for number, text in enumerate(texts)}
        self._lay(files | {path: text.encode() for path, text in units.items()})
        self._host.systemctl("start", *(path.rpartition("/")[2] for path in units))
        self.environments += count
        wrong = []
        for number, text in enumerate(texts):
            theirs = _variables((self._host.root / f"{_FILES[1:]}/{number}.out").read_bytes())
            ours = {
                name: value
                for name, value in parse_environment_file(text.decode("utf-8", "surrogateescape")).items()
                if name.startswith("V")
            }
            if theirs != ours:
                wrong.append(f"{text!r}: {theirs}, we read {ours}")
        return wrong

    def try_patterns(self, count: int) -> list[str]:
        """The files that a pattern means, and which unit does not start for want of one."""
        names = [f"agree-glob-{number}.service" for number in range(count)]
        shutil.rmtree(self._host.root / _FILES[1:], ignore_errors=True)
        texts: dict[str, str] = {}
        for number, name in enumerate(names):
            place = f"{_FILES}/{number}"
            for index, file in enumerate(self._chance.sample(_NAMES, 8)):
                texts[f"{place}/{file}"] = f"VLAST={index}\nV{index}=\n"  # the last one wins
            lines = [
                f"EnvironmentFile={self._chance.choice(('', '-'))}{place}/{pattern}\n"
                for pattern in self._chance.choices(_PATTERNS, k=self._chance.randint(1, 2))
            ]
            command = f"ExecStart=/bin/cp /proc/self/environ {place}.out\n"
            texts[f"{_DIRECTORY}/{name}"] = f"[Service]\nType=oneshot\n{''.join(lines)}{command}"
        self._lay({path: text.encode() for path, text in texts.items()})
        for number in range(count):
            (self._host.root / f"{_FILES[1:]}/{number}/dangling").symlink_to("nowhere")
        self._host.systemctl("start", *names, check=False)
        self.patterns += count
        return [line for number, name in enumerate(names) for line in self._misread(number, name)]

    def _misread(self, number: int, name: str) -> Iterator[str]:
        files = RootedFiles(self._host.root)
        detail = self._systemd.detail(name)
        found = read_environment_files(files, detail)
        unit = files.read(f"{_DIRECTORY}/{name}") or b""
        base = KubeletBase(detail, (UnitText(name, unit.decode()),))
        needed = (path for path, optional in detail.environment_files if not optional)
        ours: dict[str, str] | None = parse_base(base).environment(found)
        if any(len(found[path]) != max(1, len(matching(files, path))) for path in needed):
            ours = None  # it does not start
        given = files.read(f"{_FILES}/{number}.out")
        theirs = None if given is None else _variables(given)
        if theirs != ours:
            yield f"{unit!r} with {files.list(f'{_FILES}/{number}')}: {theirs}, we read {ours}"


def _variables(environ: bytes) -> dict[str, str]:
    """Those of ours in what /proc/<pid>/environ has."""
    pairs = (pair.partition("=") for pair in environ.decode("utf-8", "surrogateescape").split("\0"))
    return {name: value for name, _, value in pairs if name.startswith("V")}


def _settings(case: Case) -> Settings:
    kubelet = KubeletSettings(unit=case.name, strategy="exec-start", drop_in_directory=_DIRECTORY)
    return Settings(kubelet=kubelet)


def _added(unit: UnitState, detail: UnitDetail, now: UnitState, now_detail: UnitDetail, variable: str) -> str:
    """What our drop-in has changed besides what it should."""
    line, new = detail.exec_start[0], now_detail.exec_start[0]
    if (new.path, new.argv) != (line.path, (*line.argv, f"${variable}")):
        return f"ExecStart is {new} and was {line}"
    if now.environment[:-1] != unit.environment:
        return f"Environment is {now.environment} and was {unit.environment}"
    if now_detail.environment_files[:-2] != detail.environment_files:
        return f"EnvironmentFile is {now_detail.environment_files} and was {detail.environment_files}"
    return ""


_NAMES = _each(
    "a.env ¦ b.env ¦ B.env ¦ ab.env ¦ 1.env ¦ 10.env ¦ 2.env ¦ .env ¦ .a.env ¦ a-b ¦ a ¦ ] ¦ [ ¦ [a] ¦ ^ ¦ !"
    " ¦ * ¦ a*b ¦ \\ ¦ \xe9.env ¦ d/a.env ¦ d/b.env ¦ e/a.env ¦ e/.a.env ¦ .d/a.env ¦ ~ ¦ {a,b} ¦ a b"
)
_PATTERNS = _each(
    "* ¦ *.env ¦ ?.env ¦ ??.env ¦ [ab].env ¦ [!ab].env ¦ [^a]* ¦ [a-z]*"
    " ¦ [1-2]*.env ¦ .* ¦ .*.env ¦ */a.env ¦ */* ¦ ?/?.env ¦ .d/* ¦ d/*.env ¦ [ ¦ [a ¦ []] ¦ []a]* ¦ [[]"
    " ¦ a.env ¦ none ¦ none* ¦ none/* ¦ */none ¦ dangling ¦ dang* ¦ d ¦ d* ¦ a[*]b ¦ {a,b} ¦ {a,b}* ¦ ~ ¦ a-?"
    " ¦ [z-a]* ¦ [a-]* ¦ [!-a]* ¦ *a* ¦ **.env ¦ ./*.env ¦ */ ¦ d/ ¦ \xe9* ¦ ??? ¦ ?"
    " ¦ a\\*b ¦ \\[a\\] ¦ \\.env ¦ \\a.env ¦ [.]env"
)
_VALUES = _each(
    "x ¦ a b ¦  a  ¦ \xe9\u20ac ¦ \u2028 ¦ \xa0 ¦ \x85 ¦ \x0c ¦ \x1b ¦ # ¦ ; ¦ = ¦ $V ¦ ${V} ¦ `id`"
    ' ¦ %n ¦ %% ¦ " ¦ \' ¦ "a b" ¦ \'a b\' ¦ "a"b ¦ a\'b\' ¦ "a" "b" ¦ \'\\\' ¦ \\ ¦ \\\\ ¦ \\n'
    ' ¦ \\" ¦ "\\n\\"\\$" ¦ \\  ¦ \t ¦ \\\n ¦ "\\\n" ¦ "a\nb" ¦ \'a\nb\' ¦ \\\r ¦ "\\\r"'
    " ¦ \r ¦ \nV9=z ¦ \\\nV9=z ¦ \\\\\nV9=z"
)
_STARTS = ("V%d=",) * 8 + _each(
    "V%d = ¦  V%d= ¦ \tV%d\t=  ¦ export V%d= ¦ V%d ¦ \xa0V%d= ¦ V%d\u2028= ¦ V%d\r= ¦ # V%d="
    " ¦ ; V%d= ¦ V-%d= ¦ V%d#= ¦ \ufeffV%d= ¦ ="
)


def _environment(chance: random.Random) -> bytes:
    lines = []
    for number in range(chance.randint(1, 4)):
        start = chance.choice(_STARTS).replace("%d", str(number))
        value = "".join(chance.choices(_VALUES, k=chance.randint(0, 3)))
        # Where a comment ends that has a backslash at its end is not the same for every systemd.
        value = value.replace("\\", "") + "\n" if start[0] in "#;" else value
        lines.append(start + value + chance.choice(("\n",) * 8 + ("\r\n", "\r", "\n\n", "")))
    text = "".join(lines).encode()
    return text + chance.choice((b"",) * 20 + (b"V7=\xff\n", b"V8=\0\n", b"V6=\\"))


def run(report: Report, amount: int) -> None:
    """On one host, so many units, and half as many EnvironmentFiles and units with patterns of them."""
    with ThrowawayHost() as host:
        laboratory = Laboratory(host, None)
        try:
            sizes: Sequence[int] = [min(_BATCH, amount - done) for done in range(0, amount, _BATCH)]
            units = [line for size in sizes for line in laboratory.try_units(size)]
            report(
                "units read as systemd has",
                laboratory.tried,
                [line for line in units if "with our" not in line],
            )
            report(
                "drop-ins that repeat a command",
                laboratory.repeated,
                [line for line in units if "with our" in line],
            )
            environments = [line for size in sizes for line in laboratory.try_environments((size + 1) // 2)]
            report("EnvironmentFiles read as systemd has", laboratory.environments, environments)
            patterns = [line for size in sizes for line in laboratory.try_patterns((size + 1) // 2)]
            report("patterns of EnvironmentFile= expanded as systemd does", laboratory.patterns, patterns)
        finally:
            laboratory.close()
