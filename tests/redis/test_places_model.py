"""The scripts follow a model, for any sequence of requests of owners with any limits. Time is virtual."""

from __future__ import annotations

import json
import math
from itertools import takewhile
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from celery_rlock.server.lock_record import place_in
from tests.interleavings.virtual_server import HERE, LUA
from tests.redis.conftest import DONE, LOCK, TOKEN, WAITERS, WOKEN
from tests.redis.places import BUSY, GONE, LINE, OTHER_FORM, TAKEN
from tests.support.fuzz import EXAMPLES

KEYS = [LOCK, TOKEN, WAITERS, WOKEN]
OWNERS = [f"{nonce}:{task}" for task in "abcdef" for nonce in "12"]
TTL, LONG_HOLD, TRUST = 10_000, 25_000, 1_000
RELEASED, NOT_YET, FREE, NOT_OWNER, WAKE_AGAIN = 1, 2, 0, -1, 3


class VirtualRedis:
    """Runs the shipped scripts on the keys that it keeps, at a time that only `advance` changes."""

    def __init__(self, client, sources):
        frame = (HERE / "virtual_time.lua").read_text()
        self._scripts = {
            verb: client.register_script(frame.replace("\nSHIPPED\n", f"\n{source}\n"))
            for verb, source in sources.items()
        }
        self.now, self.keys, self.published = 1_000_000_000_000_000, [], []

    def advance(self, ms):
        self.now += ms * 1000
        self.keys = [[*key, left - ms] for *key, left in self.keys if left - ms > 0]

    def run(self, verb, names, *args):
        self.now += 1  # no two requests have the same time
        question = {
            "now": self.now,
            "keys": [
                [name, kind, _for_writing(kind, values), left] for name, kind, values, left in self.keys
            ],
            "listeners": ["rlock:wake:L"],
            "names": names,
            "args": [str(arg) for arg in args],
        }
        reply, keys, self.published = self._scripts[verb](args=[json.dumps(question)])
        self.keys = [list(key) for key in keys]
        return reply

    def hash(self):
        for name, _, values, _ in self.keys:
            if name == LOCK:
                return dict(zip(values[::2], values[1::2], strict=True))
        return {}

    def places(self):
        """The owners inside: the record of each, also of an owner of the whole key."""
        fields = self.hash()
        if "@token" in fields:
            (owner,) = (field for field in fields if not field.startswith("@"))
            return {owner: (0, 1, int(fields["@token"]), int(fields[owner]))}
        records = {field: place_in(record) for field, record in fields.items()}
        return {
            field: (record.slot, record.limit, record.token, record.depth)
            for field, record in records.items()
            if record.ends > self.now and not field.startswith("turn:")
        }

    def turns(self):
        """The waiters that were woken and have a place."""
        turns = [field.removeprefix("turn:") for field in self.hash() if field.startswith("turn:")]
        live = [waiter for waiter in turns if place_in(self.hash()[f"turn:{waiter}"]).ends > self.now]
        return live + [values for name, _, values, _ in self.keys if name == WOKEN]

    def line(self):
        return next((values[::2] for name, _, values, _ in self.keys if name == WAITERS), [])


def _for_writing(kind, values):
    """ZADD wants the score first."""
    if kind != "zset":
        return [values] if kind == "string" else values
    return [item for i in range(0, len(values), 2) for item in (values[i + 1], values[i])]


class Inside(NamedTuple):
    """What the model knows about an owner that is inside, or about its place that rests."""

    ends: int
    limit: int
    rests_until: int
    token: int
    depth: int = 1


class Places(RuleBasedStateMachine):
    """Every request may be sent twice, as a client does that lost the reply."""

    def __init__(self, redis):
        super().__init__()
        self.redis = redis
        redis.keys = []
        self.inside, self.attempts, self.last_token = {}, 0, 0

    def live(self):
        return {owner: place for owner, place in self.inside.items() if place.ends > self.redis.now}

    def room_for(self, limit, but_for=""):
        """Whether an owner with this limit fits in, beside the woken waiters other than `but_for`."""
        limits = [place.limit for place in self.live().values()]
        limits += [limit_of(waiter) for waiter in self.redis.turns() if owner_of(waiter) != but_for]
        return len(limits) < min([limit, *limits])

    def send(self, verb, names, *args, twice):
        alive = [waiter for waiter in self.redis.line() if waiter.startswith("L")]
        reply = self.redis.run(verb, names, *args)
        published = self.redis.published
        if verb == "release":  # a waiter leaves the line only for its turn
            assert set(alive) <= {*self.redis.line(), *self.redis.turns()}
        if twice:
            again = self.redis.run(verb, names, *args)
            self.redis.published = published + self.redis.published
            assert verb == "release" or _without_times(again) == _without_times(reply)
        return reply

    @rule(
        owner=st.sampled_from(OWNERS),
        limit=st.integers(1, 4),
        hold=st.sampled_from([0, 0, LONG_HOLD]),
        waits=st.sampled_from([None, None, None, "L", "D"]),
        twice=st.booleans(),
    )
    def acquire(self, owner, limit, hold, waits, twice):
        waiter = f"{waits}{'' if limit == 1 else f'/{limit}'}:{owner}" if waits else ""
        self.come(owner, limit, hold, waiter, twice=twice)

    @precondition(lambda self: self.redis.turns())
    @rule(data=st.data(), names_its_place=st.booleans(), twice=st.booleans())
    def use_a_turn(self, data, names_its_place, twice):
        waiter = data.draw(st.sampled_from(self.redis.turns()))
        if owner_of(waiter) in self.live():
            return  # it has come with another limit, and does not ask
        self.come(owner_of(waiter), limit_of(waiter), 0, waiter if names_its_place else "", twice=twice)
        if owner_of(waiter) in self.live():
            assert waiter not in self.redis.turns()

    def come(self, owner, limit, hold, waiter, *, twice):
        if owner in self.live():
            return
        if limit == 1:
            hold = 0
        self.attempts += 1
        message, line = owner.partition(":")[2], self.redis.line()
        turns = [turn for turn in self.redis.turns() if owner_of(turn) == owner]
        is_redelivered = any(other.partition(":")[2] == message for other in self.owners())
        status, rest = self.ask(owner, limit, hold, waiter, twice=twice)
        ahead = list(takewhile(lambda place: owner_of(place) != owner, line))
        before_it = [place for place in ahead if place in self.redis.line() and not turns]
        if any(limit_of(turn) == limit for turn in turns):  # a place is kept for it
            assert status == TAKEN or is_redelivered
        if status == TAKEN:
            assert not is_redelivered
            assert not before_it
            assert self.room_for(limit, but_for=owner)
            token = rest[0]
            assert token > self.last_token
            self.last_token = token
            until = self.redis.now + hold * 1000 if hold else 0
            ends = max(self.redis.now + TTL * 1000, until)
            self.inside[owner] = Inside(ends, limit, until, token)
        else:
            assert status == BUSY
            assert is_redelivered or before_it or not self.room_for(limit, but_for=owner)
            assert not waiter or waiter in self.redis.line()

    def ask(self, owner, limit, hold, waiter, *, twice):
        """As RedisLockServer.acquire asks."""
        common = (owner, "w", TTL, "t", self.attempts, 0)
        forms = [
            ("acquire", (1, waiter, 0, 60_000, int(limit > 1))),
            ("acquire_place", (limit, hold, 1, waiter, 0, 60_000)),
        ]
        forms = forms if limit == 1 else forms[::-1]
        for _ in range(6):
            verb, args = forms[0]
            status, _, *rest = self.send(verb, KEYS, *common, *args, twice=twice)
            if status == OTHER_FORM:
                forms = forms[::-1]
            elif status == LINE:
                self.wake("", twice=twice)
            else:
                assert status != TAKEN or limit == 1 or verb == "acquire_place"
                return status, rest
        return BUSY, []

    @precondition(lambda self: self.owners())
    @rule(data=st.data(), depth=st.integers(2, 3), limit=st.integers(1, 4), twice=st.booleans())
    def re_enter(self, data, depth, limit, twice):
        owner = data.draw(st.sampled_from(self.owners()))
        place = self.inside[owner]
        attempt = self.attempt_of(owner)
        reply = self.send(
            "acquire_place", KEYS, owner, "w", TTL, "t", attempt, 0, limit, 0, depth, "", 0, 0, twice=twice
        )
        if reply[0] == OTHER_FORM:
            reply = self.send("acquire", KEYS, owner, "w", TTL, "t", attempt, 0, depth, twice=twice)
        assert (reply[0], reply[2]) == (TAKEN, place.token)
        ends = max(place.ends, self.redis.now + TTL * 1000)
        self.inside[owner] = place._replace(depth=depth, ends=ends)

    def attempt_of(self, owner):
        fields = self.redis.hash()
        return fields["@attempt"] if "@token" in fields else place_in(fields[owner]).attempt

    def owners(self):
        """Those that run: a place that rests has no owner."""
        return sorted(owner for owner in self.live() if not owner.startswith("rest"))

    @precondition(lambda self: self.owners())
    @rule(data=st.data(), fenced=st.booleans(), twice=st.booleans())
    def release(self, data, fenced, twice):
        owner = data.draw(st.sampled_from(self.owners()))
        place, slot = self.inside.pop(owner), self.redis.places()[owner][0]
        reply = self.send("release", KEYS, owner, place.token if fenced else "", twice=twice)
        assert reply in {RELEASED, WAKE_AGAIN}
        if place.rests_until > self.redis.now:
            name = f"rest.{slot}:{owner.partition(':')[2]}"
            self.inside[name] = place._replace(ends=place.rests_until, depth=1)
        else:
            self.check_line()

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), delta=st.sampled_from([0, 0, -1]), twice=st.booleans())
    def renew(self, data, delta, twice):
        owner = data.draw(st.sampled_from(sorted(self.inside)))
        place = self.inside[owner]
        if owner.startswith("rest"):
            return
        reply = self.send("renew", [LOCK], owner, place.token + delta, TTL, twice=twice)
        is_held = owner in self.live() and not delta
        assert reply == int(is_held)
        if is_held:
            self.inside[owner] = place._replace(ends=max(place.ends, self.redis.now + TTL * 1000))

    @rule(owner=st.sampled_from(OWNERS), token=st.integers(10**12, 10**14))
    def touch_nothing_of_others(self, owner, token):
        """A release or renewal with a token of the past, or of an owner that is not inside."""
        before = self.redis.places()
        assert self.redis.run("renew", [LOCK], owner, token, TTL) == 0
        assert self.redis.run("release", KEYS, owner, token) in {FREE, NOT_OWNER}
        assert self.redis.places() == before

    @rule(owner=st.sampled_from(OWNERS), depth=st.integers(2, 3))
    def re_enter_nothing(self, owner, depth):
        if owner not in self.live():
            args = (owner, "w", TTL, "t", 10**9, 0, 4, 0, depth, "", 0, 0)
            status = self.redis.run("acquire_place", KEYS, *args)[0]
            assert status in {GONE, OTHER_FORM}

    @rule(ms=st.sampled_from([1, 400, TRUST, TTL // 2, TTL + 1, LONG_HOLD]))
    def pass_time(self, ms):
        live = self.live()
        self.redis.advance(ms)
        for owner in live.keys() - self.live().keys():  # at once: the next script may remove its record
            assert self.redis.run("renew", [LOCK], owner, live[owner].token, TTL) == 0

    @precondition(lambda self: len({place.ends for place in self.live().values()}) > 1)
    @rule(renews=st.booleans(), twice=st.booleans())
    def let_one_lease_end(self, renews, twice):
        """That of the first; the others still hold their places."""
        owner, place = min(self.live().items(), key=lambda item: item[1].ends)
        self.redis.advance((place.ends - self.redis.now) // 1000 + 1)
        if renews and not owner.startswith("rest"):
            assert self.send("renew", [LOCK], owner, place.token, TTL, twice=twice) == 0

    @precondition(lambda self: self.redis.line())
    @rule(data=st.data(), twice=st.booleans())
    def ask_from_the_line(self, data, twice):
        """What a waiter hears is right: 0 if the first of the line can enter, else it may sleep so long."""
        waiter = data.draw(st.sampled_from(self.redis.line()))
        first = self.redis.line()[0]
        ms = self.send("wait", [LOCK, WAITERS, WOKEN], waiter, 1, 60_000, twice=twice)
        has_room = self.room_for(limit_of(first)) and WOKEN not in {key[0] for key in self.redis.keys}
        assert (ms == 0) == has_room
        if ms == 0:
            self.wake("", twice=twice)

    @precondition(lambda self: self.redis.turns())
    @rule(data=st.data(), twice=st.booleans())
    def give_up_a_turn(self, data, twice):
        self.wake(data.draw(st.sampled_from(self.redis.turns())), twice=twice)

    def wake(self, instead_of, *, twice):
        self.send("release", KEYS, "", "", 0, 0, "", 0, instead_of, twice=twice)
        # A waiter that has asked again is woken again, and a repeated request gives that turn up too.
        self.check_line(but_for=instead_of if twice else "")

    def woken(self):
        return [said.split(" ", 3)[3] for _, said in self.redis.published if said.startswith("turn")]

    def check_line(self, but_for=""):
        """No place is idle while a waiter could have it, and no more are woken than fit in."""
        line = self.redis.line()
        if line and not any(limit_of(waiter) == 1 for waiter in self.redis.turns()):
            assert not self.room_for(limit_of(line[0]))
        assert set(self.woken()) - {but_for} <= set(self.redis.turns())

    @rule(owner=st.sampled_from(OWNERS))
    def redelivery(self, owner):
        message = owner.partition(":")[2]
        expected = any(other.partition(":")[2] == message for other in self.owners())
        assert self.redis.run("redelivery", [LOCK, DONE], f":{message}", 0) == int(expected)

    @invariant()
    def redis_has_what_the_model_has(self):
        expected = {owner: (place.limit, place.token, place.depth) for owner, place in self.live().items()}
        assert {owner: found[1:] for owner, found in self.redis.places().items()} == expected

    @invariant()
    def each_owner_keeps_its_limit(self):
        limits = [place.limit for place in self.live().values()]
        limits += [limit_of(waiter) for waiter in self.redis.turns()]
        assert len(limits) <= min(limits, default=math.inf)

    @invariant()
    def slots_are_unique_and_below_the_limit(self):
        slots = [(slot, limit) for slot, limit, _, _ in self.redis.places().values()]
        assert len({slot for slot, _ in slots}) == len(slots)
        assert all(0 <= slot < limit for slot, limit in slots)

    @invariant()
    def nothing_lives_for_ever(self):
        assert all(0 < left <= 65_000 for *_, left in self.redis.keys)


def _without_times(reply):
    """What two answers to the same request have in common."""
    if not isinstance(reply, list):
        return reply == 0
    return [reply[0], *reply[2:]] if reply[0] == TAKEN else reply[:1]


def owner_of(waiter):
    return waiter.partition(":")[2]


def limit_of(waiter):
    listener = waiter.partition(":")[0]
    return int(listener.partition("/")[2] or 1)


def run(client, sources, **options):
    redis = VirtualRedis(client, sources)
    chosen = {"max_examples": max(1, EXAMPLES // 4), "stateful_step_count": 40, "deadline": None, **options}
    run_state_machine_as_test(
        lambda: Places(redis), settings=settings(suppress_health_check=list(HealthCheck), **chosen)
    )


def shipped():
    return {script.stem: script.read_text() for script in LUA.glob("*.lua")}


def test_the_scripts_follow_the_model(each_server):
    """Semantics 1, 3, 4, 10, 12, 14 and 17."""
    run(each_server.client(decode_responses=True), shipped())


MUTATIONS = {
    "one more than the limit enters": (
        "acquire_place",
        "taken >= math.min(limit, lowest)",
        "taken > math.min(limit, lowest)",
    ),
    "the limit of those inside does not count": (
        "acquire_place",
        "taken >= math.min(limit, lowest)",
        "taken >= limit",
    ),
    "a place whose lease has ended counts": ("acquire_place", "if lease <= now then", "if false then"),
    "two owners have one slot": ("acquire_place", "slots[slot or ''] = true", "slots[''] = true"),
    "a redelivered message gets a second place": ("acquire_place", "if other then", "if false then"),
    "a newcomer overtakes the line": ("acquire_place", "if first[1] and not is_first", "if false"),
    "a token does not grow": ("acquire_place", "math.max(now, last + 1)", "math.max(1, last)"),
    "a turn is not counted": (
        "release",
        "redis.call('HSET', KEYS[1], 'turn:' .. first,",
        "redis.call('HDEL', KEYS[1],",
    ),
    "more are woken than there are places": (
        "release",
        "if not first or taken >= math.min(lowest, limit_of(first))",
        "if not first",
    ),
    "no waiter is woken": ("release", "if is_heard(first, 'turn') then", "if false then"),
    "a release needs no token": (
        "release",
        "(ARGV[2] ~= '' and ARGV[2] ~= token and ARGV[2] ~= attempt)",
        "false",
    ),
    "a place does not rest": ("release", "if tonumber(rest) > now and", "if false and"),
    "a renewal needs no token": ("renew", "token ~= ARGV[2] or", "false or"),
    "a lease that has ended is renewed": ("renew", "or tonumber(lease) <= now then", "then"),
    "a waiter hears that nothing is free": (
        "wait",
        "return math.max(0, redis.call('PTTL', KEYS[3]))\n",
        "return 500\n",
    ),
}


@pytest.mark.parametrize("what", MUTATIONS)
def test_the_model_finds(what, server):
    """Each defect is put into the scripts."""
    verb, old, new = MUTATIONS[what]
    sources = shipped()
    assert old in sources[verb], f"lua/{verb}.lua has changed, so this mutation needs another text"
    sources[verb] = sources[verb].replace(old, new)
    # Most are found within a few hundred examples; the search ends with the first.
    options = {"max_examples": 3000, "phases": [Phase.generate], "report_multiple_bugs": False}
    with pytest.raises(AssertionError):
        run(server.client(decode_responses=True), sources, **options)
