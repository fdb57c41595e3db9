"""What is explored."""

from __future__ import annotations

from celery_rlock.server.owner import QUEUED, Owner
from tests.interleavings.explorer import Scenario, Spec
from tests.interleavings.processes import Delivery, Parent, Parked, Publisher, User

ONCE, TWICE, NESTED = ("enter", "leave"), ("enter", "leave") * 2, ("enter", "enter", "leave", "leave")


def user(name: str, program=ONCE, **more) -> Spec:
    return Spec(name, User(), Owner(f"w{name}", f"d{name}", f"t{name}"), program, listener=f"L{name}", **more)


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
#: About how many states of each scenario CI looks at.
STATES = 3_000

A_HOLDS = ("a wants to enter", "a's acquire")
B_WAITS = ("b wants to enter", "b's acquire", "b's acquire")
C_WAITS = ("c wants to enter", "c's acquire", "c's acquire")

SCENARIOS = [
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
