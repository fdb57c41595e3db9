"""Semantics 12: an acquire honours the line and the turn of a woken waiter. Also its deadline and token."""

from __future__ import annotations

import pytest

from tests.redis.conftest import LOCK, LUA, TOKEN, WAITERS, WOKEN
from tests.redis.places import PlaceVerbs
from tests.redis.test_script_wait import listening

KEYS = (LOCK, TOKEN, WAITERS, WOKEN)
LINE = [2]


@pytest.fixture
def line(script_client):
    """Puts these waiters into the line, as if they had found the lock busy long ago."""

    def put(*waiters):
        script_client.zadd(WAITERS, {waiter: 100 * place for place, waiter in enumerate(waiters, 1)})
        script_client.pexpire(WAITERS, 50_000)

    return put


def waiters(script_client):
    return script_client.zrange(WAITERS, 0, -1)


def acquire_briefly(script_client, owner):
    """As most requests do: without the last four arguments."""
    source = (LUA / "acquire.lua").read_text()
    return script_client.eval(source, len(KEYS), *KEYS, owner, "w", 5000, "t", "1", 0)


class TestNewcomers:
    def test_a_newcomer_must_have_the_first_waiter_woken(self, verbs, line, script_client):
        line("L:2:b")
        assert verbs.acquire("3:c") == LINE
        assert acquire_briefly(script_client, "3:c")[0] == 2
        assert script_client.keys() == [WAITERS]

    def test_a_newcomer_takes_its_place_behind_the_line(self, verbs, line, script_client):
        line("L:2:b")
        assert verbs.acquire("3:c", waiter="L:3:c") == LINE
        assert waiters(script_client) == ["L:2:b", "L:3:c"]
        seconds = script_client.time()[0]
        assert abs(script_client.zscore(WAITERS, "L:3:c") / 1_000_000 - seconds) < 60

    def test_a_waiter_that_came_later_than_the_first_does_not_enter(self, verbs, line, script_client):
        line("L:2:b", "L:3:c")
        assert verbs.acquire("3:c", waiter="L:3:c", since=200) == LINE
        assert waiters(script_client) == ["L:2:b", "L:3:c"]

    def test_a_waiter_that_came_before_the_first_enters_and_leaves_the_line(self, verbs, line, script_client):
        line("L:2:b", "L:3:c")
        assert verbs.acquire("2:b", waiter="L:2:b", since=100)[0] == 1
        assert waiters(script_client) == ["L:3:c"]

    def test_a_waiter_that_lost_its_place_came_before_the_first(self, verbs, line):
        line("L:2:b")
        assert verbs.acquire("3:c", since=50)[0] == 1


class TestTurns:
    @pytest.fixture
    def turn(self, script_client):
        script_client.set(WOKEN, "L:2:b", px=800)

    def test_no_other_enters_in_the_turn_of_a_waiter(self, turn, verbs, script_client):
        for waiter in ("", "L:3:c"):
            status, left, *holder, _ = verbs.acquire("3:c", waiter=waiter)
            assert (status, holder) == (0, ["2:b", "", ""])
            assert 0 < left <= 800
        assert acquire_briefly(script_client, "3:c")[0] == 0
        assert waiters(script_client) == ["L:3:c"]
        assert script_client.get(WOKEN) == "L:2:b"

    def test_the_first_of_the_line_does_not_enter_in_the_turn_of_another(self, turn, verbs, line):
        line("L:3:c")
        assert verbs.acquire("3:c", waiter="L:3:c", since=100)[0] == 0

    @pytest.mark.parametrize("waiter", ["", "L:2:b"])
    def test_the_woken_waiter_enters_and_ends_its_turn(self, turn, verbs, line, script_client, waiter):
        line("L:3:c")
        assert verbs.acquire("2:b", waiter=waiter, since=300)[0] == 1
        assert not script_client.exists(WOKEN)
        assert waiters(script_client) == ["L:3:c"]

    def test_a_turn_that_another_program_wrote_may_never_end_by_itself(self, verbs, script_client):
        """So the caller has the first waiter woken, which replaces it."""
        script_client.set(WOKEN, "x")
        assert verbs.acquire("3:c") == LINE
        script_client.pexpire(WOKEN, 800)
        assert verbs.acquire("3:c")[2] == "x"


class TestPlaces:
    def test_a_waiter_that_asks_again_keeps_its_place(self, verbs, script_client):
        verbs.acquire("1:a")
        verbs.acquire("2:b", waiter="L:2:b", since=100)
        verbs.acquire("2:b", waiter="L:2:b")
        verbs.acquire("2:b", waiter="L:2:b", since=300)
        assert script_client.zrange(WAITERS, 0, -1, withscores=True) == [("L:2:b", 100)]


class TestDeadlines:
    def test_an_acquire_after_its_deadline_takes_nothing(self, verbs, script_client):
        seconds, _ = script_client.time()
        assert verbs.acquire("1:a", deadline=(seconds - 1) * 1_000_000) == [-2]
        assert script_client.keys() == []

    def test_an_acquire_before_its_deadline_takes_the_lock(self, verbs, script_client):
        seconds, _ = script_client.time()
        assert verbs.acquire("1:a", deadline=(seconds + 100) * 1_000_000)[0] == 1


class TestTokens:
    """Semantics 14: also when the server's clock has gone back."""

    @pytest.fixture
    def ahead(self, script_client):
        return (script_client.time()[0] + 3000) * 1_000_000

    def test_a_later_attempt_gets_a_larger_token(self, verbs, script_client, ahead):
        verbs.acquire("1:a", attempt="1")
        script_client.hset(LOCK, "@token", ahead)
        assert verbs.acquire("1:a", attempt="2") == [1, ahead + 1]

    def test_a_run_gets_a_larger_token_than_its_place_in_the_queue(self, verbs, script_client, ahead):
        verbs.acquire("queued:a")
        script_client.hset(LOCK, "@token", ahead)
        assert verbs.acquire("1:a") == [1, ahead + 1]

    def test_it_is_remembered_until_the_clock_has_caught_up_and_the_lease_is_over(
        self, verbs, script_client, ahead
    ):
        script_client.set(TOKEN, ahead)
        verbs.acquire("1:a", ttl=600_000)
        assert 3_300_000 < script_client.pttl(TOKEN) <= 3_601_000

    def test_a_number_that_lua_cannot_count_with_is_no_token(self, verbs, script_client):
        script_client.set(TOKEN, 2**60)
        _, token = verbs.acquire("1:a")
        assert int(token) < 2**53


class TestSeveralPlaces:
    """The same of lua/acquire_place.lua."""

    @pytest.fixture
    def verbs(self, each_server):
        return PlaceVerbs(each_server.client(decode_responses=True))

    @pytest.fixture
    def ahead(self, script_client):
        return (script_client.time()[0] + 3000) * 1_000_000

    def test_a_newcomer_takes_its_place_behind_the_line(self, verbs, line, script_client):
        line("L/2:2:b")
        assert verbs.take("3:c") == LINE
        assert verbs.take("3:c", waiter="L/2:3:c") == LINE
        assert verbs.take("3:c", waiter="L/2:3:c", since=200) == LINE
        assert waiters(script_client) == ["L/2:2:b", "L/2:3:c"]

    def test_a_waiter_that_came_before_the_first_enters_and_leaves_the_line(self, verbs, line, script_client):
        line("L/2:2:b", "L/2:3:c")
        assert verbs.take("4:d", since=50)[0] == 1
        assert verbs.take("2:b", waiter="L/2:2:b", since=100)[0] == 1
        assert waiters(script_client) == ["L/2:3:c"]

    @pytest.mark.parametrize("waiter", ["", "L/2:2:b"])
    def test_the_woken_waiter_enters_and_ends_its_turn(self, verbs, line, script_client, waiter):
        line("L/2:2:b")
        with listening(script_client, "L"):
            assert verbs.wake() == 0
        line("L/2:3:c")
        assert list(verbs.places()) == ["turn:L/2:2:b"]
        assert verbs.take("2:b", waiter=waiter)[0] == 1
        assert list(verbs.places()) == ["2:b"]
        assert waiters(script_client) == ["L/2:3:c"]

    def test_no_other_enters_in_the_turn_of_a_waiter_for_the_whole_key(self, verbs, script_client):
        script_client.set(WOKEN, "L:2:b", px=800)
        status, left, *holder = verbs.take("3:c", waiter="L/2:3:c")
        assert (status, holder) == (0, ["2:b", "", ""])
        assert 1 < left <= 800
        assert waiters(script_client) == ["L/2:3:c"]

    def test_a_busy_key_names_an_owner_and_when_a_place_may_be_free(self, verbs):
        verbs.take("1:a", ttl=9000, task="t", worker="v")
        verbs.take("2:b", ttl=5000, task="u", worker="w")
        status, left, *holder = verbs.take("3:c")
        assert (status, holder) == (0, ["2:b", "w", "u"])
        assert 0 < left <= 5000

    def test_a_field_of_another_program_is_busy_as_long_as_its_key(self, verbs, script_client):
        script_client.hset(LOCK, "x", "y")
        script_client.pexpire(LOCK, 5000)
        status, left, *holder = verbs.take("3:c")
        assert (status, holder) == (0, ["x", "", ""])
        assert 0 < left <= 5000

    def test_a_message_that_is_delivered_twice_gets_one_place(self, verbs):
        """Whatever its worker is called: only threads outside of tasks have no message."""
        for worker, task_id in (("12@host", "a"), ("w@host", "thread-7")):
            assert verbs.take(f"1:{task_id}", 9, task="t", worker=worker)[0] == 1
            status, _, owner, *_ = verbs.take(f"2:{task_id}", 9, task="t", worker=worker)
            assert (status, owner) == (0, f"1:{task_id}")
        assert verbs.take("1:thread-8", 9, task="t", worker="12@host")[0] == 1
        assert verbs.take("2:thread-8", 9, task="t", worker="12@host")[0] == 1

    def test_an_acquire_after_its_deadline_takes_nothing(self, verbs, script_client):
        seconds, _ = script_client.time()
        assert verbs.take("1:a", deadline=(seconds - 1) * 1_000_000) == [-2]
        assert script_client.keys() == []
        assert verbs.take("1:a", deadline=(seconds + 100) * 1_000_000)[0] == 1

    def test_a_renewed_lease_is_as_long_as_the_caller_says(self, verbs):
        _, token, _ = verbs.take("1:a", ttl=5000)
        before = verbs.places()["1:a"].ends
        assert verbs.renew_place("1:a", token, ttl=60_000) == 1
        assert 55_000_000 <= verbs.places()["1:a"].ends - before < 85_000_000

    def test_a_token_is_remembered_until_the_clock_has_caught_up(self, verbs, script_client, ahead):
        script_client.set(TOKEN, ahead)
        assert verbs.take("1:a", ttl=600_000)[1] == ahead + 1
        assert 3_300_000 < script_client.pttl(TOKEN) <= 3_601_000

    def test_a_number_that_lua_cannot_count_with_is_no_token(self, verbs, script_client):
        script_client.set(TOKEN, 2**60)
        assert verbs.take("1:a")[1] < 2**53

    @pytest.mark.parametrize("field", ["x", "3:c"])
    def test_a_record_that_lua_cannot_count_with_takes_all_places(self, verbs, script_client, field):
        script_client.hset(LOCK, field, f"{2**60} 0 9 1 5 0 1 0 1 w\nt")
        script_client.pexpire(LOCK, 5000)
        status, left, *_ = verbs.take("3:c", limit=9)
        assert status == 0
        assert 0 < left <= 5000
        assert 0 < verbs.wait("L/9:3:c") <= 5000

    def test_a_later_attempt_gets_a_larger_token(self, verbs, script_client, ahead):
        _, token, _ = verbs.take("1:a", attempt="1")
        assert verbs.places()["1:a"].depth == 1
        script_client.hset(LOCK, "1:a", script_client.hget(LOCK, "1:a").replace(str(token), str(ahead)))
        assert verbs.take("1:a", attempt="2")[:2] == [1, ahead + 1]
