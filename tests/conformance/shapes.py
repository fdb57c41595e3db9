"""The shapes of tasks that plain Celery runs.

A shape is a function that makes its tasks with a `Kit` and returns how to publish them.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from celery import Task, chain, chord, group, shared_task
from celery.exceptions import Ignore, Reject
from flask import Flask, current_app
from pydantic import BaseModel

from tests.conformance.notes import nodename, note, run_name


class Shape(NamedTuple):
    name: str
    define: Callable[[Any], Callable[[], Any]]
    ends: int  #: how many executions end, revoked and expired tasks included
    ends_late: int  #: the same with acks_late
    waits: bool  #: whether a twin that finds its lock busy first is worth comparing
    is_ordered: bool  #: False if it is chance which of several tasks publishes the next one

    def wanted(self, ack: str) -> int:
        return self.ends_late if ack == "late" else self.ends


SHAPES: list[Shape] = []


def shape(
    ends: int = 1, *, ends_late: int | None = None, waits: bool = True, is_ordered: bool = True
) -> Callable[[Any], Any]:
    def add(define: Any) -> Any:
        late = ends if ends_late is None else ends_late
        SHAPES.append(Shape(define.__name__, define, ends, late, waits, is_ordered))
        return define

    return add


# One task


@shape()
def function(kit):
    @kit.task()
    def add(x, y=1):
        return x + y

    return lambda: add.delay(2, y=3)


#: What a task can see of its message.
SEEN = (
    "args",
    "retries",
    "is_eager",
    "called_directly",
    "expires",
    "shadow",
    "timelimit",
    "argsrepr",
    "group",
)
SEEN += ("kwargsrepr", "replaced_task_nesting", "stamps", "stamped_headers", "ignore_result", "priority")


@shape()
def bound(kit):
    @kit.task(bind=True)
    def look(self, x):
        # The packages that trace tasks add headers of their own.
        headers = {k: v for k, v in self.request.headers.items() if k == "mine" or "rlock" in k}
        return {"headers": headers, **{name: self.request.get(name) for name in SEEN}}

    options = {"headers": {"mine": 1}, "shadow": "shade", "soft_time_limit": 50, "time_limit": 60}
    return lambda: look.apply_async((1,), priority=3, stamped_headers=["batch"], batch="b", **options)


@shape()
def bound_over_any_arguments(kit):
    @kit.task(bind=True)
    def collect(*args, **kwargs):
        self, *others = args
        return [self.name.rpartition(".")[2], others, kwargs]

    return lambda: collect.delay(1, 2, three=3)


@shape()
def class_with_a_name(kit):
    options = kit.options("run")

    class Named(options.pop("base")):
        def run(self, x):
            return [x, self.request.retries]

    named = type("Named", (Named,), options)
    task = kit.app.register_task(named())
    return lambda: task.delay(7)


@shape()
def class_without_a_name(kit):
    options = kit.options("Unnamed")
    del options["name"]

    class Unnamed(options.pop("base")):
        def run(self, x):
            return x

    # Celery makes the name of the module and the class.
    task = kit.app.register_task(type("Unnamed", (Unnamed,), {**options, "__module__": kit.cell})())
    return lambda: task.delay(7)


@shape()
def wrapped(kit):
    def doubling(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return 2 * function(*args, **kwargs)

        return wrapper

    @kit.task()
    @doubling
    def add(x, y=1):
        return x + y

    return lambda: add.delay(2, y=3)


@shape()
def wrapped_with_an_argument_more(kit):
    def with_connection(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function("connection", *args, **kwargs)

        return wrapper

    @kit.task()
    @with_connection
    def query(connection, x):
        return [connection, x]

    return lambda: query.delay(7)


web = Flask("web")


class FlaskTask(Task):
    """As Flask documents it: `run()` finds the application's context."""

    abstract = True

    def __call__(self, *args, **kwargs):
        with web.app_context():
            return self.run(*args, **kwargs)


def flask(kit, *bases):
    base = type("InContext", bases, {"abstract": True})

    @kit.task(base=base, bind=True)
    def look(self, x):
        return [current_app.name, x, self.lock.held if kit.is_locked else True]

    return lambda: look.delay(7)


@shape()
def flask_base_before_the_lock(kit):
    return flask(kit, FlaskTask, kit.base)


@shape()
def flask_base_after_the_lock(kit):
    return flask(kit, kit.base, FlaskTask)


class Order(BaseModel):
    number: int
    price: float = 0.5


def takes_a_model(kit):
    def double(order: Order) -> Order:
        assert isinstance(order, Order)
        return Order(number=2 * order.number, price=order.price)

    # Celery resolves the annotations of the function with its globals.
    return kit.task(pydantic=True)(double)


@shape()
def pydantic_with_a_dict(kit):
    double = takes_a_model(kit)
    return lambda: double.delay({"number": 4})


@shape()
def pydantic_with_a_model(kit):
    double = takes_a_model(kit)
    return lambda: double.delay(Order(number=4))


@shape()
def pydantic_with_a_wrong_dict(kit):
    double = takes_a_model(kit)
    return lambda: double.delay({"number": "no number"})


@shape()
def without_typing(kit):
    @kit.task(typing=False)
    def add(x, y):
        return x + y

    return lambda: add.delay(2, y=3)


@shape(waits=False)
def without_typing_and_with_wrong_arguments(kit):
    @kit.task(typing=False)
    def add(x, y):
        return x + y

    return lambda: add.delay(2)


@shape(ends=0, waits=False)
def with_typing_and_wrong_arguments(kit):
    @kit.task()
    def add(x, y):
        return x + y

    return lambda: add.delay(2)


@shape()
def shared(kit):
    @shared_task(**kit.options("add"))
    def add(x, y):
        return x + y

    return lambda: add.delay(2, 3)


@shape()
def ignoring_its_result(kit):
    @kit.task(ignore_result=True)
    def add(x, y):
        return x + y

    return lambda: add.delay(2, 3)


@shape()
def tracking_its_start(kit):
    @kit.task(bind=True, track_started=True)
    def look(self):
        return self.AsyncResult(self.request.id).state

    return look.delay


@shape()
def with_a_countdown(kit):
    @kit.task()
    def add(x, y):
        return x + y

    return lambda: add.apply_async((2, 3), countdown=1)


@shape(waits=False)
def expired(kit):
    @kit.task()
    def add(x, y):
        return x + y

    # With the option `expires`, RabbitMQ may drop the message before a worker sees it.
    past = (datetime.now(timezone.utc) - timedelta(minutes=1)).isoformat()
    return lambda: add.apply_async((2, 3), headers={"expires": past})


@shape(waits=False)
def revoked(kit):
    @kit.task()
    def add(x, y):
        return x + y

    def publish():
        task_id = uuid.uuid4().hex
        answer = {"destination": [nodename(run_name())], "reply": True, "timeout": 20, "limit": 1}
        assert kit.app.control.revoke(task_id, **answer)
        return add.apply_async((2, 3), task_id=task_id)

    return publish


@shape(waits=False)
def eager(kit):
    @kit.task()
    def add(x, y):
        return x + y

    return lambda: add.apply((2, 3)).get()


# How a run ends


class Expected(Exception):
    """An error with two arguments."""


@shape()
def failing(kit):
    @kit.task()
    def fail(x):
        raise Expected("no", x)

    return lambda: fail.delay(7)


@shape()
def failing_as_expected(kit):
    @kit.task(throws=(Expected,))
    def fail(x):
        raise Expected("no", x)

    return lambda: fail.delay(7)


class NotPicklable(Exception):
    def __init__(self, *, why):
        super().__init__()
        self.why = why


@shape()
def failing_with_what_cannot_be_pickled(kit):
    @kit.task()
    def fail():
        raise NotPicklable(why=lambda: "so")

    return fail.delay


@shape(ends=3)
def retrying(kit):
    @kit.task(bind=True, max_retries=5, key="one")
    def work(self, x):
        if self.request.retries < 2:
            raise self.retry(countdown=1)
        return [x, self.request.retries]

    return lambda: work.delay(7)


@shape(ends=2)
def retrying_with_other_arguments(kit):
    @kit.task(bind=True, max_retries=5)
    def work(self, x, y=0):
        if self.request.retries < 1:
            raise self.retry(args=(x + 1,), kwargs={"y": 5}, countdown=1, exc=Expected("later"))
        return [x, y, self.request.retries]

    return lambda: work.delay(7)


@shape(ends=2)
def retrying_too_often(kit):
    @kit.task(bind=True, max_retries=1, key="one")
    def work(self, x):
        raise self.retry(countdown=1, exc=Expected("no", x))

    return lambda: work.delay(7)


@shape(ends=3)
def retried_automatically(kit):
    @kit.task(bind=True, autoretry_for=(Expected,), default_retry_delay=1, max_retries=3, key="one")
    def work(self, x):
        if self.request.retries < 2:
            raise Expected("no", x)
        return [x, self.request.retries]

    return lambda: work.delay(7)


@shape(ends=2)
def retried_automatically_too_often(kit):
    @kit.task(autoretry_for=(Expected,), retry_kwargs={"max_retries": 1, "countdown": 1})
    def work(x):
        raise Expected("no", x)

    return lambda: work.delay(7)


@shape(ends=2)
def replaced(kit):
    """By itself, under the same key."""

    @kit.task(bind=True, key="one")
    def work(self, x):
        if x < 2:
            raise self.replace(self.s(x + 1).set(countdown=1))
        return x

    return lambda: work.delay(1)


@shape(ends=4)
def replaced_by_a_chain_within_a_chain(kit):
    @kit.task(bind=True)
    def work(self, x):
        raise self.replace(chain(add.s(x, 1), add.s(10)))

    @kit.task()
    def add(x, y):
        return x + y

    return lambda: chain(work.s(1), add.s(100)).delay()


@shape()
def ignored(kit):
    @kit.task(bind=True)
    def work(self):
        self.update_state(state="CUSTOM", meta={"half": "done"})
        raise Ignore

    return work.delay


@shape()
def rejected(kit):
    @kit.task()
    def work():
        raise Reject("no", requeue=False)

    return work.delay


@shape(ends=1, ends_late=2)
def rejected_to_be_delivered_again(kit):
    @kit.task(bind=True, key="one")
    def work(self):
        if not self.request.delivery_info["redelivered"]:
            raise Reject("once more", requeue=True)
        return "delivered again"

    return work.delay


# Canvas


@shape(ends=3)
def chained(kit):
    @kit.task()
    def add(x, y):
        return x + y

    return (add.s(1, 2) | add.s(10) | add.si(5, 6)).delay


@shape(ends=1)
def chained_behind_a_failure(kit):
    @kit.task()
    def fail():
        raise Expected("no")

    @kit.task()
    def add(x, y):
        return x + y

    return (fail.s() | add.s(10)).delay


@shape(ends=3)
def grouped(kit):
    @kit.task()
    def add(x, y):
        return x + y

    return lambda: group(add.s(i, 10) for i in range(3)).delay()


@shape(ends=4, is_ordered=False)
def in_a_chord(kit):
    @kit.task()
    def add(x, y):
        return x + y

    @kit.task()
    def total(numbers):
        return sum(numbers)

    return lambda: chord([add.s(i, 10) for i in range(3)])(total.s())


@shape(ends=3, is_ordered=False)
def in_a_chord_that_fails(kit):
    @kit.task()
    def fail(x):
        raise Expected("no", x)

    @kit.task()
    def add(x, y):
        return x + y

    @kit.task()
    def total(numbers):
        return sum(numbers)

    @kit.task()
    def failed(task_id):
        return "told"

    return lambda: chord([fail.s(1), add.s(1, 10)])(total.s().on_error(failed.s()))


@shape(waits=False)
def mapped(kit):
    @kit.task()
    def double(x):
        return 2 * x

    return lambda: double.map([1, 2, 3]).delay()


@shape(waits=False)
def starmapped(kit):
    @kit.task()
    def add(x, y):
        return x + y

    return lambda: add.starmap([(1, 2), (3, 4)]).delay()


@shape(ends=2, waits=False)
def in_chunks(kit):
    @kit.task()
    def add(x, y):
        return x + y

    return lambda: add.chunks([(i, i) for i in range(4)], 2).apply_async()


@shape(ends=3)
def linked(kit):
    @kit.task()
    def add(x, y):
        return x + y

    return lambda: add.apply_async((1, 2), link=[add.s(10), add.si(3, 4)])


@shape(ends=2)
def with_an_errback_that_gets_the_id(kit):
    @kit.task()
    def fail(x):
        raise Expected("no", x)

    @kit.task()
    def failed(task_id):
        return "told"

    return lambda: fail.apply_async((7,), link_error=failed.s())


@shape()
def with_an_errback_that_gets_the_error(kit):
    @kit.task()
    def fail(x):
        raise Expected("no", x)

    @kit.task(key="one")  # a request has no stable form, so an errback has no default key
    def failed(request, exc, traceback):
        note(kit.cell, "errback", request.id, error=repr(exc), at="errback")

    return lambda: fail.apply_async((7,), link_error=failed.s())


@shape(ends=2)
def calling_another_task(kit):
    @kit.task()
    def double(x):
        return 2 * x

    @kit.task()
    def work(x):
        return [double(x), double.apply((x,)).get(disable_sync_subtasks=False)]

    return lambda: work.delay(4)


@shape(ends=2)
def publishing_another_task(kit):
    @kit.task()
    def double(x):
        return 2 * x

    @kit.task()
    def work(x):
        double.delay(x)
        return x

    return lambda: work.delay(4)
