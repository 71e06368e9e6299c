"""One question of `turns.py`, in a process that soon ends."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from installer.cluster.ask import Ask
from installer.cluster.kubeapi import Api, KubeApi
from installer.cluster.node_objects import EVENTS_PATH, build_event
from installer.cluster.pod_context import PodContext
from installer.cluster.turns import Question
from installer.errors import InvalidInputError
from installer.model.fleet import FleetAnswer, FleetRequest
from installer.model.jsontext import from_json, to_json


def parse_request(text: str) -> Question:
    """Raises InvalidInputError."""
    try:
        return from_json(Question, text)
    except ValueError as error:
        raise InvalidInputError([f"the request is not one of the daemon's: {error}"]) from None


def turn(text: str) -> str:
    """Asks for the turn, or tells of its end. Raises InvalidInputError where the daemon did not ask."""
    asked = parse_request(text)
    context, deadline = asked.context, time.monotonic() + asked.seconds
    api = KubeApi(context.host, context.port, Path(context.account), deadline)
    try:
        return to_json(talk(context, asked.request, api, time.time))
    finally:
        api.close()


def talk(context: PodContext, request: FleetRequest, api: Api, clock: Callable[[], float]) -> FleetAnswer:
    """The requests. `clock` is the time of the epoch where the server does not say it."""
    ask = Ask(context, request, api, clock, random.random)
    answer = ask.begin(request.work) if request.work else ask.end()
    if answer.tripped:
        api.call("POST", EVENTS_PATH, build_event(context, _stopped(answer, clock())))
    return answer


def _stopped(answer: FleetAnswer, now: float) -> Mapping[str, Any]:
    message = f"{answer.tripped}; no other node begins it"
    return {"type": "Warning", "reason": "RolloutStopped", "message": message, "time": now}
