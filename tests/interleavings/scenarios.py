"""What is explored."""

from __future__ import annotations

from dataclasses import replace

from celery_rlock.options.options import Options
from celery_rlock.server.owner import QUEUED, Owner
from tests.interleavings.deliveries import Delivery, Publisher
from tests.interleavings.explorer import Scenario
from tests.interleavings.pending_calls import PENDING_TTL, PendingPublisher, PendingRun
from tests.interleavings.pending_checks import each_call_ran
from tests.interleavings.processes import REST, Parent, Parked, User
from tests.interleavings.replacing_calls import ReplacingCall, the_newest_ran
from tests.interleavings.world import Spec

ONCE, TWICE, NESTED = ("enter", "leave"), ("enter", "leave") * 2, ("enter", "enter", "leave", "leave")


def user(name: str, program=ONCE, **more) -> Spec:
    return Spec(name, User(), Owner(f"w{name}", f"d{name}", f"t{name}"), program, listener=f"L{name}", **more)


def user_of_places(name: str, limit: int = 2, **more) -> Spec:
    return user(name, limit=limit, waits=True, **more)


def task(name: str, delivery: str = "", task_id: str = "", **more) -> Spec:
    return Spec(name, Delivery(), Owner(f"w{name}", delivery or f"d{name}", task_id or f"t{name}"), **more)


def parked(name: str, program=ONCE, **more) -> Spec:
    return Spec(
        name, Parked(), Owner(f"w{name}", f"d{name}", f"t{name}"), program, listener=f"L{name}", **more
    )


def publisher(name: str, task_id: str) -> Spec:
    return Spec(name, Publisher(), Owner(name, QUEUED, task_id))


def one_run(world):
    """One delivery of the message has run to its end, and another one only if that one died after it."""
    all_died = not any(process.alive for process in world.processes[:2])
    if "lost" in world.log or world.delays or all_died:
        return None
    ran = world.log.count("ran")
    died = world.log.count("ran, then died")
    return None if ran == 1 or (ran == 0 and died) else f"the task has run {ran} times to its end"


def each_published_ran(world):
    if "lost" in world.log or world.delays or world.faults:
        return None
    published, ran = world.log.count("published"), world.log.count("ran")
    return None if ran == published else f"{published} tasks were published, and {ran} have run"


PARENT = Spec("parent", Parent(), Owner("parent", "-", "-"), mortal=False)

#: How much may go wrong at once in CI: (faults, delays).
BOUNDS = ((1, 0), (0, 1))
#: The same for scenarios whose first states are reached soon.
FEWER_STATES = 1_500

A_HOLDS = ("a wants to enter", "a's acquire")
B_WAITS = ("b wants to enter", "b's acquire", "b's acquire")
C_WAITS = ("c wants to enter", "c's acquire", "c's acquire")
A_HOLDS_PLACE = ("a wants to enter", "a's acquire_place")
B_HOLDS_PLACE = ("b wants to enter", "b's acquire_place")
C_WAITS_FOR_PLACE = ("c wants to enter", "c's acquire_place", "c's acquire_place")
D_WAITS_FOR_PLACE = ("d wants to enter", "d's acquire_place", "d's acquire_place")

_WHOLE_KEY = [
    Scenario("two users", (user("a", TWICE), user("b", waits=True))),
    Scenario("two users that re-enter", (user("a", NESTED, waits=True), user("b", NESTED, waits=True))),
    Scenario(
        "a line of two, and a newcomer",
        (user("a"), user("b", waits=True), user("c", waits=True), user("d")),
        prefix=A_HOLDS + B_WAITS + C_WAITS,
    ),
    Scenario(
        "a waiter that stops waiting",
        (user("a"), user("b", waits=True, gives_up=True), user("c", waits=True)),
        prefix=A_HOLDS + B_WAITS + C_WAITS,
    ),
    Scenario("a user that tries again", (user("a", tries_again=True), user("b", TWICE))),
    Scenario("a renewed lease", (user("a", TWICE, renews=1), user("b", waits=True)), prefix=A_HOLDS),
    Scenario("a child that dies", (user("a", parent=1), PARENT, user("b", TWICE, waits=True))),
    Scenario(
        "a key that rests",
        (user("a", ("enter", "rest")), user("b", waits=True), user("c")),
        prefix=A_HOLDS,
        undisturbed_idle=2_000,  # no release ends the rest: the waiter looks by itself
    ),
    Scenario(
        "tasks that wait in their workers",
        (user("a"), parked("b"), parked("c")),
        prefix=A_HOLDS,
        longest_idle=31_000,
    ),
    Scenario(
        "a worker that is full",
        (user("a"), parked("b", saturated=True), parked("c", gives_up=True)),
        prefix=(*A_HOLDS, "b wants to enter", "b's acquire", "b's wait"),
        longest_idle=31_000,
    ),
    Scenario(
        "a redelivered message",
        (task("a", "d1", "t", parent=2), task("b", "d2", "t", after=0, redelivered=True), PARENT),
        at_end=one_run,
    ),
    Scenario(
        "two publishers of a unique task",
        (
            publisher("p", "t1"),
            publisher("q", "t2"),
            task("a", "d1", "t1", after=0, follows=True),
            task("b", "d2", "t2", after=1, follows=True),
        ),
        at_end=each_published_ran,
    ),
    Scenario(
        "a unique task that retries",
        (
            task("a", "d1", "t", retries=True),
            task("r", "d2.1.0", "t", after=0, follows=True),
            user("b", waits=True),
        ),
    ),
]

#: Scenarios whose keys have a limit above 1.
_PLACES = [
    Scenario(
        "three users of two places",
        (user_of_places("a"), user_of_places("b"), user_of_places("c")),
        states=FEWER_STATES,
    ),
    Scenario(
        "a line for two places, and a newcomer",
        (*(user_of_places(name) for name in "abcd"), user("e", limit=2)),
        prefix=(*A_HOLDS_PLACE, *B_HOLDS_PLACE, *C_WAITS_FOR_PLACE, *D_WAITS_FOR_PLACE),
        states=FEWER_STATES,
    ),
    Scenario(
        "users with the limits 1 and 2",
        (user_of_places("a"), user_of_places("b", 1), user_of_places("c")),
        states=FEWER_STATES,
    ),
    Scenario(
        "users with the limits 2 and 3",
        (user_of_places("a"), user_of_places("b", 3), user_of_places("c", 3)),
        states=FEWER_STATES,
    ),
    Scenario(
        "a waiter for the whole key stops waiting",
        (user_of_places("a", program=("enter",)), user_of_places("b", 1, gives_up=True), user_of_places("c")),
        undisturbed_idle=2_000,  # no release tells c that b has left: c looks by itself
        prefix=(
            *A_HOLDS_PLACE,
            *("b wants to enter", "b's acquire", "b's acquire_place", "b's acquire", "b's acquire_place"),
            *C_WAITS_FOR_PLACE,
        ),
        states=FEWER_STATES,
    ),
    Scenario(
        "a task that waits behind a waiter for the whole key",
        (
            user_of_places("a", program=("enter",), ttl=30_000),
            user_of_places("b", 1, gives_up=True),
            parked("c", limit=2),
        ),
        undisturbed_idle=2_000,  # as above
        longest_idle=31_000,
        prefix=(
            *A_HOLDS_PLACE,
            *("b wants to enter", "b's acquire", "b's acquire_place", "b's acquire", "b's acquire_place"),
            *("c wants to enter", "c's acquire_place", "c's wait"),
        ),
        states=FEWER_STATES,
    ),
    Scenario(
        "a waiter for a place stops waiting",
        (
            user_of_places("a"),
            user_of_places("b", program=("enter",)),
            user_of_places("c", gives_up=True),
            user_of_places("d"),
        ),
        prefix=(*A_HOLDS_PLACE, *B_HOLDS_PLACE, *C_WAITS_FOR_PLACE, *D_WAITS_FOR_PLACE),
        states=FEWER_STATES,
    ),
    Scenario(
        "users of two places that re-enter and try again",
        (user("a", NESTED, limit=2, tries_again=True), user("b", TWICE, limit=2)),
        states=FEWER_STATES,
    ),
    Scenario(
        "a renewed place",
        (user("a", TWICE, limit=2, renews=1), user_of_places("b"), user_of_places("c")),
        prefix=(*A_HOLDS_PLACE, *B_HOLDS_PLACE),
        states=FEWER_STATES,
    ),
    Scenario(
        "a child in a place that dies",
        (user_of_places("a", parent=1), PARENT, user_of_places("b", ttl=9_000), user_of_places("c")),
        prefix=(*A_HOLDS_PLACE, *B_HOLDS_PLACE),
        states=FEWER_STATES,
    ),
    Scenario(
        "an owner of a place that dies beside another one",
        (user_of_places("a"), user_of_places("b", program=("enter",), ttl=9_000), user_of_places("c")),
        prefix=(*A_HOLDS_PLACE, *B_HOLDS_PLACE),
        states=FEWER_STATES,
    ),
    Scenario(
        "a place that rests",
        (user_of_places("a", hold=REST), user_of_places("b"), user_of_places("c")),
        prefix=(*A_HOLDS_PLACE, *B_HOLDS_PLACE),
        undisturbed_idle=2_000,  # as above
        states=FEWER_STATES,
    ),
    Scenario(
        "a worker that is full, and two places",
        (
            user_of_places("a"),
            user_of_places("b", program=("enter",)),
            parked("c", limit=2, saturated=True),
            parked("d", limit=2, gives_up=True),
        ),
        prefix=(*A_HOLDS_PLACE, *B_HOLDS_PLACE, "c wants to enter", "c's acquire_place", "c's wait"),
        longest_idle=31_000,
        states=FEWER_STATES,
    ),
    Scenario(
        "a redelivered message, and two places",
        (
            task("a", "d1", "t", parent=2, limit=2),
            task("b", "d2", "t", after=0, redelivered=True, limit=2),
            PARENT,
        ),
        at_end=one_run,
        states=FEWER_STATES,
    ),
]


def call(number: int, options: Options, program=ONCE) -> tuple[Spec, Spec]:
    """A pending call's publisher and its run."""
    name = " pqr"[number]
    task_id = f"t{number}"
    return (
        Spec(name, PendingPublisher(), Owner(name, QUEUED, task_id), options=options),
        Spec(
            f"run{number}",
            PendingRun(),
            Owner(f"w{number}", f"d{number}", task_id),
            program,
            listener=f"L{number}",
            options=options,
        ),
    )


def calls(options: Options, count: int) -> tuple[Spec, ...]:
    return tuple(spec for number in range(1, count + 1) for spec in call(number, options))


def retry_of_call(number: int, options: Options) -> Spec:
    owner = Owner(f"x{number}", f"e{number}.1.0", f"t{number}")
    return Spec(f"retry{number}", PendingRun(), owner, ONCE, listener=f"LX{number}", options=options)


_ONE_PENDING = Options(from_="publish", pending=1, queue_ttl=PENDING_TTL)
_NEWEST_WINS = Options(from_="publish", duplicate="replace", queue_ttl=PENDING_TTL)
_ONE_PENDING_NEWEST_WINS = Options(from_="publish", pending=1, duplicate="replace", queue_ttl=PENDING_TTL)
_TWO_PENDING_NEWEST_WIN = replace(_ONE_PENDING_NEWEST_WINS, pending=2)

FIRST_RUNS = ("p calls apply_async", "p's reserve", "p publishes", "p's queue")
FIRST_RUNS += ("run1 is delivered", "run1 wants to enter", "run1's acquire", "run1's unqueue")
SECOND_WAITS = ("q calls apply_async", "q's reserve", "q publishes", "q's queue")
SECOND_WAITS += ("run2 is delivered", "run2 wants to enter", "run2's acquire")

#: Scenarios with `lock_pending` or `lock_duplicate="replace"`.
_PENDING = [
    Scenario(
        "two calls, one of which may be pending",
        calls(_ONE_PENDING, 2),
        longest_idle=31_000,
        at_end=each_call_ran,
        states=FEWER_STATES,
    ),
    Scenario(
        "three calls, one of which may be pending",
        calls(_ONE_PENDING, 3),
        prefix=FIRST_RUNS,
        longest_idle=31_000,
        at_end=each_call_ran,
        states=FEWER_STATES,
    ),
    Scenario(
        "three calls, the newest of which waits",
        calls(_ONE_PENDING_NEWEST_WINS, 3),
        prefix=(*FIRST_RUNS, *SECOND_WAITS),
        longest_idle=31_000,
        at_end=each_call_ran,
        states=FEWER_STATES,
    ),
    Scenario(
        "three calls, the newest two of which wait",
        calls(_TWO_PENDING_NEWEST_WIN, 3),
        longest_idle=31_000,
        at_end=each_call_ran,
        states=FEWER_STATES,
    ),
    Scenario(
        "two calls, the newest of which runs",
        calls(_NEWEST_WINS, 2),
        longest_idle=31_000,
        at_end=each_call_ran,
        states=FEWER_STATES,
    ),
    Scenario(
        "a pending call that retries",
        (
            *call(1, _ONE_PENDING, ("enter", "retry", "leave")),
            retry_of_call(1, _ONE_PENDING),
            *call(2, _ONE_PENDING),
        ),
        prefix=FIRST_RUNS,
        longest_idle=31_000,
        at_end=each_call_ran,
        states=FEWER_STATES,
    ),
]


def replacing(name: str, **more) -> Spec:
    more = {"renews": 2, "longest_silence": 0.5, "backoff_max": 2_000, **more}
    return Spec(
        name, ReplacingCall(), Owner(f"w{name}", f"d{name}", f"t{name}"), ONCE, listener=f"L{name}", **more
    )


#: Scenarios with `lock_busy="replace"`.
_REPLACING = [
    Scenario(
        "a call that replaces a run",
        (replacing("a"), replacing("b")),
        at_end=the_newest_ran,
        states=FEWER_STATES,
    ),
    Scenario(
        "a run that is replaced by the newest of two calls",
        (replacing("a", renews=1), replacing("b", renews=1), replacing("c", renews=0)),
        prefix=A_HOLDS,
        at_end=the_newest_ran,
        states=FEWER_STATES,
    ),
]

#: Scenarios in which a new message waits without having asked.
_JOINING = [
    Scenario(
        "a new message that joins the line",
        (user("a"), parked("b"), parked("c", ("join", *ONCE))),
        prefix=(*A_HOLDS, "b wants to enter", "b's acquire", "b's wait"),
        longest_idle=31_000,
        states=FEWER_STATES,
    ),
    Scenario(
        "a new message that joins an empty line",
        (user("a"), parked("b", ("join", *ONCE)), user("c", waits=True)),
        prefix=A_HOLDS,
        longest_idle=31_000,
        states=FEWER_STATES,
    ),
    Scenario(
        "another delivery of a message that joins the line",
        (user("a"), replace(parked("b", ("join", *ONCE)), owner=Owner("wb", "db", "ta"))),
        longest_idle=31_000,
        states=FEWER_STATES,
    ),
]

SCENARIOS = [*_WHOLE_KEY, *_PLACES, *_PENDING, *_REPLACING, *_JOINING]
