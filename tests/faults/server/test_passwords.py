"""No password shows: not in a worker's log at its most talkative, not in an error, not in a result."""

from __future__ import annotations

import json
import re

import pytest
from celery import Celery, states

from celery_rlock import LockUnavailable, RLock, settings
from celery_rlock.core.client import connect
from celery_rlock.core.scripts import Scripts
from tests.conftest import DEFAULT_KIND
from tests.faults.fleet import make_worker
from tests.support.processes import wait_until
from tests.support.servers import Server
from tests.trouble import rights
from tests.trouble.conftest import PROJ

QUEUE = "passwords"
SECRET = "geheim-41c7"
TALKATIVE = ["-l", "DEBUG"]
SOON = 30.0


@pytest.fixture(scope="module")
def server():
    """Its password is another one."""
    server = Server(DEFAULT_KIND, requirepass="the-right-one")
    server.url = f"redis://:the-right-one@127.0.0.1:{server.port}/0"
    with server.started():
        yield server


@pytest.fixture(scope="module")
def wrong_url(server):
    return f"redis://somebody:{SECRET}@127.0.0.1:{server.port}/0?socket_timeout=0.5"


@pytest.fixture(scope="module")
def fleet(start_fleet, wrong_url):
    with start_fleet(wrong_url, queue=QUEUE, count=1, args=TALKATIVE) as fleet:
        yield fleet


def test_a_wrong_password_shows_in_neither_log_nor_result(fleet, send, store, server, name):
    """Also not in the traceback that is stored with the error."""
    failed = send("failing", name, queue=QUEUE)
    retried = send("retrying", name, queue=QUEUE)
    with pytest.raises(LockUnavailable, match="AuthenticationError") as unavailable:
        failed.get(timeout=SOON)
    wait_until(lambda: retried.state == states.RETRY, timeout=SOON, what="it to wait")
    assert SECRET not in repr(unavailable.value)
    for task in (failed, retried):
        stored = store.get(f"celery-task-meta-{task.id}").decode()
        assert "AuthenticationError" in stored
        assert SECRET not in stored
    [worker] = fleet
    assert "AuthenticationError" in worker.log
    assert SECRET not in worker.log


@pytest.mark.parametrize(
    "url",
    [
        f"http://somebody:{SECRET}@127.0.0.1:1/0",
        f"redis://somebody:{SECRET}@127.0.0.1:1/0?socket_timeot=1",
        f"redis://somebody:x/{SECRET}@127.0.0.1:1/0",
        f"sentinel://127.0.0.1:1/0?sentinel_password={SECRET}",
    ],
    ids=["unknown scheme", "unknown option", "unescaped", "no master"],
)
def test_a_worker_that_cannot_use_its_url_does_not_show_the_password(environment, url):
    worker = make_worker(environment, app=PROJ, conf={"rlock_url": url}, args=TALKATIVE)
    worker.launch()
    try:
        assert worker.wait(SOON) != 0
        assert "cannot use the lock's URL" in worker.log or "does not name the master" in worker.log
        assert SECRET not in worker.log
    finally:
        worker.stop(timeout=0)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://somebody:{SECRET}@127.0.0.1:1/0",
        f"rediss://somebody:{SECRET}@127.0.0.1:1/0",
        f"unix://somebody:{SECRET}@/nowhere.sock",
        f"sentinel://somebody:{SECRET}@127.0.0.1:1/0?master_name=m&sentinel_password={SECRET}",
        f"redis+cluster://somebody:{SECRET}@127.0.0.1:1",
    ],
    ids=lambda url: url.partition(":")[0],
)
def test_no_object_and_no_error_shows_the_password(url):
    scripts = Scripts(connect(url))
    lock = RLock("k", client=scripts.client)
    with pytest.raises(LockUnavailable) as unavailable:
        lock.acquire()
    cause = unavailable.value.__cause__
    shown = [scripts.client, scripts, lock, unavailable.value, cause, str(unavailable.value), str(cause)]
    assert SECRET not in json.dumps([repr(each) for each in shown])


def test_a_client_of_ones_own_keeps_the_password_out_of_the_settings(server, monkeypatch):
    """As docs/security.md has it; Celery shows all settings in `celery report` and `celery inspect conf`."""
    user = rights.make_user(server)
    monkeypatch.setenv("RLOCK_PASSWORD", rights.PASSWORD)
    [source] = re.findall(
        r"^```python\n(import os\n.*?)^```", rights.PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    for example, real in (
        ("redis.example", "127.0.0.1"),
        ("6379", str(server.port)),
        ('"rlock"', f'"{user}"'),
    ):
        assert example in source
        source = source.replace(example, real)
    with Celery("proj", set_as_current=False) as app:
        page = {"app": app}
        exec(source, page)
        app.conf.rlock_client = page["lock_client"]
        rights.use_everything(settings.server(app))
        assert "rlock_client" in app.bugreport()
        assert rights.PASSWORD not in app.bugreport()
