"""Raising an error inside a task that is running in another thread, greenlet or system call.

- in the main thread (prefork, solo): a signal whose handler raises, so that a blocking call ends too;
- in another thread (threads): CPython's asynchronous exception, which waits for the next bytecode;
- in a greenlet (gevent): thrown at its next switch.

None of them may arrive after the run has ended: each is checked on the target's own side.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Protocol


class Target(Protocol):
    """A run that can be interrupted."""

    def interrupt(self, error: BaseException) -> None: ...

    def end(self) -> None:
        """From now on an interrupt does nothing."""


@contextmanager
def interruptible() -> Iterator[Callable[[BaseException], None]]:
    """Yields what raises an error here, called from elsewhere; it does nothing once the block is left."""
    target = _target()
    try:
        yield target.interrupt
    finally:
        _end(target)


def _target() -> Target:
    if _in_greenlet():
        return _Greenlet()
    if threading.current_thread() is threading.main_thread():
        main = _MainThread.install()
        if main is not None:
            return main
    return _Thread()


def _end(target: Target) -> None:
    """An interrupt that arrives while we end comes too late to matter."""
    while True:
        try:
            target.end()
        except Exception:  # noqa: BLE001, S112 - it is the interrupt itself
            continue
        return


def _in_greenlet() -> bool:
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and monkey.is_module_patched("threading")


class _MainThread:
    #: Real-time signals are used by nobody; where there are none (macOS) SIGUSR2 serves.
    number = getattr(signal, "SIGRTMIN", signal.SIGUSR2 - 7) + 7

    def __init__(self, previous: Any) -> None:
        self._previous = previous
        self._error: BaseException | None = None
        self._ended = False

    @classmethod
    def install(cls) -> _MainThread | None:
        """None where somebody else uses the signal."""
        previous = signal.getsignal(cls.number)
        ours = isinstance(getattr(previous, "__self__", None), cls)
        if previous is not signal.SIG_DFL and not ours:
            return None
        target = cls(previous)
        signal.signal(cls.number, target.handle)
        return target

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        error, self._error = self._error, None
        if error is not None and not self._ended:
            raise error

    def interrupt(self, error: BaseException) -> None:
        if not self._ended:
            self._error = error
            signal.pthread_kill(threading.main_thread().ident or 0, self.number)

    def end(self) -> None:
        # The handler of an outer run comes back; else ours stays, deaf: a late signal must not kill us.
        self._ended = True
        if self._previous is not signal.SIG_DFL:
            signal.signal(self.number, self._previous)


class _Thread:
    def __init__(self) -> None:
        self._ident = threading.get_ident()
        self._mutex = threading.Lock()
        self._ended = False
        self._pending = False

    def interrupt(self, error: BaseException) -> None:
        # CPython takes a class here and makes the instance itself, so the class carries our fields.
        ready = type(type(error).__name__, (type(error),), {"__init__": lambda this: _copy(error, this)})
        ready.__module__ = type(error).__module__
        with self._mutex:
            if not self._ended:
                self._pending = True
                _raise_in_thread(self._ident, ready)

    def end(self) -> None:
        with self._mutex:
            self._ended = True
            if self._pending:
                _raise_in_thread(self._ident, None)


def _copy(error: BaseException, this: BaseException) -> None:
    type(error).__init__(this, *error.args)


def _raise_in_thread(ident: int, kind: type[BaseException] | None) -> None:
    argument = ctypes.py_object(kind) if kind is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), argument)


class _Greenlet:
    def __init__(self) -> None:
        import gevent  # noqa: PLC0415 - only where it is in use

        self._greenlet = gevent.getcurrent()
        self._hub = gevent.get_hub()
        self._ended = False

    def interrupt(self, error: BaseException) -> None:
        # In the hub no other greenlet runs: what is checked there still holds when we throw.
        self._hub.loop.run_callback_threadsafe(self._throw, error)

    def _throw(self, error: BaseException) -> None:
        if not self._ended and not self._greenlet.dead:
            with suppress(Exception):
                self._greenlet.throw(error)

    def end(self) -> None:
        self._ended = True
