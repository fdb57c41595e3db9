"""Every shape of task that plain Celery runs, runs under its lock."""

from __future__ import annotations

import pytest
from celery import states

from celery_rlock.options.plan import plan_of
from tests.support.processes import wait_until
from tests.worker.awaiting import lock
from tests.worker.proj import shapes

pytestmark = pytest.mark.usefixtures("fleet")

SOON = 30


def run(task, *args, **kwargs):
    """What a worker's run has seen."""
    return task.apply_async(args, kwargs).get(timeout=SOON)


def test_a_bound_task_over_any_arguments(proj, name):
    """Semantics 15."""
    first, second = run(proj.anything, name, 1), run(proj.anything, name, 2)
    assert (first["args"], first["kwargs"], first["held"]) == ([name, 1], {}, True)
    assert first["key"] != second["key"]
    assert run(proj.anything, name=name)["kwargs"] == {"name": name}


def test_a_decorator_that_injects_an_argument(proj, name):
    """Semantics 15: the key is made of what the caller gave."""
    first, other = run(proj.injected, name), run(proj.injected, name, "extra")
    assert (first["session"], first["name"], first["held"]) == ("session", name, True)
    assert first["key"] == run(proj.injected, name=name)["key"] != other["key"]
    for args, kwargs in (((name,), {}), ((name, "extra"), {}), ((), {"name": name})):
        assert run(proj.injected_by_template, *args, **kwargs)["key"] == f"injected:{name}"


def test_class_based_tasks_without_a_name(proj, name):
    """Semantics 15: each has keys of its own."""
    for task in (proj.by_class, proj.by_other_class):
        got = run(task, name)
        assert got["task"] == task.name
        assert got["key"].startswith(f"{task.name}:")


@pytest.mark.parametrize("base", shapes.FLASK, ids=lambda base: base.__name__)
def test_any_call_method_runs_inside_the_lock(proj, name, base, records, hold):
    """Semantics 21: in either order of bases, with super() or without it."""
    task = proj.app.tasks[f"proj.{base.__name__}"]
    with hold(name):
        sent = task.delay(name)
        wait_until(lambda: sent.state == states.RETRY, timeout=SOON, what="the busy attempt")
        assert records(name) == []
    got = sent.get(timeout=SOON)
    assert got == {"key": name, "held": True, "app": "shop", "id": sent.id, "depth": 1}
    assert {(entry["event"], entry["held"]) for entry in records(name)} == {("context", True), ("run", True)}


def test_a_busy_retry_keeps_what_a_call_method_takes_away(proj, name, hold):
    """Semantics 9, 21: the message's arguments, not those that `run()` gets."""
    (key,) = plan_of(proj.tenant_taken_away).keys_of((name,), {"tenant": "x"})
    with hold(key):
        sent = proj.tenant_taken_away.delay(name, tenant="x")
        wait_until(lambda: sent.state == states.RETRY, timeout=SOON, what="the busy attempt")
    assert sent.get(timeout=SOON) == {"key": key, "held": True, "tenant": "x"}


def test_the_parent_frees_the_key_of_a_task_whose_call_method_takes_arguments_away(
    proj, name, await_start, locks
):
    """Semantics 6, 21: the worker's parent process makes the same key from the message."""
    proj.tenant_taken_away.delay(name, tenant="x", dies=True)
    key = await_start(name)["key"]
    wait_until(
        lambda: not locks.exists(lock(key)), timeout=15, what="the key to be free before its lease ends"
    )


def test_a_model_and_its_dict_are_one_key(proj, name):
    """Semantics 15: published as a model, or as its dict."""
    model = proj.Order(name=name)
    by_dict = run(proj.order, {"name": name})
    assert by_dict == run(proj.order, model.model_dump())
    assert (by_dict["name"], by_dict["kind"], by_dict["held"]) == (name, "new", True)
    assert run(proj.order_by_callable, {"name": name})["key"] == f"new:{name}"
    if hasattr(proj.order, "_dump_pydantic_arguments"):  # from Celery 5.7 on a caller may pass a model
        assert run(proj.order, model) == by_dict
        assert run(proj.order_by_callable, order=model)["key"] == f"new:{name}"


def test_a_direct_call_with_a_model_takes_the_same_key(proj, name):
    """Semantics 15."""
    model = proj.Order(name=name)
    assert proj.order(model) == proj.order({"name": name}) == run(proj.order, {"name": name})
    assert proj.order_by_callable(model)["key"] == f"new:{name}"


def test_a_model_and_its_dict_are_one_unique_task(proj, name, queue):
    """Semantics 15: with lock_from="publish", where the publisher makes the key."""
    model = proj.Order(name=name)
    first = proj.unique_order.apply_async(({"name": name},), queue=queue)
    assert proj.unique_order.apply_async((model,), queue=queue).id == first.id
    assert proj.unique_order.apply_async((), {"order": model}, queue=queue).id == first.id
    other = proj.unique_order.apply_async(({"name": name, "kind": "other"},), queue=queue)
    assert other.id != first.id


@pytest.mark.skipif(not hasattr(shapes.Task, "_dump_pydantic_arguments"), reason="needs Celery 5.7")
def test_a_unique_task_published_with_a_model_runs_under_its_key(proj, name):
    """Semantics 15."""
    sent = proj.unique_order.delay(proj.Order(name=name))
    got = sent.get(timeout=SOON)
    assert (got["name"], got["held"]) == (name, True)


def test_a_task_may_copy_its_request(proj, name):
    got = run(proj.copies_its_request, name)
    assert got["own"] == "account"
    assert got["id"]
