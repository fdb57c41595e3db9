"""`lock_lost="abort"` interrupts a run at most once, and not when the run knows of the loss already."""

from __future__ import annotations

import threading
import time

import pytest

from celery_rlock.errors import LockLost
from celery_rlock.running.lost import interruptible

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
