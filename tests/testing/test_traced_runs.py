"""What a run leaves behind in its process: no reference cycle, and a traceback of the user's own code."""

from __future__ import annotations

import gc
from uuid import uuid4

import pytest
from celery.app.trace import build_tracer

from celery_rlock import LockedTask
from celery_rlock.testing import busy


@pytest.fixture
def trace():
    """Runs a task as a worker's pool process does."""

    def run(task, *args):
        task, task_id = task.app.tasks[task.name], str(uuid4())
        request = {"id": task_id, "args": list(args), "kwargs": {}, "hostname": "w@h", "is_eager": False}
        return build_tracer(task.name, task, app=task.app)(task_id, args, {}, request)

    return run


@pytest.fixture
def left_in_cycles():
    """Which objects of this package the code has left in reference cycles."""

    def look(do):
        do()  # what is made once, such as a connection
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            do()
            gc.collect()
            kinds = [type(one) for one in gc.garbage]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        return [kind for kind in kinds if kind.__module__.startswith("celery_rlock")]

    return look


def test_a_run_leaves_no_reference_cycle(charge, trace, left_in_cycles):
    """A cycle lives until Python's collector comes by, so a busy worker would need more memory."""
    assert left_in_cycles(lambda: trace(charge, 7)) == []


def test_the_traceback_of_a_failed_run_leaves_the_lock_out(app, trace):
    @app.task(base=LockedTask, shared=False)
    def fails():
        raise ValueError("of the user")

    shown = trace(fails).retval.traceback
    assert shown.count('", line') == 3  # Celery's tracer, our `__call__`, and the body
    assert "raise ValueError" in shown


@pytest.mark.parametrize("policy", ["skip", "fail"])
def test_a_busy_call_copies_few_frames(app, trace, policy):
    """Celery copies all frames of a traceback and sends them to the parent process."""

    @app.task(base=LockedTask, shared=False, lock_key="account:7", lock_busy=policy)
    def other():
        pass

    with busy("account:7"):
        assert trace(other).retval.traceback.count('", line') == 2
