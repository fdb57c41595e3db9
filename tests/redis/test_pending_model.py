"""The scripts of the pending calls follow a model, for any sequence of requests. Time is virtual.

What the model knows: a call that was told of another call, or that was superseded, can rely on a call that is
published and has not begun.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from celery_rlock.server.owner import QUEUED
from tests.interleavings.virtual_server import LUA
from tests.redis.conftest import LOCK, WAITERS
from tests.redis.test_places_model import VirtualRedis
from tests.support.fuzz import EXAMPLES

PENDING = f"{LOCK}:pending"
RESERVATION, LEASE, TTL, MEMORY = 5_000, 60_000, 900, 3_600_000
RESERVED, BUSY, ASK_AGAIN = 1, 0, 2
NOT_QUEUED, QUEUED_NOW, INSTEAD, NAME_OLDER, LATER = 0, 1, 2, 3, -1
IDS = "abc"


def mark(task_id):
    return f"{LOCK}:superseded:{task_id}"


class PendingScripts(VirtualRedis):
    """The three scripts with their arguments by name. Each request is sent twice, as after a lost reply."""

    def reserve(self, task_id, attempt, *, limit, replace, kept=False):
        args = (task_id, attempt, "w", "task", 0, RESERVATION, limit, int(replace), 0, int(kept), TTL, 0)
        return self._twice("reserve", [PENDING, LOCK, mark(task_id)], args)

    def queue(self, task_id, attempt, *, limit, replace, older="", token=""):
        while True:
            keys = [PENDING, LOCK, WAITERS, mark(older), mark(task_id)]
            args = (task_id, attempt, LEASE, limit, MEMORY, older, int(replace))
            args += (token, "w", "task") if token else ()
            status, *rest = self._twice("queue", keys, args)
            if status != NAME_OLDER:
                return status, (rest or [older])[0]
            older = rest[0]

    def unqueue(self, task_id, attempt="", *, begins=False):
        return self._twice("unqueue", [PENDING, mark(task_id)], (task_id, attempt, int(begins)))

    def _twice(self, verb, keys, args):
        first = self.run(verb, keys, *args)
        second = self.run(verb, keys, *args)
        if verb != "reserve":
            assert first == second
        else:
            assert first[0] == second[0]
        return first

    def states(self):
        """The live records: whether each call is queued."""
        found = next((values for name, _, values, _ in self.keys if name == PENDING), [])
        records = dict(zip(found[::2], found[1::2], strict=True))
        parts = {task_id: record.split(" ", 6) for task_id, record in records.items()}
        return {task_id: part[3] == "1" for task_id, part in parts.items() if int(part[0]) > self.now}


class Pending(RuleBasedStateMachine):
    """Publishers, workers and a lock. A call is published between its reservation and its queueing."""

    def __init__(self, redis, limit, *, replace):
        super().__init__()
        self.redis, self.limit, self.replace = redis, limit, replace
        redis.keys = []
        self.reserved = {}  #: attempt and the older call by id, not yet published
        self.published = {}  #: attempt and the older call by id, published and not yet queued
        self.queued = {}  #: ids with a place → when it ends
        self.waiting = set()  #: published, not begun, and not superseded
        self.relied_on = {}  #: superseded ids → by whom
        self.made, self.until, self.kept = (
            {},
            {},
            set(),
        )  #: of each call: its number, and how it may be replaced
        self.count = 0

    @rule(task_id=st.sampled_from(IDS), kept=st.booleans())
    def reserve(self, task_id, kept):
        if task_id in self.reserved or task_id in self.published or task_id in self.waiting:
            return
        self.count += 1
        replace = self.replace and not kept
        before = self.redis.states()
        reply = self.redis.reserve(task_id, str(self.count), limit=self.limit, replace=replace, kept=kept)
        if reply[0] == RESERVED:
            older = reply[4] if len(reply) > 4 else ""
            self.reserved[task_id] = (str(self.count), older, replace, self.redis.now)
            self.relied_on.pop(task_id, None)
            self.made[task_id], self.until[task_id] = self.count, self.redis.now + TTL * 1000
            (self.kept.add if kept else self.kept.discard)(task_id)
            assert replace or len(before) < self.limit
            assert not older or before[older]
        elif reply[0] == BUSY:
            told = reply[3].removeprefix(f"{QUEUED}:")
            assert before[told] and told in self.waiting
            assert sum(before.values()) >= self.limit
        else:
            assert reply[0] == ASK_AGAIN
            assert not all(before.values())

    @rule(task_id=st.sampled_from(IDS))
    def publish(self, task_id):
        if task_id in self.reserved:
            self.published[task_id] = self.reserved.pop(task_id)
            self.waiting.add(task_id)

    @rule(task_id=st.sampled_from(IDS))
    def fail_to_publish(self, task_id):
        if task_id in self.reserved:
            before = self.redis.states()
            self.redis.unqueue(task_id, self.reserved.pop(task_id)[0])
            assert self.redis.states() == {one: is_in for one, is_in in before.items() if one != task_id}

    @rule(task_id=st.sampled_from(IDS))
    def queue(self, task_id):
        if task_id not in self.published:
            return
        attempt, older, replace, _ = self.published.pop(task_id)
        before = self.redis.states()
        status, other = self.redis.queue(task_id, attempt, limit=self.limit, replace=replace, older=older)
        self._learn(task_id, status, other, before)

    def _learn(self, task_id, status, other, before):
        if status in {QUEUED_NOW, INSTEAD}:
            self.queued[task_id] = self.redis.now + LEASE * 1000
        if status == INSTEAD and other in self.waiting:
            assert self.replace and before.get(other)
            assert self.redis.now <= self.until[other]
            self.until[task_id] = self.until[other]
            self._superseded(other, task_id)
        if status == LATER:
            assert self.replace and other in self.waiting
            self._superseded(task_id, other)
        if status == NOT_QUEUED:
            self.queued.pop(task_id, None)

    def _superseded(self, older, later):
        assert older not in self.kept
        assert self.made[older] < self.made[later]
        self.waiting.discard(older)
        self.queued.pop(older, None)
        self.relied_on[older] = later

    @rule(task_id=st.sampled_from(IDS))
    def begin(self, task_id):
        """A worker gets the message, also of a superseded call, and also a second time."""
        if task_id not in self.waiting and task_id not in self.relied_on:
            return
        before = self.redis.states()
        reply = self.redis.unqueue(task_id, begins=self.replace)
        if reply[0] == 2:  # faster than its publisher
            attempt, _, replace, _ = self.published[task_id]
            assert reply[1] == attempt
            status, other = self.redis.queue(task_id, attempt, limit=self.limit, replace=replace)
            self._learn(task_id, status, other, before)
            reply = self.redis.unqueue(task_id, begins=self.replace)
        if task_id in self.relied_on:
            assert reply == [0, self.relied_on[task_id]]
            return
        assert reply == [1]
        assert task_id not in self.redis.states()
        self.waiting.discard(task_id)
        self.queued.pop(task_id, None)

    @rule(task_id=st.sampled_from(IDS), kept=st.booleans())
    def call(self, task_id, kept):
        """All three steps of a publisher."""
        self.reserve(task_id, kept)
        self.publish(task_id)
        self.queue(task_id)

    @rule(task_id=st.sampled_from(IDS), holds=st.booleans())
    def retry(self, task_id, holds):
        """The retry of a run takes a place only while the run has the lock."""
        if task_id in self.waiting or task_id in self.reserved or task_id in self.published:
            return
        self.redis.keys = [key for key in self.redis.keys if key[0] != LOCK]
        self.redis.keys.append([LOCK, "hash", ["d:x", "1", "@token", "77" if holds else "78"], 60_000])
        before = self.redis.states()
        self.count += 1
        status, _ = self.redis.queue(
            task_id, f"r{self.count}", limit=self.limit, replace=self.replace, token="77"
        )
        assert (status == QUEUED_NOW) == (holds and len(before) < self.limit)
        if status == QUEUED_NOW and task_id not in self.relied_on:
            self.waiting.add(task_id)
            self.made[task_id] = self.count
            self.kept.add(task_id)
        if status == QUEUED_NOW and task_id in self.relied_on:
            self.redis.unqueue(task_id, f"r{self.count}")  # a superseded call has no run that could retry

    @rule(ms=st.sampled_from([1, TTL + 1, TTL + 1, RESERVATION + 1, LEASE]))
    def advance(self, ms):
        self.redis.advance(ms)
        self.queued = {task_id: ends for task_id, ends in self.queued.items() if ends > self.redis.now}

    @invariant()
    def no_more_calls_are_queued_than_may_be(self):
        assert sum(self.redis.states().values()) <= self.limit

    @invariant()
    def a_queued_call_is_published_and_has_not_begun(self):
        queued = {task_id for task_id, is_queued in self.redis.states().items() if is_queued}
        assert queued <= self.waiting

    @invariant()
    def a_superseded_call_leads_to_one_that_runs_or_has_run(self):
        for older in self.relied_on:
            seen = {older}
            later = self.relied_on[older]
            while later in self.relied_on:
                assert later not in seen
                seen.add(later)
                later = self.relied_on[later]

    @invariant()
    def every_key_expires(self):
        assert [name for name, _, _, left in self.redis.keys if left < 0] == []


def shipped():
    return {verb: (LUA / f"{verb}.lua").read_text() for verb in ("reserve", "queue", "unqueue")}


def run(server, sources, limit, *, replace, examples=EXAMPLES // 5, phases=(Phase.generate, Phase.shrink)):
    redis = PendingScripts(server.client(decode_responses=True), sources)
    run_state_machine_as_test(
        lambda: Pending(redis, limit, replace=replace),
        settings=settings(
            max_examples=max(10, examples),
            stateful_step_count=40,
            deadline=None,
            database=None,
            phases=phases,
            derandomize=len(phases) == 1,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("replace", [False, True], ids=["existing", "replace"])
@pytest.mark.parametrize("limit", [1, 2])
def test_the_scripts_of_the_pending_calls_follow_the_model(server, limit, replace):
    """Semantics 4, 18 and 19."""
    run(server, shipped(), limit, replace=replace)


MUTATIONS = {
    "a reservation counts as queued": (
        "reserve",
        "elseif is_queued == '1' then\n    queued",
        "elseif true then\n    queued",
    ),
    "a call that is kept is superseded": ("queue", "oldest.kept == '1' or", ""),
    "a call may be superseded for ever": ("queue", "or tonumber(oldest.until_when) <= now", ""),
    "a superseded call stays queued": ("queue", "redis.call('HDEL', KEYS[1], oldest.id)\nredis", "redis"),
    "a superseded call is not marked": ("unqueue", "if later then", "if false then"),
    "a run keeps its place": ("unqueue", "redis.call('HDEL', KEYS[1], ARGV[1])", ""),
    "a call that began is queued afterwards": (
        "queue",
        "if not mine or mine.attempt ~= ARGV[2] then",
        "mine = mine or {until_when = 0, order = 0, kept = 0, worker = '', task = ''}\nif false then",
    ),
    "a retry is queued though its run lost the lock": (
        "queue",
        "or redis.call('HGET', KEYS[2], '@token') ~= ARGV[8]",
        "or not redis.call('HGET', KEYS[2], '@token')",
    ),
    "the order of the calls does not count": ("queue", "if oldest.order > mine.order then", "if false then"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_model_notices_a_script_that_is_broken_on_purpose(server, name):
    verb, old, new = MUTATIONS[name]
    sources = shipped()
    assert old in sources[verb]
    sources[verb] = sources[verb].replace(old, new, 1)
    with pytest.raises((AssertionError, KeyError, TypeError)):
        for replace in (True, False):
            run(server, sources, 1, replace=replace, examples=2000, phases=(Phase.generate,))
