"""A process whose main thread is interrupted by real signals at random moments of the lock's work.

`python -m tests.attacks.interrupted <url> <scenario> <seconds>`. The key "held" belongs to another process
all the time. Prints what went wrong as JSON; a hang ends it with the stacks of all threads.
"""

from __future__ import annotations

import faulthandler
import json
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import cached_property

from celery import Celery

from celery_rlock import LockNotHeld, LockUnavailable, RLock, RLockError
from celery_rlock.telemetry.events import ACQUIRED, RELEASED, _sender
from tests.support.clients import bare_client

#: The lock of an interrupted call is free after about a second; a loaded machine may take longer.
FREED_WITHIN = 10.0
TTL = 300
#: Fewer signals attack nothing.
LEAST = 50
MORE_TIME = 30.0
#: Enough to show what is wrong, without waiting for each case.
ENOUGH = 3


class Interrupted(BaseException):
    """Raised by the signal handler, as a soft time limit is."""


class Attack:
    def __init__(self, url: str, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.url = url
        self.signals = self.turns = self.worked = 0
        self.longest = 0.0
        self.stuck: list[str] = []
        self.wrong: list[str] = []
        self._armed = False
        signal.signal(signal.SIGALRM, self._interrupt)

    def _interrupt(self, *_: object) -> None:
        if self._armed:
            self._armed = False
            self.signals += 1
            raise Interrupted

    def interrupt(self, work) -> bool:
        """Run `work` with a signal after a random part of a few milliseconds. Returns whether it hit."""
        try:
            try:
                self._armed = True
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00002, self.reach))
                work()
            finally:
                self._armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupted:
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            return True
        except RLockError as error:
            self.wrong.append(repr(error))
        return False

    #: How late the signal may come, in seconds. Measured, so that it hits all parts of the work.
    reach = 0.003

    def measure(self, work) -> None:
        times = []
        for _ in range(30):
            start = time.monotonic()
            work()
            times.append(time.monotonic() - start)
        self.reach = sorted(times)[15] * 1.2

    def calm(self, lock: RLock) -> None:
        """What careful code does after an exception: leave what it is still in."""
        while lock.depth:
            with suppress(LockNotHeld):
                lock.release()

    def freed(self, lock: RLock) -> None:
        start = time.monotonic()
        while lock.locked():
            if time.monotonic() - start > FREED_WITHIN:
                self.stuck.append(lock.key)
                return
            time.sleep(0.002)
        self.longest = max(self.longest, time.monotonic() - start)

    def probe(self) -> None:
        """A reply that belongs to another request shows as a yes to a key that is held elsewhere."""
        try:
            if RLock("held").acquire(blocking=False):
                self.wrong.append("acquired a key that another process holds")
            fresh = RLock(f"fresh-{self.turns}")
            if not fresh.acquire(blocking=False):
                self.wrong.append("a free key was busy")
            fresh.release()
        except LockUnavailable as error:
            self.wrong.append(repr(error))
        except Exception as error:  # whatever a reply of the wrong type leads to
            self.wrong.append(repr(error))

    def over(self) -> bool:
        if len(self.stuck) + len(self.wrong) >= ENOUGH:
            return True
        # A loaded machine needs longer for as many signals.
        end = self.end if self.signals >= LEAST else self.end + MORE_TIME
        return time.monotonic() > end

    @cached_property
    def admin(self):
        return bare_client(self.url)

    def report(self) -> None:
        print(
            json.dumps(
                {
                    "turns": self.turns,
                    "signals": self.signals,
                    "worked": self.worked,
                    "longest": round(self.longest, 3),
                    "stuck": self.stuck,
                    "wrong": self.wrong,
                }
            )
        )


def cycle(lock: RLock) -> None:
    with lock:
        with lock:
            lock.extend(TTL)
        RLock("held").acquire(blocking=False)


def uncontended(attack: Attack, *, new_connections: bool) -> None:
    """Acquire, re-enter, extend and release; with new connections, their greeting is hit too."""
    attack.measure(lambda: cycle(RLock("measured", ttl=TTL)))
    while not attack.over():
        attack.turns += 1
        lock = RLock(f"key-{attack.turns}", ttl=TTL)
        if new_connections:
            attack.admin.client_kill_filter(_type="normal", skipme=True)
        attack.interrupt(lambda lock=lock: cycle(lock))
        attack.calm(lock)
        attack.freed(lock)
        attack.probe()


def within_a_timeout(attack: Attack) -> None:
    """A short timeout: another thread asks for the lock, and must not take it for an interrupted caller."""

    def once(lock: RLock) -> None:
        if lock.acquire(timeout=0.5):
            lock.release()

    attack.measure(lambda: once(RLock("measured", ttl=TTL)))
    while not attack.over():
        attack.turns += 1
        lock = RLock(f"key-{attack.turns}", ttl=TTL)
        attack.interrupt(lambda lock=lock: once(lock))
        attack.calm(lock)
        time.sleep(0.01)  # the other thread may still ask
        attack.freed(lock)
        attack.probe()


def contended(attack: Attack) -> None:
    """The main thread waits in line when the signal comes; another thread holds the lock, and releases."""
    while not attack.over():
        attack.turns += 1
        lock = RLock(f"key-{attack.turns}", ttl=TTL)
        holding, done = threading.Event(), threading.Event()

        def hold(lock=lock, holding=holding, done=done) -> None:
            with lock:
                holding.set()
                done.wait(random.uniform(0.001, 0.02))

        holder = threading.Thread(target=hold, daemon=True)
        holder.start()
        if not holding.wait(FREED_WITHIN):
            attack.wrong.append("another thread cannot acquire a free lock")
            break
        attack.reach = 0.03
        attack.interrupt(lambda lock=lock: cycle(lock))
        attack.calm(lock)
        done.set()
        holder.join()
        if not lock.acquire(timeout=FREED_WITHIN):
            attack.stuck.append(lock.key)
        attack.calm(lock)
        attack.freed(lock)
        attack.probe()


def in_company(attack: Attack) -> None:
    """Another thread of the process locks all the time; a mutex that is left locked stops it."""

    def work() -> None:
        number = 0
        while True:
            number += 1
            with suppress(RLockError), RLock(f"company-{number % 3}", ttl=0.5 + number % 3):
                attack.worked += 1

    companions = [threading.Thread(target=work, daemon=True) for _ in range(2)]
    for companion in companions:
        companion.start()
    time.sleep(0.2)
    attack.measure(lambda: cycle(RLock("measured", ttl=TTL)))
    seen, at = attack.worked, time.monotonic()
    while not attack.over():
        attack.turns += 1
        lock = RLock(f"key-{attack.turns}", ttl=TTL)
        attack.interrupt(lambda lock=lock: cycle(lock))
        attack.calm(lock)
        attack.freed(lock)
        attack.probe()
        if attack.worked > seen:
            seen, at = attack.worked, time.monotonic()
        elif time.monotonic() - at > FREED_WITHIN:
            attack.wrong.append("the other threads stand still")
    if not all(companion.is_alive() for companion in companions):
        attack.wrong.append("another thread died")


def with_events(attack: Attack) -> None:
    """The main thread announces events of its lock when the signal comes, as a task does with `-E`."""
    app = Celery("events", broker=attack.url, set_as_current=False)

    def announce() -> None:
        for _ in range(20):
            _sender.send(app, "attacked@host", ACQUIRED, {"uuid": str(attack.turns)})

    attack.measure(announce)
    while not attack.over():
        attack.turns += 1
        attack.interrupt(announce)
        other = threading.Thread(target=announce, daemon=True)
        other.start()
        other.join(FREED_WITHIN)
        if other.is_alive():
            attack.wrong.append("another thread cannot send events any more")
            break
    if not arrives(app):
        attack.wrong.append("an event after the attack did not arrive")


def arrives(app: Celery) -> bool:
    """Whether an event arrives that is sent again and again from now on."""
    arrived = threading.Event()

    def send() -> None:
        while not arrived.wait(0.1):
            _sender.send(app, "attacked@host", RELEASED, {"uuid": "after the attack"})

    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={RELEASED: lambda _: arrived.set()})
        threading.Thread(target=send, daemon=True).start()
        with suppress(TimeoutError):
            for _ in receiver.consume(limit=None, timeout=FREED_WITHIN, wakeup=False):
                if arrived.is_set():
                    return True
    return arrived.is_set()


SCENARIOS = {
    "uncontended": lambda attack: uncontended(attack, new_connections=False),
    "new_connections": lambda attack: uncontended(attack, new_connections=True),
    "within_a_timeout": within_a_timeout,
    "contended": contended,
    "in_company": in_company,
    "with_events": with_events,
}


def main(url: str, scenario: str, seconds: str) -> None:
    faulthandler.dump_traceback_later(float(seconds) + MORE_TIME + 4 * FREED_WITHIN, exit=True)
    app = Celery("interrupted", broker="memory://")
    app.conf.rlock_url = url
    app.set_default()
    attack = Attack(url, float(seconds))
    SCENARIOS[scenario](attack)
    attack.report()


if __name__ == "__main__":
    main(*sys.argv[1:])
