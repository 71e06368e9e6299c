"""An API server for the contract: the stand-in that enforces RBAC and admission policies, or the real one."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from installer.operator.api import USUAL, Limits
from installer.operator.kube import KubeClient, connect_with
from tests.lib.throwaway.authority import StrictServer
from tests.lib.throwaway.controlplane import Caller, ControlPlane, find_programs


class ApiServer(Protocol):
    """One that is asked: `token_of` and `account_of` are what a pod has of its ServiceAccount."""

    port: int
    authority: Path

    @property
    def admin(self) -> Caller: ...
    def bearer(self, token: str) -> Caller: ...
    def token_of(self, pod: Mapping[str, Any]) -> str: ...
    def client(self, limits: Limits = USUAL) -> KubeClient: ...
    def forget(self) -> None: ...


class StandIn:
    """The stand-in, asked as the real one is."""

    def __init__(self, directory: Path) -> None:
        self._server = StrictServer(directory)
        self.authority = directory / "authority/ca.crt"

    def __enter__(self) -> StandIn:
        self._server.__enter__()
        self.port = self._server.port
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    @property
    def admin(self) -> Caller:
        return self.bearer(self._server.token)

    def bearer(self, token: str) -> Caller:
        return Caller(self._server.url, ssl.create_default_context(cafile=str(self.authority)), token)

    def token_of(self, pod: Mapping[str, Any]) -> str:
        return (self._server.account_of(dict(pod)) / "token").read_text()

    def client(self, limits: Limits = USUAL) -> KubeClient:
        return connect_with(self._server.kubeconfig().encode(), limits)

    def forget(self) -> None:
        self._server.forget()


class Real(ControlPlane):
    def client(self, limits: Limits = USUAL) -> KubeClient:
        return connect_with(self.kubeconfig("admin").read_bytes(), limits)


@contextmanager
def serve(which: str, config: pytest.Config, directory: Path) -> Iterator[ApiServer]:
    """`which`: stand-in or real. Skips what needs the real one where nobody has named it."""
    if which == "stand-in":
        with StandIn(directory) as found:
            yield found
        return
    programs = config.getoption("--kubernetes")
    if programs is None:
        pytest.skip("needs a real API server: --kubernetes DIR")
    with Real(find_programs(programs), directory) as plane:
        yield plane
