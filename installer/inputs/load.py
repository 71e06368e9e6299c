"""Everything that people give a run: the request, the payload, the configs.

Asks the host nothing and writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from installer.errors import InvalidInputError
from installer.host.ports import KnownDigest, Validator
from installer.inputs.configs import Configs, find_agent_faults, load_configs, validate_with_binary
from installer.inputs.payload import Payload, load_payload, verify_payload
from installer.inputs.settings import Settings
from installer.model.fleet import AskFirst
from installer.model.names import Mode
from installer.model.paths import BINARY
from installer.model.plan import Changes


@dataclass(frozen=True, slots=True)
class Consent:
    """What a run refuses to do unless a person has agreed to it, by an option or in the settings."""

    retry: bool = False
    accept_pending: bool = False
    without_record: bool = False
    despite_pause: bool = False  # act even on a paused node
    take_over: bool = False  # take over an installation of cri-resmgr from another installer


@dataclass(frozen=True, slots=True)
class Mandate:
    """On whose behalf a run acts, and within which limits: by default for root, who watches, and none."""

    who: str = "root"  # asks for the run, for the history
    because: str = ""  # why the daemon asks, for the history
    unattended: bool = False  # no person watches the run, so a person's hold stays
    restarts_left: float = math.inf  # begin nothing that would restart kubelet more often
    ask_first: AskFirst = AskFirst.NOTHING  # report what is planned, and needs a permit, instead
    begins: str | None = None  # the only generation that may begin without a permit; None: any


@dataclass(frozen=True, slots=True)
class Request:
    """What a person asks for, or the daemon on a person's behalf: what is wanted, with what consent, and by
    whose mandate."""

    mode: Mode
    settings: Settings
    payload: Path | None  # a directory that this process can read; None: not given
    configs: Path | None = None  # the same
    # Having no configs is intended, even on a node that was installed with some.
    default_configs: bool = False
    inspect: bool = False  # only look at the host; inputs that are not given are those that were installed
    asked: Mapping[str, str] = field(default_factory=dict)  # the options to remember
    consent: Consent = Consent()
    mandate: Mandate = Mandate()


@dataclass(frozen=True, slots=True)
class Inputs:
    """A request with everything it names, read and checked."""

    request: Request
    payload: Payload | None  # optional for a removal: it helps to recognise our binary
    configs: Configs  # none for a removal

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

    Reads the whole payload before its binary is written, and has the binary check the configs unless both
    have `proven` good on this host. Raises InvalidInputError, or RolledBackError if they could not be
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
        remedy = "unpack or build the payload again"
        if broken.endswith("Permission denied"):
            remedy = "its file system may be mounted noexec, as /tmp often is: unpack the payload elsewhere"
        raise InvalidInputError(
            [f"{binary}: does not start with any configuration: {broken}"], f"{remedy}; nothing was touched"
        )
    faults = validate_with_binary(inputs.configs, binary, validator)
    if faults:
        raise InvalidInputError(faults, "correct the configs; nothing was touched")
