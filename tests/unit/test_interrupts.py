"""`lock_lost="abort"` interrupts a run at most once, and not when the run knows of the loss already."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import pytest

from celery_rlock.errors import LockLost
from celery_rlock.running.lost import _SIGNAL, interruptible
from tests.support.daemon import ROOT

LOSS = LockLost("k", "w/d:t", "its lease ended")


def in_main_thread(run):
    return run()


def in_another_thread(run):
    found = []
    thread = threading.Thread(target=lambda: found.append(run()))
    thread.start()
    thread.join(30)
    return found[0]


def caught(target, times):
    """How many interrupts strike a run that handles each of them, of so many sent by another thread."""
    found = 0

    def send():
        for _ in range(times):
            time.sleep(0.1)
            target.interrupt(LOSS)

    sender = threading.Thread(target=send)
    sender.start()
    while True:
        try:
            while sender.is_alive():
                time.sleep(0.001)
            break
        except LockLost:
            found += 1
    return found


@pytest.mark.parametrize("where", [in_main_thread, in_another_thread])
def test_a_run_is_interrupted_once(where):
    def run():
        with interruptible() as target:
            return caught(target, 3)

    assert where(run) == 1


@pytest.mark.parametrize("where", [in_main_thread, in_another_thread])
def test_a_run_that_is_spared_is_not_interrupted(where):
    def run():
        with interruptible() as target:
            target.spare()
            return caught(target, 3)

    assert where(run) == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_a_blocking_call_in_the_main_thread_ends(depth):
    """Also in a run inside of a run."""
    start = time.monotonic()
    with ExitStack() as stack:
        targets = [stack.enter_context(interruptible()) for _ in range(depth)]
        sender = threading.Timer(0.1, targets[-1].interrupt, [LOSS])
        sender.start()
        with pytest.raises(LockLost):
            time.sleep(40)
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("where", [in_main_thread, in_another_thread])
def test_a_run_that_has_ended_is_not_interrupted(where):
    def run():
        with interruptible() as target:
            pass
        return caught(target, 1)

    assert where(run) == 0


def test_the_signal_of_another_program_does_nothing():
    with interruptible():
        signal.raise_signal(_SIGNAL)
    signal.raise_signal(_SIGNAL)


def test_a_handler_of_the_users_own_stays():
    """Then the run is interrupted as in another thread."""
    received = []
    before = signal.signal(_SIGNAL, lambda *_: received.append(True))
    try:
        with interruptible() as target:
            assert caught(target, 1) == 1
        signal.raise_signal(_SIGNAL)
        assert received == [True]
    finally:
        signal.signal(_SIGNAL, before)


TRACED = """
import sys, threading, time
from celery_rlock.running.lost import interruptible
def trace(*_):
    return trace
def run():
    try:
        with interruptible() as target:
            targets.append(target)
            while True:
                time.sleep(0.001)
    except ValueError:
        targets.clear()
threading.settrace(trace)
sys.settrace(trace)
for _ in range(3):
    targets = []
    thread = threading.Thread(target=run)
    thread.start()
    while not targets:
        time.sleep(0.001)
    targets[0].interrupt(ValueError())
    thread.join()
"""


def test_a_process_that_coverage_or_a_debugger_traces_goes_on_after_an_interrupt():
    """On CPython 3.11 every traced thread hung after an exception of another thread was cancelled."""
    subprocess.run([sys.executable, "-c", TRACED], cwd=ROOT, timeout=30, check=True)
