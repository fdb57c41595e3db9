"""Notifies a running task that it has lost its lock or is replaced, and interrupts it if it is to end."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import FrameType
from typing import Any, Protocol

from celery_rlock import signals
from celery_rlock.errors import LockLost
from celery_rlock.options.options import Options
from celery_rlock.running.call import Call
from celery_rlock.running.replaced import may_be_replaced, replacement_handler
from celery_rlock.running.task_lock import CallLock


@contextmanager
def watched(call: Call, lock: CallLock, options: Options) -> Iterator[None]:
    """Inside the block, a lost lock is handled as `lock_lost` says, and a newer call may end the run."""
    aborts = options.lost == "abort"
    listens = call.by_message and may_be_replaced(options)
    with interruptible() if aborts or listens else nullcontext(None) as target:
        if target is not None:
            lock.spare_run = _in_this_thread(target.spare)
        lock.watch(_loss_handler(call, lock, options, target if aborts else None))
        if call.by_message:
            lock.on_replaced(replacement_handler(call, lock, target.interrupt if target else None))
        try:
            yield
        finally:
            lock.on_replaced(None)
            lock.check_deadlines()


def _in_this_thread(act: Callable[[], None]) -> Callable[[], None]:
    """The function, which does nothing in other threads and greenlets than this one."""
    here = threading.get_ident()

    def guarded() -> None:
        if threading.get_ident() == here:
            act()

    return guarded


def _loss_handler(
    call: Call, lock: CallLock, options: Options, target: _Target | None
) -> Callable[[LockLost], None]:
    def on_lost(error: LockLost) -> None:
        signals.lock_lost.send(
            sender=call.task, lock=call.task_lock, error=error, request=call.request, held=lock.seconds
        )
        if target is not None:
            target.interrupt(error)
        elif callable(options.lost):
            options.lost(call.task, error)

    return on_lost


class _Target(Protocol):
    """A run that can be interrupted, once: a second time could strike where the run handles the first."""

    def interrupt(self, error: BaseException) -> None: ...

    def spare(self) -> None:
        """The run knows of the loss already, or ends: make later interrupts do nothing."""

    def end(self) -> None:
        """Make later interrupts do nothing."""


@contextmanager
def interruptible() -> Iterator[_Target]:
    """Yields a target whose `interrupt` raises an error inside the block, called from another thread.

    - In the main thread (prefork, solo): a signal whose handler raises, so that a blocking call ends too.
    - In another thread (threads): CPython's asynchronous exception, which waits for the next bytecode.
    - In a greenlet (gevent): thrown at its next switch.

    After the block it does nothing: each kind checks that on the target's own side.
    """
    target = _target()
    try:
        yield target
    finally:
        _end(target)


def _target() -> _Target:
    if _in_greenlet():
        return _Greenlet()
    if threading.current_thread() is threading.main_thread():
        main = _MainThread.install()
        if main is not None:
            return main
    return _Thread()


def _end(target: _Target) -> None:
    """End the target. An interrupt that arrives here is too late to matter, so it is swallowed."""
    while True:
        try:
            target.end()
        except Exception:  # noqa: BLE001, S112 - it is the interrupt itself
            continue
        return


def _in_greenlet() -> bool:
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and monkey.is_module_patched("threading")


#: A real-time signal, which programs rarely use; SIGUSR2 where there are none (macOS); none on Windows.
_SIGNAL: int | None = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else getattr(signal, "SIGUSR2", None)


class _MainThread:
    def __init__(self, number: int, previous: Any) -> None:
        self._number, self._previous = number, previous
        self._error: BaseException | None = None
        self._ended = False

    @classmethod
    def install(cls) -> _MainThread | None:
        """None if there is no such signal, or if the user's code handles it."""
        if _SIGNAL is None:
            return None
        previous = signal.getsignal(_SIGNAL)
        ours = isinstance(getattr(previous, "__self__", None), cls)
        if previous is not signal.SIG_DFL and not ours:
            return None
        target = cls(_SIGNAL, previous)
        signal.signal(_SIGNAL, target.handle)
        return target

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        error, self._error = self._error, None
        if error is not None and not self._ended:
            self._ended = True
            raise error

    def spare(self) -> None:
        self._ended = True

    def interrupt(self, error: BaseException) -> None:
        if not self._ended:
            self._error = error
            signal.pthread_kill(threading.main_thread().ident or 0, self._number)

    def end(self) -> None:
        # Restore the handler of an outer run. Otherwise ours stays and ignores late signals, because the
        # signal's default action would kill the process.
        self._ended = True
        if self._previous is not signal.SIG_DFL:
            signal.signal(self._number, self._previous)


class _Thread:
    def __init__(self) -> None:
        self._ident = threading.get_ident()
        self._mutex = threading.Lock()
        self._ended = False
        self._pending = self._has_struck = False

    def interrupt(self, error: BaseException) -> None:
        # CPython takes a class and makes the instance itself, so this class carries the error's fields.
        def strike(this: BaseException) -> None:
            self._has_struck = True
            _copy_fields(error, this)

        ready = type(type(error).__name__, (type(error),), {"__init__": strike})
        ready.__module__ = type(error).__module__
        with self._mutex:
            if not self._ended and not self._pending:
                self._pending = True
                _raise_in_thread(self._ident, ready)

    def spare(self) -> None:
        self.end()

    def end(self) -> None:
        with self._mutex:
            self._ended = True
            # Only if there is one to cancel: afterwards CPython 3.11 hangs in each thread that is traced.
            if self._pending and not self._has_struck:
                _raise_in_thread(self._ident, None)


def _copy_fields(error: BaseException, this: BaseException) -> None:
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
        # No other greenlet runs while the hub does, so what we check there still holds when we throw.
        self._hub.loop.run_callback_threadsafe(self._throw, error)

    def _throw(self, error: BaseException) -> None:
        if not self._ended and not self._greenlet.dead:
            self._ended = True
            with suppress(Exception):
                self._greenlet.throw(error)

    def spare(self) -> None:
        self._ended = True

    def end(self) -> None:
        self._ended = True
