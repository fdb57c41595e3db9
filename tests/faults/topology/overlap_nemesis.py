"""Sentinel set-ups with settings of their own, and the faults that befall their primary."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress

from typing_extensions import Self

from tests.support.processes import wait_until
from tests.support.sentinel import SENTINELS, SentinelNode, SentinelSetup
from tests.support.servers import DEFAULT_KIND, Server

#: The sentinels refuse a failover for a while after the last one, or give up and begin again.
FAILOVER_WITHIN = 12.0


class PersistentServer(Server):
    """Keeps its data and its role when it restarts, like a server with a configuration file and an AOF."""

    def command(self) -> list[str]:
        executable, *words = super().command()
        config = self.directory / "server.conf"
        if not config.exists():
            config.write_text(_as_file(words))
        return [executable, str(config)]


def _as_file(words: list[str]) -> str:
    """`--port 1 --save ""` as the lines of a configuration file."""
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            lines.append([word[2:]])
        else:
            lines[-1].append(word or '""')
    return "".join(" ".join(line) + "\n" for line in lines)


class ConfiguredSetup(SentinelSetup):
    """A primary, its replica and three sentinels; `flags` are settings of both servers."""

    def __init__(self, server: type[Server] = Server, **flags: object) -> None:
        super().__init__(DEFAULT_KIND)
        first = server(self.kind, repl_diskless_sync_delay=0, **flags)
        second = server(self.kind, repl_diskless_sync_delay=0, replicaof=("127.0.0.1", first.port), **flags)
        self.servers = (first, second)
        self.sentinels = [SentinelNode(self.kind, first.port) for _ in range(SENTINELS)]

    def __enter__(self) -> Self:
        try:
            for node in (*self.servers, *self.sentinels):
                self._running.enter_context(node).started()
            self.await_calm()
        except BaseException:
            self.stop()
            raise
        return self


class Nemesis:
    """Inflicts one fault after another on the primary. The seed decides which and how long."""

    def __init__(self, setup: SentinelSetup, seed: int, faults: tuple[str, ...] = ()) -> None:
        self._setup = setup
        self._choice = random.Random(f"nemesis-{seed}")
        self._faults: list[Callable[[], None]] = [getattr(self, fault) for fault in faults or ALL_FAULTS]
        self.done: list[str] = []

    def run(self, until: float) -> None:
        line: list[Callable[[], None]] = []
        while time.monotonic() < until:
            if not line:
                line = self._faults.copy()
                self._choice.shuffle(line)
            time.sleep(self._choice.uniform(0.2, 1.5))
            fault = line.pop()
            self.done.append(fault.__name__)
            with suppress(AssertionError):  # the sentinels did not fail over in time: the next fault comes
                fault()
            time.sleep(self._choice.uniform(0.2, 3))
            self._setup.mend()

    def doze(self) -> None:
        """Freeze it, too briefly for a failover."""
        self._freeze_for(self._choice.uniform(0.05, 0.4))

    def wake_during_failover(self) -> None:
        self._freeze_for(self._choice.uniform(0.5, 2.5))

    def freeze(self) -> None:
        """Freeze it until another server is the primary. Then it answers again, and does not know that."""
        old = self._setup.primary
        old.pause()
        try:
            self._await_failover(old)
            time.sleep(self._choice.choice((0, 0, 0.2, 1)))
        finally:
            old.resume()

    def kill(self) -> None:
        old = self._setup.kill_primary()
        self._await_failover(old)
        old.started()

    def kill_while_the_replica_lags(self) -> None:
        """What the primary grants after it lost its replica dies with it."""
        primary, replica = self._setup.primary, self._setup.replica
        replica.pause()
        try:
            with primary.client() as client:
                client.client_kill_filter(_type="slave")
            time.sleep(self._choice.uniform(0.05, 0.3))
            primary.kill()
        finally:
            replica.resume()
        self._await_failover(primary)
        primary.started()

    def restart(self) -> None:
        """Kill it, and start it before the sentinels notice."""
        self._setup.kill_primary().started()

    def switch(self) -> None:
        """SENTINEL FAILOVER: the old primary is alive and accepts writes for some seconds."""
        self._await_failover(self._setup.demote_primary())

    def _freeze_for(self, seconds: float) -> None:
        primary = self._setup.primary
        primary.pause()
        time.sleep(seconds)
        primary.resume()

    def _await_failover(self, old: Server) -> None:
        wait_until(
            lambda: all(node.primary_port() != old.port for node in self._setup.sentinels),
            timeout=FAILOVER_WITHIN,
            what="the sentinels to name another primary",
        )


ALL_FAULTS = (
    Nemesis.doze.__name__,
    Nemesis.freeze.__name__,
    Nemesis.wake_during_failover.__name__,
    Nemesis.kill.__name__,
    Nemesis.kill_while_the_replica_lags.__name__,
    Nemesis.restart.__name__,
    Nemesis.switch.__name__,
)
