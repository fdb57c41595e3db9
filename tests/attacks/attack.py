"""What the attacks share: locks of an app, other executions, silent connections, watched subprocesses."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from celery import Celery, current_app

from celery_rlock import LockUnavailable, RLock, RLockError
from celery_rlock.core.execution import current_execution
from tests.support.daemon import ROOT
from tests.support.proxy import Proxy

T = TypeVar("T")

#: Far beyond what a healthy lock needs on a loaded machine, and far below the leases in these tests.
PATIENCE = 20.0


class Locks:
    """Makes `RLock` objects of one app. Threads may share the objects."""

    def __init__(self, url: str | None, **conf: Any) -> None:
        self.app = Celery(
            "attacks", set_as_current=False, broker="memory://", backend="cache+memory://", changes=conf
        )
        if url is not None:
            self.app.conf.rlock_url = url

    def __call__(self, key: str = "k", **options: Any) -> RLock:
        with current(self.app):
            return RLock(key, **options)


def leave_all_locks() -> None:
    """Leave every lock that this thread is in, also those whose `RLock` is gone."""
    for lease in current_execution().leases():
        with suppress(RLockError):
            lease.leave(completely=True)


@contextmanager
def current(app: Celery) -> Iterator[None]:
    """Inside the block, `app` is the current app of this thread."""
    before = current_app._get_current_object()
    app.set_current()
    try:
        yield
    finally:
        before.set_current()


def in_thread(work: Callable[[], T]) -> T:
    """The result of `work` in a new thread, which is another execution."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "the thread hangs"
    if errors:
        raise errors[0]
    return results[0]


def taken_by_another(lock: RLock) -> bool:
    """Whether another thread gets the lock at once. It gives the lock back."""

    def take() -> bool:
        taken = lock.acquire(blocking=False)
        if taken:
            lock.release()
        return taken

    return in_thread(take)


def threads(work: Callable[[int], None], count: int) -> list[BaseException]:
    """Run `work` in so many threads at once. Returns what they raised; a thread that hangs is an error."""
    errors: list[BaseException] = []
    together = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            together.wait(60)
            work(number)
        except BaseException as error:
            errors.append(error)

    crowd = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in crowd:
        thread.start()
    end = time.monotonic() + 90
    for thread in crowd:
        thread.join(max(0.0, end - time.monotonic()))
    assert not any(thread.is_alive() for thread in crowd), "a thread hangs"
    return errors


@contextmanager
def silence(proxy: Proxy) -> Iterator[None]:
    """Inside the block no packet passes on the connections that are open now. New connections work.

    At the end of the block the packets that were sent meanwhile arrive, even if their sender has given up.
    """
    silent = proxy._flowing
    proxy._flowing = threading.Event()
    proxy._flowing.set()
    silent.clear()
    try:
        yield
    finally:
        silent.set()


def raises_unavailable(call: Callable[[], object]) -> bool:
    try:
        call()
    except LockUnavailable:
        return True
    return False


def run_script(module: str, *args: object, timeout: float = 100) -> str:
    """The output of `python -m tests.attacks.<module>`. It must end with exit code 0."""
    command = [sys.executable, "-m", f"tests.attacks.{module}", *map(str, args)]
    return _run(command, timeout)


def run_code(code: str, *args: object, timeout: float = 60) -> str:
    """The output of the Python code. It must end with exit code 0; if it hangs, all its stacks are shown."""
    watchdog = f"import faulthandler; faulthandler.dump_traceback_later({timeout - 5}, exit=True)\n"
    return _run([sys.executable, "-c", watchdog + code, *map(str, args)], timeout)


def _run(command: list[str], timeout: float) -> str:
    # The script's own watchdog, `faulthandler`, ends it earlier and shows where each thread hangs.
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ,
        timeout=timeout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr[-6000:]}"
    return done.stdout
