"""Child processes that end when the process that started them ends, even if it is killed."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
LOG_TAIL = 2000

# Removes the directory when standard input closes. That happens when the example dies and cannot clean up.
JANITOR = 'read -r _; sleep 1; rm -rf -- "$0"'


class Process:
    """A child process in its own process group. Its output goes to a log."""

    def __init__(self, name: str, popen: subprocess.Popen[bytes], log: Path) -> None:
        self.name, self.pid = name, popen.pid
        self._popen, self._log = popen, log

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def stop(self) -> None:
        """Send SIGTERM. Does not wait for the end."""
        self._popen.terminate()

    def kill(self) -> None:
        """kill -9 of the process and its children, as when a container dies. No effect if it has ended."""
        if self.running:
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()

    def wait_until(self, ready: Callable[[], bool], timeout: float = 60) -> None:
        """Wait for `ready()`. Raises RuntimeError with the log if the process ends or takes too long."""
        deadline = time.monotonic() + timeout
        while not ready():
            if not self.running or time.monotonic() > deadline:
                state = "is not ready" if self.running else "has ended"
                raise RuntimeError(f"{self.name} {state}. The end of its log:\n{self.log[-LOG_TAIL:]}")
            time.sleep(0.05)


class Processes:
    """All processes of an example and their directory. The end of the `with` block removes both."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._started: list[Process] = []

    def __enter__(self) -> Processes:  # noqa: PYI034 - Self is not in Python 3.10
        self.directory = Path(tempfile.mkdtemp(prefix="rlock-example-"))
        self._janitor = subprocess.Popen(
            ["/bin/sh", "-c", JANITOR, str(self.directory)], stdin=subprocess.PIPE, start_new_session=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        with _no_interrupts():
            for process in self._started:
                process.kill()
            shutil.rmtree(self.directory, ignore_errors=True)
            self._janitor.kill()
            self._janitor.communicate()

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> Process:
        """Call this from the main thread: on Linux the kernel kills the child when that thread ends."""
        log = self.directory / f"{name}-{len(self._started)}.log"
        with log.open("wb") as output:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env={**self._env, "TMPDIR": str(self.directory), **(env or {})},
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 - prctl needs it
            )
        self._started.append(Process(name, popen, log))
        return self._started[-1]


def _die_with(starter: int) -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def request_the_signal() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != starter:  # the starter died before prctl was called
            os._exit(1)

    return request_the_signal


@contextmanager
def _no_interrupts() -> Iterator[None]:
    before: dict[int, Any] = {s: signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
