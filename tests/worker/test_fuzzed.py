"""Anything in our headers, on our channels and in a lock's keys, against a real worker.

After each round the worker still runs tasks, and everything outside the prefix is as it was. A round takes
a few tenths of a second. RLOCK_FUZZ_ROUNDS=2000 runs as many of each kind.
"""

from __future__ import annotations

import contextlib
import os
import re

import pytest
from celery import states
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from celery_rlock.errors import RLockError
from celery_rlock.options.options import NAMES
from tests.support import neighbours
from tests.support.fixtures import new_name, sender
from tests.worker.awaiting import SOON, WAITING, lock

QUEUE = "fuzzed"
UNIQUE = "tests.worker.proj.unique"
HEADERS = ["options", "attempts", "unavailable", "redelivery", "since", "seal", "waits_for", "retries"]
HEADERS += ["delivery", "received", "events", "call"]

ROUNDS = int(os.environ.get("RLOCK_FUZZ_ROUNDS", "25"))
rounds = settings(
    max_examples=ROUNDS,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

#: Numbers that are refused, or so short that a round does not wait for them.
numbers = st.one_of(
    st.floats(-1, 0.05, allow_subnormal=False),
    st.sampled_from([float("inf"), float("-inf"), float("nan"), -1, 0, 10**8, 10**30, -(10**300), 1e300]),
)
texts = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["leaderboard", "userhash", "text", "rlock", "rlock:{x}", "rlock:", "celery", "unacked"]),
    st.sampled_from(
        ["{name}", "{name:>999999999}", "{gone}", "{name!r}", "{", "skip", "fail", "publish", "start"]
    ),
)
junk = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
options = st.dictionaries(st.sampled_from(NAMES) | texts, junk, max_size=3)
counts = st.sampled_from([1, 2, 10**9, 10**10, -1, "1", True])
values = {"options": options | junk, "attempts": counts | junk, "since": st.integers(-1, 2**54) | junk}
our_headers = st.dictionaries(st.sampled_from(HEADERS), st.none(), max_size=4).flatmap(
    lambda names: st.fixed_dictionaries({f"rlock_{name}": values.get(name, junk) for name in names})
)
headers = our_headers | st.fixed_dictionaries({"headers": our_headers | junk}) | our_headers
when = st.sampled_from([{}, {"countdown": 0.01}, {"countdown": 600}, {"expires": 0.001}])
tasks = st.sampled_from(
    [(WAITING, "work"), (WAITING, "late"), (UNIQUE, "once"), (WAITING, "in_place_briefly")]
)


@pytest.fixture(scope="module")
def worker(start_fleet):
    with start_fleet(1, queues=[QUEUE], concurrency=3) as [worker]:
        yield worker


@pytest.fixture
def check(worker, publisher, backend, locks):
    """`with check():` after the block the worker goes on, and its neighbours on the server are as before."""
    neighbours.move_in(locks)
    send = sender(WAITING, publisher, backend)

    @contextlib.contextmanager
    def checked():
        before = neighbours.belongings(locks)
        yield
        name, options = [worker.nodename], {"reply": True, "timeout": 10, "limit": 1}
        assert publisher.control.broadcast("locks", destination=name, **options)
        sent = send("work", new_name(), queue=QUEUE)
        assert sent.get(timeout=SOON) == sent.id
        assert worker.running
        assert not re.findall(r".*CRITICAL.*|.*Unrecoverable.*", worker.log)
        assert neighbours.belongings(locks) == before

    return checked


def error_of(sent):
    with pytest.raises(Exception) as error:
        sent.get(timeout=SOON)
    return error.value


@pytest.mark.timeout(120 + 3 * ROUNDS)
@pytest.mark.usefixtures("worker")
class TestFuzzed:
    def test_headers(self, check, publisher, backend):
        @rounds
        @given(st.lists(st.tuples(tasks, headers, when), min_size=4, max_size=8))
        def fuzz(messages):
            with check():
                for (module, task), given_headers, moment in messages:
                    sender(module, publisher, backend)(
                        task, new_name(), queue=QUEUE, headers=given_headers, **{"expires": 60, **moment}
                    )

        fuzz()

    def test_messages_on_the_channel_of_a_worker(self, check, send, hold, waiters, locks):
        """While a task waits in that worker. It may be woken for nothing, and waits again."""
        name = new_name()
        with hold(name):
            sent = send("work", name, queue=QUEUE)
            waiters.await_count(name, 1)
            listener = waiters(name)[0].partition(":")[0]
            locks_named = [lock(name), "leaderboard", "userhash", "text", "list", "rlock", "rlock:{x}", ""]
            waiters_named = [f"{listener}:0:x", f"{listener}:", ":", *waiters(name)]
            said = st.one_of(
                st.binary(max_size=50),
                st.tuples(
                    st.sampled_from(["turn", "next", "shout"]),
                    st.floats(0, 9).map(str),
                    st.sampled_from(locks_named) | st.text(max_size=10),
                    st.sampled_from(waiters_named) | st.text(max_size=10),
                ).map(" ".join),
            )

            @rounds
            @given(st.lists(said, min_size=5, max_size=20))
            def fuzz(messages):
                with check():
                    for message in messages:
                        locks.publish(f"rlock:wake:{listener}", message)

            fuzz()
        assert sent.get(timeout=SOON) == sent.id

    def test_values_of_the_keys_of_a_lock(self, check, send, locks):
        """Before a task takes the lock, while it runs and while others wait for it."""
        fields = ["@token", "@worker", "@attempt", "@since", "@task", "@redelivered", "", "1:x"]
        data = st.one_of(
            st.binary(max_size=20),
            st.sampled_from([b"9" * 5000, b"-1", b"nan", b"inf", "²".encode(), b"\x1b[31m", b"L:1:x"]),
        )
        number = st.sampled_from(["0", "1", "3", str(2**53), "9" * 17, "9" * 400, "-1", "x"])
        record = st.lists(number, min_size=7, max_size=7).map(
            lambda said: f"{' '.join(said)} 0 1 w\nt".encode()
        )
        waiter = st.builds("L/{}:1:x".format, number).map(str.encode)
        data |= record | waiter
        fields += ["rest.0:x", "rest.:", "turn:L/3:1:x", "turn:"]
        places = st.sampled_from(["", ":token", ":waiters", ":woken", ":done:x:0"])
        scores = st.sampled_from(["-inf", "inf", "0", "1e300"])
        writes = st.one_of(
            st.tuples(st.just("SET"), places, data),
            st.tuples(st.just("RPUSH"), places, data),
            st.tuples(st.just("HSET"), places, st.sampled_from(fields) | data, data),
            st.tuples(st.just("ZADD"), places, scores, data),
            st.tuples(st.just("DEL"), places),
        )
        moment = st.sampled_from(["before", "during"])

        everything = []

        @rounds
        @given(st.lists(st.tuples(moment, writes), min_size=1, max_size=6))
        def fuzz(changes):
            name = new_name()

            def write(at):
                for this_moment, (command, place, *arguments) in changes:
                    if this_moment == at:
                        with contextlib.suppress(ResponseError):  # the key has another type already
                            locks.execute_command(command, lock(name) + place, *arguments)
                            locks.pexpire(lock(name) + place, 300)

            with check():
                write("before")
                tasks_here = ("soon_again", "late", "short_lease", "in_place_briefly", "one_of_three")
                everything.extend(send(task, name, queue=QUEUE, expires=5) for task in tasks_here)
                write("during")

        fuzz()
        failures = [error_of(sent) for sent in everything if sent.state == states.FAILURE]
        assert [error for error in failures if not isinstance(error, RLockError)] == []
