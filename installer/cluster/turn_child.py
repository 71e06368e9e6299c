"""One question of `turns.py`, in a process that soon ends."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from installer.cluster.ask import Ask, FleetContext
from installer.cluster.kubeapi import Api, KubeApi
from installer.cluster.node_objects import EVENTS_PATH, build_event
from installer.cluster.pod_context import PodContext
from installer.cluster.turn_memory import read_result
from installer.errors import InvalidInputError
from installer.model.fleet import FleetAnswer, FleetRequest, FleetRules, PlannedWork
from installer.model.jsontext import to_json


def parse_request(text: str) -> tuple[PodContext, float, FleetRequest]:
    """Raises InvalidInputError."""
    try:
        data = json.loads(text)
        fields = dict(data["request"])
        work, result = fields.pop("work"), fields.pop("result")
        request = FleetRequest(
            rules=FleetRules(**fields.pop("rules")),
            work=PlannedWork(**work) if work else None,
            result=read_result(result) if result else None,
            **fields,
        )
        return PodContext(**data["context"]), float(data["seconds"]), request
    except (ValueError, TypeError, LookupError) as error:
        raise InvalidInputError([f"the request is not one of the daemon's: {error}"]) from None


def turn(text: str) -> str:
    """Asks for the turn, or tells of its end. Raises InvalidInputError where the daemon did not ask."""
    context, seconds, request = parse_request(text)
    api = KubeApi(context.host, context.port, Path(context.account), time.monotonic() + seconds)
    try:
        return to_json(talk(context, request, api, time.time))
    finally:
        api.close()


def talk(context: PodContext, request: FleetRequest, api: Api, clock: Callable[[], float]) -> FleetAnswer:
    """The requests. `clock` is the time of the epoch where the server does not say it."""
    fleet = FleetContext(context.node, context.rollout_namespace, context.daemonset_path)
    ask = Ask(fleet, request, api, clock, random.random)
    answer = ask.begin(request.work) if request.work else ask.end()
    if answer.tripped:
        api.call("POST", EVENTS_PATH, build_event(context, _stopped(answer, clock())))
    return answer


def _stopped(answer: FleetAnswer, now: float) -> Mapping[str, Any]:
    message = f"{answer.tripped}; no other node begins it"
    return {"type": "Warning", "reason": "RolloutStopped", "message": message, "time": now}
