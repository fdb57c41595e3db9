"""`lock_pending` and `lock_duplicate="replace"` without a broker: eagerly, in memory, and switched off."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_rlock import LockedTask

OPTIONS = {"lock_key": "k", "lock_from": "publish", "lock_pending": 1}


@pytest.fixture(params=["memory", "off"])
def app(request):
    with Celery("eager", broker="memory://", backend="cache+memory://", set_as_current=False) as app:
        app.conf.update(rlock_url="memory://", task_always_eager=True)
        if request.param == "off":
            app.conf.rlock_enabled = False
        yield app


@pytest.mark.parametrize("duplicate", ["existing", "replace"])
def test_every_eager_call_runs_and_leaves_no_place(app, duplicate):
    runs = []

    @app.task(base=LockedTask, bind=True, shared=False, lock_duplicate=duplicate, **OPTIONS)
    def rebuild(self, number):
        runs.append(number)
        if number == 0:
            rebuild.delay(10)  # its own next call runs inside of it, as with plain Celery
        if number == 2 and not self.request.retries:
            raise self.retry(countdown=0)
        if number == 3:
            raise ValueError(number)

    for number in range(5):
        rebuild.apply_async((number,), countdown=5)
        assert rebuild.lock_of(number).state == "free"
    assert runs == [0, 10, 1, 2, 2, 3, 4]


def test_an_eager_call_that_cannot_run_leaves_no_place(app):
    @app.task(base=LockedTask, shared=False, typing=False, **OPTIONS)
    def rebuild(number):
        return number

    app.conf.task_eager_propagates = True
    with pytest.raises(TypeError):
        rebuild.apply_async((1, 2, 3), lock_key="k")
    assert rebuild.delay(1).get() == 1
