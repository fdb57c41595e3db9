"""A long-running command with a log: the base class of servers, workers, beat and others."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import processes

if TYPE_CHECKING:
    import subprocess

    import psutil
    from typing_extensions import Self

ROOT = Path(__file__).resolve().parents[2]
TAIL = 6000


class Daemon:
    """A process that the tests start and stop. A subclass gives `command` and `is_ready`."""

    ready_within = 30.0

    def __init__(self, name: str, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.directory = Path(tempfile.mkdtemp(prefix="rlock-"))
        weakref.finalize(self, shutil.rmtree, self.directory, ignore_errors=True)
        self._env = dict(env or {})
        self._log = self.directory / "log"
        self._process: subprocess.Popen[bytes]
        self._orphans: list[psutil.Process] = []

    def command(self) -> list[str]:
        raise NotImplementedError

    def is_ready(self) -> bool:
        raise NotImplementedError

    def started(self) -> Self:
        """Launch it, and return it when it is ready; when that fails, no process is left."""
        self.launch()
        try:
            self.await_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def launch(self) -> None:
        """Start the process without waiting for it to be ready."""
        self._log.touch()
        self._log_start = self._log.stat().st_size
        self._process = processes.start(self.command(), log=self._log, env=self._env, cwd=ROOT)

    def await_ready(self) -> None:
        """Return when ready; raise AssertionError with the log's tail when it exits or takes too long."""
        try:
            processes.wait_until(
                self._ready_or_gone, timeout=self.ready_within, what=f"{self.name} to be ready"
            )
        except AssertionError as error:
            raise AssertionError(f"{error}; its log ends:\n{self.log[-TAIL:]}") from None

    def _ready_or_gone(self) -> bool:
        if not self.running:
            raise AssertionError(f"{self.name} exited with {self._process.returncode}")
        return self.is_ready()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def log(self) -> str:
        """Everything written so far, restarts and the time after `stop` included."""
        return self._log.read_text(errors="replace")

    @property
    def log_since_start(self) -> str:
        """What was written since the last start."""
        return self._log.read_bytes()[self._log_start :].decode(errors="replace")

    def children(self) -> list[int]:
        """The pids of all descendants that live."""
        return [child.pid for child in processes.children(self._process)]

    def signal(self, sig: int) -> None:
        """Send `sig` to the main process alone."""
        if sig == signal.SIGKILL:
            self._orphans += processes.children(self._process)
        self._process.send_signal(sig)

    def kill(self) -> None:
        """SIGKILL to the main process alone, and wait for its end; `stop` ends children that survive it."""
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self, timeout: float = 10.0) -> int:
        """The exit code, once the process has ended by itself or by a signal."""
        return self._process.wait(timeout)

    def stop(self, timeout: float = 10.0) -> None:
        """End the process and all its children: SIGTERM, after `timeout` SIGKILL. Harmless when repeated."""
        processes.stop(self._process, timeout)
        processes.end(self._orphans)

    def restart(self) -> None:
        """Stop it if it still runs, start it again with the same command, and return when ready."""
        self.stop()
        self.started()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End it at once. A warm shutdown takes seconds; a test that wants one calls `stop`."""
        self.stop(timeout=0)


@contextlib.contextmanager
def running(daemons: Sequence[Daemon]) -> Iterator[Sequence[Daemon]]:
    """Starts all at the same time and ends them after the block; prints their logs if the block fails."""
    for daemon in daemons:
        daemon.launch()
    try:
        for daemon in daemons:
            daemon.await_ready()
        yield daemons
    except BaseException:
        show(daemons)
        raise
    finally:
        for daemon in daemons:
            daemon.stop(timeout=0)


def show(daemons: Sequence[Daemon]) -> None:
    """Print the ends of their logs."""
    for daemon in daemons:
        print(f"--- {daemon.name}\n{daemon.log[-TAIL:]}")
