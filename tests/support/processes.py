"""Subprocesses that never outlive the test process, and the waiting that goes with them."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import psutil

T = TypeVar("T")

PR_SET_PDEATHSIG = 1
INHERITED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)
# Below the ephemeral range of every system: an outgoing connection can neither take the port of a server that
# is down for a moment, nor connect to itself there.
PORTS = range(20000, 32000)
#: No `wait_until` waits for longer. `tests/mutants` lowers it, because most mutants make a test wait in vain.
LONGEST_WAIT = math.inf


def start(
    args: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start `args` in a session of its own, its output appended to `log`, `env` on top of this environment.

    The starter is the calling *thread*, see prepare_child: call from one that lives as long as the subprocess
    should, such as the main thread.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            args,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            start_new_session=True,
            preexec_fn=prepare_child(),  # noqa: PLW1509 - no other thread runs Python code in the child
        )


def prepare_child() -> Callable[[], None]:
    """For Popen's `preexec_fn`: the child reacts to signals as usual and dies with the thread that starts it.

    A shell that runs the tests in the background ignores SIGINT and SIGQUIT, and children inherit that.
    On Linux the kernel sends SIGKILL to the child when its starter dies, however it dies.
    """
    starter = os.getpid()
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def prepare() -> None:
        for number in INHERITED:
            signal.signal(number, signal.SIG_DFL)
        if prctl is None:
            return
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != starter:  # the starter died before the kernel knew
            os._exit(1)

    return prepare


def stop(process: subprocess.Popen[bytes], timeout: float = 10.0) -> int:
    """End the process and its children: SIGTERM, after `timeout` SIGKILL. Returns the exit code."""
    family = children(process)
    if process.poll() is None:
        process.terminate()
        process.send_signal(signal.SIGCONT)  # a paused process sees no SIGTERM
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    code = process.wait()
    end(family)
    return code


def children(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """All living descendants; none when the process itself is gone."""
    if process.poll() is not None:
        return []
    try:
        return [child for child in psutil.Process(process.pid).children(recursive=True) if alive(child)]
    except psutil.NoSuchProcess:
        return []


def end(family: Sequence[psutil.Process]) -> None:
    """Send SIGKILL to the processes that still live, and return when none does."""
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):  # it may end by itself at any moment
            process.kill()
    wait_until(lambda: not any(map(alive, family)), timeout=5, what="the end of killed processes")


def alive(process: psutil.Process) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def free_port() -> int:
    """A TCP port of 127.0.0.1 on which no server listens."""
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def wait_until(
    predicate: Callable[[], T], *, timeout: float = 10.0, what: str = "the condition", every: float = 0.02
) -> T:
    """The first truthy value of `predicate`; after `timeout` seconds an AssertionError that names `what`."""
    timeout = min(timeout, LONGEST_WAIT)
    deadline = time.monotonic() + timeout
    while True:
        last_try = time.monotonic() >= deadline
        if value := predicate():
            return value
        if last_try:
            raise AssertionError(f"waited {timeout} s in vain for {what}")
        time.sleep(every)
