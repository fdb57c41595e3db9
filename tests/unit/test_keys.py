from __future__ import annotations

import contextlib
import datetime
import decimal
import enum
import functools
import io
import json
import uuid
from dataclasses import dataclass

import pydantic
import pytest
from celery import Celery
from hypothesis import assume, example, given
from hypothesis import strategies as st
from kombu.serialization import dumps, loads

from celery_rlock import ConfigurationError, LockedTask
from celery_rlock.options.arguments import Parameters
from celery_rlock.options.keys import digest, keys_of_call
from celery_rlock.options.plan import plan_of


def key_maker(run, lock_key=None, *, bind=False):
    task = type("f", (), {"name": "proj.f", "run": run if bind else staticmethod(run)})
    make = keys_of_call(task.name, Parameters(task), lock_key)

    def key(*args, **kwargs):
        (only,) = make(args, kwargs)
        return only

    return key


def f(a, b=2, *rest, c=3, **more):
    return a


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.dates(),
    st.datetimes(),
    st.timedeltas(),
    st.uuids(),
    st.decimals(allow_nan=False),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(), inner, max_size=4),
        st.frozensets(scalars, max_size=4),
    ),
    max_leaves=8,
)


def typed(value):
    """A form in which two values are equal only if they are the same to a task."""
    if isinstance(value, dict):
        return ("dict", tuple(sorted((k, typed(v)) for k, v in value.items())))
    if isinstance(value, list | tuple):
        return ("list", tuple(map(typed, value)))
    if isinstance(value, frozenset | set):
        return ("set", frozenset(map(typed, value)))
    return (type(value).__name__, repr(value))


@given(values, values)
def test_different_values_have_different_keys(one, other):
    """Semantics 15: no two values share a key, `1` and `"1"` are two."""
    assert (digest(one) == digest(other)) == (typed(one) == typed(other))


@given(st.lists(values, max_size=3), st.lists(values, max_size=3))
def test_arguments_never_run_together(one, other):
    """Semantics 15: no collisions by concatenation."""
    make = key_maker(lambda *args: None)
    assume(typed(one) != typed(other))
    assert make(*one) != make(*other)


confusing = st.text(alphabet=":%3Aa")


@given(confusing, confusing, confusing, confusing)
@example("x:y", "z", "x", "y:z")
@example("a%3A", "b", "a:", "b")
def test_texts_in_a_template_never_run_together(a, b, c, d):
    """Semantics 15: no collisions by concatenation."""
    make = key_maker(lambda a, b: None, "move:{a}:{b}")
    assert (make(a, b) == make(c, d)) == ((a, b) == (c, d))


@given(st.dictionaries(st.text(), values, max_size=5), st.randoms())
def test_the_order_of_a_dict_does_not_matter(mapping, random):
    """Semantics 15: dict order does not matter."""
    items = list(mapping.items())
    random.shuffle(items)
    assert digest(dict(items)) == digest(mapping)


@given(values)
def test_a_key_is_the_same_before_and_after_a_message(value):
    """Semantics 15: what a worker sees has the key that the caller computed."""
    json_safe = json.loads(json.dumps(value, default=str))
    content_type, encoding, body = dumps({"a": json_safe}, serializer="json")
    assert digest(loads(body, content_type, encoding, accept={"application/json"})) == digest(
        {"a": json_safe}
    )
    assert digest((value, (value,))) == digest([value, [value]])


def test_every_way_to_pass_an_argument_is_one_key():
    """Semantics 15: `f(1)` and `f(a=1)` are one key."""
    make = key_maker(f)
    assert make(1) == make(a=1) == make(1, 2) == make(1, b=2, c=3) == make(c=3, a=1)
    assert len({make(1), make(2), make(1, 3), make(1, 2, 3), make(1, c=4), make(1, d=1)}) == 6


def test_one_and_true_and_text_are_different():
    """Semantics 15: `1` and `"1"` are two."""
    make = key_maker(f)
    assert len({make(1), make("1"), make(True), make(1.0), make(b"1"), make([1])}) == 6


def test_the_default_key_is_the_tasks_name_and_a_digest():
    key = key_maker(f)(1)
    assert key.startswith("proj.f:")
    assert len(key) == len("proj.f:") + 32
    assert key_maker(lambda: None)() == "proj.f"


def test_self_of_a_bound_task_is_no_argument():
    assert key_maker(lambda self, a: None, "k:{a}", bind=True)(5) == "k:5"
    assert key_maker(lambda self, a: None, bind=True)(5) == key_maker(lambda a: None)(5)


class Colour(enum.Enum):
    RED = 1


class Size(str, enum.Enum):
    BIG = "big"


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Point:
    x: int
    y: int


def test_a_template_reads_as_it_is_written():
    make = key_maker(lambda a: None, "account:{a}")
    assert make(7) == "account:7"
    assert make("7") == "account:7"  # a template is text, as RLock("account:7") is
    assert make("50% {x}:y") == "account:50% {x}:y"
    assert make(None) == "account:None"
    assert make(Level.LOW) == "account:1"
    assert make(Size.BIG) == "account:big"
    assert make(uuid.UUID(int=1)) == "account:00000000-0000-0000-0000-000000000001"
    assert make(datetime.date(2026, 1, 2)) == "account:2026-01-02"
    assert make(decimal.Decimal("1.50")) == "account:1.50"
    assert make({"b": 1, "a": 2}) == make({"a": 2, "b": 1}) == "account:" + digest({"a": 2, "b": 1})


def test_a_template_may_format():
    make = key_maker(lambda day: None, "report:{day:%Y-%m}")
    assert make(datetime.date(2026, 1, 2)) == "report:2026-01"


def test_a_callable_gets_the_bound_arguments_by_name():
    make = key_maker(f, lambda a, c, **_: f"{a}/{c}")
    assert make(1) == make(a=1) == "1/3"


@pytest.mark.parametrize("wrong", [None, "", 7, b"k"])
def test_a_callable_that_returns_no_text_is_an_error(wrong):
    """Semantics 16."""
    with pytest.raises(ConfigurationError, match=r"task proj\.f: .*must return a non-empty str"):
        key_maker(f, lambda **_: wrong)(1)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("x:{nope}", "names 'nope', but the task has: a, b, rest, c, more"),
        ("x:{}", "names ''"),
        ("x:{a.b}", "use a callable: lock_key=lambda a, **_: f'x:{a.b}'"),
        ("x:{a[0]}:{b.id}", "use a callable: lock_key=lambda a, b, **_: f'x:{a[0]}:{b.id}'"),
        ("x:{nope.id}", "names 'nope.id', but the task has: a, b, rest, c, more"),
        ("x:{a!r}", "conversions"),
        ("x:{a", "is not a template"),
        ("{a}{b}", "put a text between"),
    ],
)
def test_a_template_that_cannot_work_is_an_error_when_the_task_is_defined(template, said):
    """Semantics 16: a template naming an argument that the task does not have."""
    app = Celery("unit", set_as_current=False)
    task = app.task(base=LockedTask, shared=False, lock_key=template)(f)
    with pytest.raises(ConfigurationError) as error:
        task.name  # noqa: B018 - Celery defines a task at its first use
    assert said in str(error.value)


@pytest.mark.parametrize("value", [object(), f, Celery, open, [object()], {"a": object()}, {object()}])
def test_what_has_no_stable_form_is_an_error(value):
    """Semantics 15: an object's repr is not a key."""
    with pytest.raises(ConfigurationError, match=r"task proj\.f: .*no stable form"):
        key_maker(f)(value)


def test_what_contains_itself_is_an_error():
    """Semantics 15."""
    loop = []
    loop.append(loop)
    with pytest.raises(ConfigurationError, match=r"task proj\.f: .*contains itself"):
        key_maker(f)(loop)


def test_what_is_nested_too_deeply_is_not_said_to_contain_itself():
    """Semantics 16: the text is true for both."""
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ConfigurationError, match="nested too deeply for a lock's key, or contains itself"):
        key_maker(f)(deep)


def test_enums_and_dataclasses_have_a_stable_form():
    assert digest(Colour.RED) == digest(Colour.RED) != digest(1)
    assert digest(Size.BIG) == digest("big")
    assert digest(Point(1, 2)) == digest(Point(1, 2)) != digest(Point(2, 1))


def test_a_dataclass_and_its_dict_are_one_key():
    """Semantics 15: so are a model and its dict."""
    assert digest(Point(1, 2)) == digest({"y": 2, "x": 1})
    assert digest([Order(id=7)]) == digest([{"id": 7, "kind": "new", "at": None}])


def test_wrong_arguments_are_pythons_own_error():
    with pytest.raises(TypeError, match="missing a required argument: 'a'"):
        key_maker(f, "{a}")()


def test_a_bound_task_may_take_anything():
    """Semantics 15: `bind=True` over `*args`, where the task itself is the first of them."""
    make = key_maker(lambda *args, **kwargs: None, bind=True)
    assert len({make(), make(1), make(2), make(1, 2), make(a=1)}) == 5
    by_name = key_maker(lambda *args, name, **kwargs: None, "{name}", bind=True)
    assert by_name(1, name="n") == "n"


def passing_on(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        log = ("called", function, *args)
        return log, function(*args, **kwargs)

    return wrapper


def in_front(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        with contextlib.closing(io.StringIO()) as session:
            return function(session, *args, **kwargs)

    return wrapper


def after_self(function):
    @functools.wraps(function)
    def wrapper(self, *args, **kwargs):
        return function(self, "session", *args, **kwargs)

    return wrapper


def by_name(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, session="session", **kwargs)

    return wrapper


class InFront:
    """A decorator whose code does not say how it calls the function."""

    def __init__(self, function):
        functools.update_wrapper(self, function)

    def __call__(self, *args, **kwargs):
        return self.__wrapped__("session", *args, **kwargs)


DECORATED = {
    "one that only passes on": passing_on(lambda a, b=2: None),
    "an argument in front": in_front(lambda session, a, b=2: None),
    "two decorators": passing_on(in_front(lambda session, a, b=2: None)),
    "two in front": in_front(in_front(lambda one, two, a, b=2: None)),
    "an argument by name": by_name(lambda a, b=2, *, session: None),
    "an argument by name that the function has in between": by_name(lambda a, session, b=2: None),
}


@pytest.mark.parametrize("run", DECORATED.values(), ids=DECORATED)
def test_a_decorator_may_inject_an_argument(run):
    """Semantics 15: `functools.wraps`; the injected argument is no part of a key."""
    make = key_maker(run)
    assert make(1) == make(a=1) != make(2)
    assert make(1, b=3) == make(a=1, b=3) != make(1)
    template, of_callable = key_maker(run, "k:{a}"), key_maker(run, lambda a, b, **_: f"{a}/{b}")
    assert template(1) == template(1, b=3) == template(a=1) == "k:1"
    assert of_callable(1, b=3) == "1/3"


@pytest.mark.parametrize("run", [in_front(lambda session, a=0, b=2: None), DECORATED["two decorators"]])
def test_an_argument_in_front_does_not_shift_those_of_the_caller(run):
    """Semantics 15: also where the function would take one argument less, or one more."""
    make = key_maker(run, "k:{a}")
    assert (make(1), make(1, 3), make(5)) == ("k:1", "k:1", "k:5")


def test_a_decorator_of_a_bound_task_may_inject_an_argument():
    """Semantics 15."""
    for run in (after_self(lambda self, session, a=0: None), in_front(lambda session, self, a=0: None)):
        assert key_maker(run, "k:{a}", bind=True)(1) == key_maker(run, "k:{a}", bind=True)(a=1) == "k:1"


def test_the_key_names_arguments_that_the_caller_gives():
    """Semantics 15: so an argument that is missing is the injected one, whatever the decorator looks like."""
    make = key_maker(InFront(lambda session, a: None), "k:{a}")
    assert make(1) == make(a=1) == "k:1"
    assert key_maker(InFront(lambda session, a: None))(1) != key_maker(InFront(lambda session, a: None))(2)


def test_a_decorators_own_signature_counts():
    def wrapper(account):
        return account

    wrapper.__wrapped__ = lambda session, number: None
    assert key_maker(wrapper, "k:{account}")(1) == "k:1"


def test_arguments_that_a_base_class_takes_away_count():
    """Semantics 21: a `__call__` may take arguments that `run()` does not have."""
    make, template = key_maker(lambda a: None), key_maker(lambda a: None, "k:{a}")
    assert make(1, tenant="x") != make(1, tenant="y")
    assert make("x", 1) != make("y", 1)
    assert template(1, tenant="x") == "k:1"
    assert key_maker(lambda a: None, lambda a: f"k:{a}")(1, tenant="x") == "k:1"


class Order(pydantic.BaseModel):
    id: int
    kind: str = "new"
    at: datetime.date | None = None


def pydantic_key(lock_key=None):
    app = Celery("unit", set_as_current=False)

    @app.task(base=LockedTask, shared=False, pydantic=True, lock_key=lock_key)
    def handle(order: Order, second: Order | None = None):
        return order

    keys_of = plan_of(app.tasks[handle.name]).keys_of
    return lambda *args, **kwargs: keys_of(args, kwargs)[0]


def test_a_model_and_its_dict_are_one_key():
    """Semantics 15: as Celery itself treats them."""
    order = Order(id=7, at=datetime.date(2026, 1, 2))
    for make in (
        pydantic_key(),
        pydantic_key("order:{order}"),
        pydantic_key(lambda order, **_: order.at.isoformat()),
    ):
        forms = [order, order.model_dump(), order.model_dump(mode="json"), {"id": 7, "at": "2026-01-02"}]
        assert len({make(form) for form in forms}) == 1
        assert make(order=order, second=None) == make(order)
    assert pydantic_key()(order) != pydantic_key()(Order(id=8))
    assert pydantic_key()(order, order) == pydantic_key()(order, {"id": 7, "at": "2026-01-02"})


def test_what_is_no_such_model_is_left_to_celery():
    """Its wrapper validates too, and raises its own error."""
    assert pydantic_key()({"id": "no number"}) != pydantic_key()({"id": "another"})


def test_class_based_tasks_without_a_name_have_the_name_that_celery_gives_them():
    """Semantics 15: two classes share no key, nor do two tasks of one class."""
    app = Celery("unit", set_as_current=False)

    class First(LockedTask):
        def run(self, a):
            return a

    class Second(First):
        pass

    class Named(First):
        def __init__(self, name):
            self.name = name

    tasks = [app.register_task(task) for task in (First(), Second(), Named("one"), Named("two"))]
    keys = [plan_of(task).keys_of((1,), {})[0] for task in tasks]
    assert [key.rpartition(":")[0] for key in keys] == [task.name for task in tasks]
    assert len({task.name for task in tasks}) == 4
