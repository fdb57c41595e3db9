"""The checkers call good histories good and bad ones bad."""

from __future__ import annotations

import pytest

from tests.nemesis import timeline
from tests.nemesis.checkers import History, check, excused, recoveries, violations
from tests.nemesis.history import Recorder, Tail
from tests.nemesis.soak import growing

TTL = 2.0


def event(at, what, pid=1, **fields):
    return {"at": at, "what": what, "pid": pid, **fields}


def held(start, end, owner="one", token=1, *, key="k", left=True, pid=1, every=0.5, **fields):
    """The events of a holder that looks at its lock from `start` to `end`."""
    who = f"{pid}/{owner}"
    fields = {"key": key, "owner": owner, "token": token, "who": who, "asked": start, **fields}
    looks = [start + every * number for number in range(int((end - start) / every))] + [end]
    events = [event(at, "held", pid, deadline=at + TTL, **fields) for at in looks]
    return events + ([event(end, "leaving", pid, **fields)] if left else [])


def runs(pid=1, begin=0.0, end=20.0):
    return [event(begin + 0.1 * number, "pulse", pid) for number in range(int((end - begin) * 10))]


def fault(number, begin, end, name="restart", **fields):
    return [
        event(begin, "fault", number=number, name=name, **fields),
        event(end, "fault over", number=number),
    ]


def judged(*groups):
    events = sorted((one for group in groups for one in group), key=lambda one: one["at"])
    return check(History.of(events, TTL))


def found(*groups):
    return [verdict.check for verdict in violations(judged(*groups))]


def test_holders_that_follow_each_other_are_good():
    assert found(held(1, 2), held(2.01, 3, "two", 2), held(1, 4, "three", 3, key="other")) == []


def test_two_holders_at_once_are_found():
    assert found(held(1, 2), held(1.5, 3, "two", 2)) == ["exclusive"]


def test_a_holder_that_no_longer_relies_on_its_lock_is_no_overlap():
    """It stood still from 2 to 6, and its lease ended."""
    first = held(1, 2, left=False)
    told = [event(6, "told", key="k", owner="one", token=1, who="1/one")]
    assert found(runs(1, 0, 2), runs(1, 6, 9), first, told, held(4, 5, "two", 2, pid=2)) == []


def test_a_lease_of_a_killed_holder_counts_until_it_died_or_its_deadline():
    killed = [event(3.0, "killed", pids=[1])]
    first = held(1, 2, left=False)
    assert found(first, killed, held(2.5, 5, "two", 2, pid=2)) == ["exclusive"]
    assert found(first, killed, held(3.1, 5, "two", 2, pid=2)) == []
    assert found(first, held(3.9, 5, "two", 2, pid=2)) == ["exclusive"]
    assert found(first, held(4.1, 5, "two", 2, pid=2)) == []


def test_with_a_limit_so_many_may_be_inside():
    first, second = held(1, 4, limit=2), held(2, 4, "two", 2, limit=2)
    assert found(first, second) == []
    assert found(first, second, held(3, 4, "three", 3, limit=2)) == ["exclusive"]


def test_a_server_that_may_forget_excuses_an_overlap_in_its_time_only():
    forgotten = fault(1, 1.5, 1.6, forgets="an empty memory")
    told = [event(2.5, "told", key="k", owner="one", token=1, who="1/one")]
    good = [held(1, 2.4, left=False), told, held(1.7, 3, "two", 2, pid=2)]
    verdicts = judged(runs(1), *good, forgotten)
    assert violations(verdicts) == []
    assert excused(verdicts) == {"exclusive: an empty memory": 1}
    assert "exclusive" in found(runs(1), *good, fault(1, 8, 8.1, forgets="an empty memory"))
    assert found(runs(1), *good, fault(1, 1.5, 1.6)) == ["exclusive"]


def test_a_file_that_is_locked_without_a_holder_is_found():
    conflict = [event(3, "conflict", key="k", owner="two", token=2, who="2/two")]
    assert found(held(1, 2), conflict, held(3, 4, "two", 2, pid=2)) == ["exclusive"]
    lost = held(1, 2, left=False)
    assert found(lost, conflict, held(4.1, 5, "two", 2, pid=2)) == []


def test_a_loss_that_is_not_told_is_found():
    looks = [event(at, "held", key="k", owner="one", token=1, who="1/one", asked=1) for at in (1, 2)]
    late = [event(15, "told", key="k", owner="one", token=1, who="1/one")]
    assert found(runs(1), looks, late, held(4.5, 5, "two", 2, pid=2)) == ["told"]
    assert found(runs(1, 0, 2), runs(1, 14, 16), looks, late, held(4.5, 5, "two", 2, pid=2)) == []


def test_an_entry_that_is_refused_or_miscounted_is_found():
    fields = {"key": "k", "owner": "one", "token": 1, "who": "1/one"}
    good = event(1.2, "entered", before=1, depth=2, was=1, **fields)
    assert found(held(1, 2), [good]) == []
    assert found(held(1, 2), [{**good, "depth": 3}]) == ["reentrant"]
    assert found(held(1, 2), [{**good, "was": 7}]) == ["reentrant"]
    assert found(held(1, 2), [event(1.2, "exited", before=2, depth=0, **fields)]) == ["reentrant"]
    assert found(held(1, 2), [event(1.2, "refused", why="busy", **fields)]) == ["reentrant"]


def test_a_token_that_goes_back_is_found():
    assert found(held(1, 2, token=5), held(3, 4, "two", 4)) == ["fenced"]
    assert found(held(1, 2, token=5), held(3, 4, "two", 5)) == ["fenced"]


def test_grants_whose_answers_overtook_each_other_are_good():
    """With two places, the first to be granted may be the last to hear of it."""
    first = held(3, 4, token=1, limit=2, asked=1)
    assert found(first, held(1.5, 2, "two", 2, limit=2, asked=1.2)) == []


def test_what_is_stuck_is_found():
    free = [event(9, "probe", key="k", taken=True, seconds=0.1, why="")]
    clean = [event(9, "leftovers", names=[], endless=[])]
    assert found(free, clean) == []
    assert found([{**free[0], "taken": False}]) == ["stuck"]
    assert found([event(9, "ended badly", name="rlock-0", why="it does not end")]) == ["stuck"]
    assert found([event(9, "leftovers", names=["rlock:{k}"], endless=["rlock:{k}:done"])]) == ["stuck"] * 2


def test_a_key_that_is_not_taken_after_a_fault_is_found():
    """A key that is held all the time is fine; here nobody takes it for a minute."""
    calm = [event(70, "calm")]
    assert found(held(1, 2), fault(1, 3, 4), runs(1, 0, 70), held(65, 66, "two", 2), calm) == ["recovered"]
    network = fault(1, 3, 4), runs(1, 0, 10), runs(1, 30, 70)  # its process did not run for 20 s
    assert excused(judged(held(1, 2, pid=2), *network, held(65, 66, "two", 2, pid=2), calm))
    history = History.of(
        sorted(
            [*held(1, 2), *fault(1, 3, 4), *held(5, 6, "two", 2), *calm],
            key=lambda one: one["at"],
        ),
        TTL,
    )
    assert violations(check(history)) == []
    assert recoveries(history) == {"restart": [1.0]}


def published(task="t"):
    return [event(0.5, "published", id=task, key="k")]


def end(at, pid=1, **fields):
    return [
        event(at, "end", pid, id="t", key="k", owner=f"owner-{pid}:t", token=pid, who=f"{pid}/x", **fields)
    ]


def test_a_task_completes_once():
    assert found(published(), end(2)) == []
    assert found(published()) == ["completed"]
    assert found(published(), [event(90, "still waiting", tasks=["t"])]) == ["completed"]
    assert found(published(), end(2), end(5, 2)) == ["completed"]
    assert found(published(), [event(2, "failed", id="t", why="ValueError()")]) == ["completed"]


@pytest.mark.parametrize(
    ("why", "events"),
    [
        ("killed after", [event(2.1, "killed", pids=[1])]),
        ("killed after", [event(2.1, "killed", pids=[9])]),
        ("forgot", fault(1, 2.5, 2.6, forgets="an empty memory")),
        ("lost its lock", [event(1.9, "told", key="k", owner="owner-1:t", token=1, who="1/x")]),
        ("did not answer", fault(1, 1, 2.5, name="replies lost", kind="network")),
        ("stood still", [event(1.5, "suspended", pids=[9])]),
    ],
)
def test_a_task_that_completes_again_has_a_documented_reason(why, events):
    looks = held(1, 2, "owner-1:t", 1, left=False)
    for one in looks:
        one["who"] = "1/x"
    verdicts = judged(runs(1), published(), looks, end(2, parent=9), end(5, 2), events)
    assert [verdict for verdict in violations(verdicts) if verdict.check == "completed"] == []
    assert [name for name in excused(verdicts) if why in name]


def test_a_command_that_the_least_rights_do_not_allow_is_found():
    assert found([event(1, "refused by the server", commands=[])]) == []
    assert found([event(1, "refused by the server", commands=["hscan"])]) == ["allowed"]


def test_a_violation_is_shown_with_what_happened_around_it(tmp_path):
    groups = [*held(1, 2), *held(1.5, 3, "two", 2), *fault(1, 0.5, 0.9), *held(90, 91, "late", 3)]
    history = History.of(sorted(groups, key=lambda one: one["at"]), TTL)
    [violation] = violations(check(history))
    lines = timeline.excerpt(history, violation)
    assert any("two" in line and line.startswith(">") for line in lines)
    assert any("restart" in line for line in lines)
    assert not any("late" in line for line in lines)
    picture = timeline.draw(history, violation, tmp_path / "it.svg").read_text()
    assert "1/one" in picture
    assert "restart" in picture
    assert "late" not in picture


def test_events_are_read_once_and_half_a_line_later(tmp_path):
    recorder = Recorder(tmp_path, "process")
    recorder.write("first", at=1.0)
    half = tmp_path / "other-1.jsonl"
    half.write_text('{"at": 2, "what": "second"}\n{"at": 3,')
    tail = Tail(tmp_path)
    assert [one["what"] for one in tail.new() if one["what"] != "pulse"] == ["first", "second"]
    with half.open("a") as file:
        file.write(' "what": "third"}\n')
    assert [one["what"] for one in tail.new() if one["what"] != "pulse"] == ["third"]


def test_a_series_that_grows_is_found():
    flat = [(number / 10, 100.0 + number % 3) for number in range(100)]
    rising = [(at, value + 60 * at / 10) for at, value in flat]
    warming_up = [(at, value if at > 2 else value / 2) for at, value in flat]
    assert growing({"memory, MB": {"a": flat, "b": warming_up}, "threads": {"a": flat}}) == []
    assert [text.partition(":")[0] for text in growing({"memory, MB": {"a": flat, "c": rising}})] == [
        "memory, MB of c"
    ]
