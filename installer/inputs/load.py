"""Everything that people give a run, brought together: what was asked, payload, configs.

Asks the host nothing and writes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from installer.errors import InvalidInputError
from installer.host.ports import KnownDigest, Validator
from installer.inputs.configs import Configs, find_agent_faults, load_configs, validate_with_binary
from installer.inputs.payload import Payload, load_payload, verify_payload
from installer.inputs.settings import Settings
from installer.model.names import Mode
from installer.model.paths import BINARY
from installer.model.plan import Changes


@dataclass(frozen=True, slots=True)
class Request:
    """What a person, or the daemon for one, asked for. `payload` and `configs` are directories readable by
    this process; a payload of None is not given.

    `who` asks, and `because` of what if nobody can be asked: for the history.
    `default_configs`: that no configs are given is meant, also on a node that was installed with some.
    `despite_pause`: act even on a paused node.
    `take_over`: an installation of cri-resmgr that another installer has made is taken over.
    `inspect`: the host is only looked at; inputs that are not given are those that were installed.
    `restarts_left`: begin nothing that would restart kubelet more often. `ask_first`: nothing that restarts
    it ("restarts"), nor a generation that was not verified on this host yet ("all"); what is not begun is
    said, so that it can be asked for. `unattended`: no person watches, so a person's hold stays.
    """

    mode: Mode
    settings: Settings
    payload: Path | None
    configs: Path | None = None
    inspect: bool = False
    who: str = "root"
    because: str = ""
    default_configs: bool = False
    retry: bool = False
    accept_pending: bool = False
    without_record: bool = False
    despite_pause: bool = False
    take_over: bool = False
    restarts_left: float = math.inf
    ask_first: str = ""
    unattended: bool = False


@dataclass(frozen=True, slots=True)
class Inputs:
    """A request with what it names, read and checked. A removal has no configs, and its payload only helps to
    recognise its own binary: it may be None."""

    request: Request
    payload: Payload | None
    configs: Configs

    @property
    def payload_digest(self) -> str:
        return self.payload.binary.digest if self.payload else ""


def load_inputs(request: Request, known: KnownDigest) -> Inputs:
    """Raises InvalidInputError with every fault of payload and configs."""
    faults: list[str] = []
    hints: list[str] = []
    payload, configs = None, Configs()
    removing = request.mode is Mode.REMOVE
    try:
        configs = Configs() if removing else load_configs(request.configs)
        faults += find_agent_faults(configs) if request.settings.proxy.agent == "disabled" else ()
    except InvalidInputError as error:
        faults += error.faults
        hints.append(error.hint)
    try:
        payload = load_payload(request.payload, known) if request.payload else None
    except InvalidInputError as error:
        if not removing:
            faults += error.faults
            hints.append(error.hint)
    if faults:
        raise InvalidInputError(faults, "; ".join(hint for hint in hints if hint))
    return Inputs(request, payload, configs)


def check_inputs(inputs: Inputs, changes: Changes, validator: Validator, *, proven: bool) -> None:
    """The expensive checks of what is about to be used, before anything is touched.

    The payload is read whole before its binary is written; the binary itself checks the configs, unless both
    have `proven` good on this host. Raises InvalidInputError, and RolledBackError where it could not be
    checked.
    """
    if inputs.payload is None or inputs.request.mode is Mode.REMOVE:
        return
    if any(change.path == BINARY for change in changes.files):
        verify_payload(inputs.payload)
    if proven:
        return
    binary = inputs.payload.source
    broken = validator.validate(binary, b"")
    if broken:
        raise InvalidInputError(
            [f"{binary}: does not start with any configuration: {broken}"],
            "unpack or build the payload again; nothing was touched",
        )
    faults = validate_with_binary(inputs.configs, binary, validator)
    if faults:
        raise InvalidInputError(faults, "correct the configs; nothing was touched")
