"""What a run wants: the operator's inputs and the host's facts, put together before the diff.

Loads payload and configs, asks how kubelet can be served, builds the desired
state. Writes nothing; asks the host nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from installer.desired import build_desired
from installer.desired.build import runtime_endpoint
from installer.errors import InvalidInputError
from installer.host.ports import Validator
from installer.inputs.configs import Configs, load_configs, validate_with_binary
from installer.inputs.payload import Payload, load_payload, verify_payload
from installer.inputs.settings import Settings
from installer.kubelet import Refusal, base_endpoint, choose_strategy
from installer.model.change import Changes
from installer.model.facts import Facts
from installer.model.finding import Finding, Severity
from installer.model.paths import BINARY
from installer.model.state import Desired
from installer.record.schema import Record


@dataclass(frozen=True, slots=True)
class Intent:
    """`desired` is empty for a removal, and where `refusals` say that kubelet cannot be served.

    `base_endpoint` is where the runtime is asked, empty if nobody knows. `payload` and `configs`
    are those of an installation.
    """

    desired: Desired
    base_endpoint: str
    payload: Payload | None = None
    configs: Configs | None = None
    refusals: tuple[Finding, ...] = ()

    @property
    def payload_digest(self) -> str:
        return self.payload.binary.digest if self.payload else ""


def form_installation(
    settings: Settings, facts: Facts, payload_directory: Path, configs_directory: Path | None, record: Record
) -> Intent:
    """The intent to install. Raises InvalidInputError with every fault of payload and configs."""
    payload, configs = _load_inputs(payload_directory, configs_directory, record)
    endpoint = runtime_endpoint(settings, facts)
    base = base_endpoint(facts.kubelet)
    choice = choose_strategy(facts.kubelet, settings)
    # A kubelet that is not there has no endpoint and no command line: preflight says the one thing.
    refused = [r for r in (endpoint, base, choice) if isinstance(r, Refusal)] if facts.kubelet.texts else []
    refusals = tuple(
        Finding(Severity.REFUSE, refusal.code, refusal.message, refusal.hint)
        for refusal in dict.fromkeys(refused)
    )
    known = endpoint if isinstance(endpoint, str) else ""
    if refusals or not facts.kubelet.texts:
        return Intent(Desired(), known, payload, configs, refusals)
    return Intent(build_desired(settings, facts, configs, payload), known, payload, configs)


def _load_inputs(
    payload_directory: Path, configs_directory: Path | None, record: Record
) -> tuple[Payload, Configs]:
    faults: list[str] = []
    hints: list[str] = []
    payload, configs = None, None
    try:
        configs = load_configs(configs_directory)
    except InvalidInputError as error:
        faults += error.faults
        hints.append(error.hint)
    try:
        payload = load_payload(payload_directory, record.known_digest)
    except InvalidInputError as error:
        faults += error.faults
        hints.append(error.hint)
    if payload is None or configs is None:
        raise InvalidInputError(faults, "; ".join(hint for hint in hints if hint))
    return payload, configs


def form_removal(facts: Facts, payload_directory: Path) -> Intent:
    """The intent to remove; the payload only helps to recognise its own binary, if it is there."""
    try:
        payload = load_payload(payload_directory)
    except InvalidInputError:
        payload = None
    endpoint = base_endpoint(facts.kubelet) if facts.kubelet.texts else ""
    return Intent(Desired(), endpoint if isinstance(endpoint, str) else "", payload)


def check_inputs(intent: Intent, changes: Changes, validator: Validator) -> None:
    """The expensive checks of the inputs that are about to be used: nothing was touched yet.

    The payload is read whole before its binary is written; the binary itself reads the
    configs. Raises InvalidInputError.
    """
    if intent.payload is None or intent.configs is None:
        return
    if any(change.path == BINARY for change in changes.files):
        verify_payload(intent.payload)
    binary = intent.payload.source
    broken = validator.validate(binary, b"")
    if broken:
        raise InvalidInputError(
            [f"{binary}: it does not start, whatever its configuration: {broken}"],
            "unpack or build the payload again; nothing was touched",
        )
    faults = validate_with_binary(intent.configs, binary, validator)
    if faults:
        raise InvalidInputError(faults, "correct the configs; nothing was touched")
