"""What the daemon knows of the relay: since when it answers or is silent, and how long a proxy gets.

Pure: it gets the time and what was seen. Times are seconds on the clock of `now`; shares are of deadSeconds.
"""

from __future__ import annotations

from installer.daemon.poller import PollSnapshot

_UNSEEN_SHARE = 0.25  # the relay may have been silent for so long before a probe has shown it
_UNSEEN_MOVES = 0.5  # the same where kubelet can be moved, and a wrong alarm costs little
_RESTART_SHARE = 0.5  # of silence, until a proxy that has served is restarted
_RESTARTS_SHARE = 4.0  # where kubelet can only leave by a restart, and a wrong alarm costs more
_SLOW = 60.0  # seconds of a start that kubelet does not wait for: with many containers it takes its time
_LONGEST_WAIT = 600.0  # between two restarts of a proxy that stays silent


class RelayHistory:
    """`good_since` and `silent_since`: since when it was seen to answer, or not to; one of them is None."""

    def __init__(self, now: float) -> None:
        self.good_since: float | None = None
        self.silent_since: float | None = None
        self._dead_seconds = 0.0
        self._answered_at = self._dead_since = now
        self._answered: str | None = None  # the invocation of the proxy that last answered
        self._invocation, self._invocation_since = "", now
        self._runtime_since = now  # the runtime has answered
        self._restarts, self._restart_at = 0, 0.0  # by us, since the relay last answered

    def see(self, now: float, snapshot: PollSnapshot, dead_seconds: float) -> None:
        self._dead_seconds = dead_seconds if snapshot.moves else dead_seconds * _RESTARTS_SHARE
        if snapshot.proxy.invocation_id != self._invocation:  # a crash may be shorter than a heartbeat
            self._invocation, self._invocation_since = snapshot.proxy.invocation_id, now
            self.good_since = None
        if snapshot.relay:
            self.good_since = now if self.good_since is None else self.good_since
            self.silent_since, self._restarts, self._restart_at = None, 0, 0.0
            self._answered_at, self._answered = now, snapshot.proxy.invocation_id
        elif self.silent_since is None:
            self.good_since, self.silent_since = None, now
            unseen = _UNSEEN_MOVES if snapshot.moves else _UNSEEN_SHARE
            self._dead_since = max(self._answered_at, now - self._dead_seconds * unseen)
        if not snapshot.runtime:
            self._runtime_since = now

    def restarts_proxy(self, now: float) -> None:
        """We begin to restart the proxy: each further restart has to wait longer."""
        wait = self._dead_seconds * _RESTART_SHARE * 2.0 ** min(20, self._restarts)
        self._restarts += 1
        self._restart_at = now + min(_LONGEST_WAIT, wait)

    def silence(self, now: float) -> float:
        """Return the seconds since it was first seen silent, 0 while it answers."""
        return now - self.silent_since if self.silent_since is not None else 0.0

    def is_dead(self, now: float, share: float = 1.0) -> bool:
        """Whether it has been silent for this share of deadSeconds, from its last answer on as far as the
        heartbeat can tell. While the runtime is away no endpoint is better, so the time counts from its
        return: the proxy may need some."""
        since = max(self._dead_since, self._runtime_since)
        return self.silent_since is not None and now - since >= self._dead_seconds * share

    def is_untried(self, snapshot: PollSnapshot) -> bool:
        """Whether our proxy has served and is silent, or crashes, and a restart may help. One that was
        started since its relay last answered may just be slow."""
        served = self._answered == snapshot.proxy.invocation_id
        unknown = self._answered is None and snapshot.on_relay
        ours = bool(snapshot.proxy.loaded_digest)
        hangs = snapshot.proxy.running and (served or unknown)
        return ours and not self._restarts and (hangs or self.crashes(snapshot))

    def crashes(self, snapshot: PollSnapshot) -> bool:
        """Whether our proxy exits at each start. A restart by us may help, since it sets a torn cache
        aside."""
        return bool(snapshot.proxy.loaded_digest) and snapshot.proxy.between_restarts

    def describe(self, snapshot: PollSnapshot) -> str:
        """What a proxy does whose relay is silent, in words."""
        if self.crashes(snapshot):
            return "it keeps crashing"
        return "it runs" if snapshot.proxy.running else f"it is {snapshot.proxy.active_state}"

    def wants_restart(self, now: float, snapshot: PollSnapshot) -> bool:
        """Whether the silence has lasted long enough for a restart: of our proxy that runs or crashes, or of
        one that is down while kubelet is held. Without a hold a pass starts that one."""
        crashes = self.crashes(snapshot)
        down = bool(snapshot.hold) and snapshot.proxy.active_state in ("inactive", "failed")
        can_be = bool(snapshot.proxy.loaded_digest) and (snapshot.proxy.running or crashes or down)
        if not can_be or self.silent_since is None or now < self._restart_at:
            return False
        starts_for = now - self._invocation_since
        slow = not (crashes or self.is_untried(snapshot)) and starts_for < _SLOW
        return not slow and now - self._dead_since >= self._dead_seconds * _RESTART_SHARE

    def rescue_at(self) -> float:
        """Return when kubelet may leave it: the first restart of the proxy gets its time."""
        return self._restart_at if self._restarts == 1 else 0.0

    def moments(self) -> tuple[float, ...]:
        """Return when the silence will mean more than before."""
        if self.silent_since is None:
            return ()
        return tuple(self._dead_since + self._dead_seconds * share for share in (_RESTART_SHARE, 1.0))
