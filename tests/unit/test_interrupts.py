"""`lock_lost="abort"` interrupts a run at most once, and not when the run knows of the loss already."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from celery_rlock.errors import LockLost
from celery_rlock.running.lost import interruptible
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
