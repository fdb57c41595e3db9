"""No log, error or result shows a password, also not a worker's log at level DEBUG."""

from __future__ import annotations

import json
import re

import pytest
from celery import Celery, states

from celery_rlock import LockUnavailable, RLock, settings
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer
from tests.faults import verbs
from tests.faults.server import acl
from tests.faults.server.lock_outages import slow
from tests.support.fleet import make_worker
from tests.support.processes import wait_until
from tests.support.servers import DEFAULT_KIND, Server

QUEUE = "passwords"
SECRET = "geheim-41c7"
AT_DEBUG = ["-l", "DEBUG"]
SOON = 30.0


@pytest.fixture(scope="module")
def server():
    """A server that wants another password than `SECRET`."""
    server = Server(DEFAULT_KIND, requirepass="the-right-one")
    server.url = f"redis://:the-right-one@127.0.0.1:{server.port}/0"
    with server.started():
        yield server


@pytest.fixture(scope="module")
def wrong_url(server):
    return f"redis://user:{SECRET}@127.0.0.1:{server.port}/0?socket_timeout=0.5"


@pytest.fixture(scope="module")
def fleet(start_fleet, wrong_url):
    with start_fleet(wrong_url, queue=QUEUE, count=1, args=AT_DEBUG) as fleet:
        yield fleet


def test_neither_log_nor_result_shows_a_wrong_password(fleet, send, store, server, name):
    """The traceback that is stored with the error does not show it either."""
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
        f"http://user:{SECRET}@127.0.0.1:1/0",
        slow(f"redis://user:{SECRET}@127.0.0.1:1/0?socket_timeot=1"),
        slow(f"redis://user:x/{SECRET}@127.0.0.1:1/0"),
        slow(f"sentinel://127.0.0.1:1/0?sentinel_password={SECRET}"),
    ],
    ids=["unknown scheme", "unknown option", "unescaped", "no master"],
)
def test_a_worker_that_cannot_use_its_url_does_not_show_the_password(project, environment, url):
    worker = make_worker(project, environment, conf={"rlock_url": url}, args=AT_DEBUG)
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
        f"redis://user:{SECRET}@127.0.0.1:1/0",
        f"rediss://user:{SECRET}@127.0.0.1:1/0",
        f"unix://user:{SECRET}@/nowhere.sock",
        f"sentinel://user:{SECRET}@127.0.0.1:1/0?master_name=m&sentinel_password={SECRET}",
        f"redis+cluster://user:{SECRET}@127.0.0.1:1",
    ],
    ids=lambda url: url.partition(":")[0],
)
def test_no_object_and_no_error_shows_the_password(url):
    lock_server = RedisLockServer(connect(url))
    lock = RLock("k", client=lock_server.client)
    with pytest.raises(LockUnavailable) as unavailable:
        lock.acquire()
    cause = unavailable.value.__cause__
    shown = [
        lock_server.client,
        lock_server,
        lock,
        unavailable.value,
        cause,
        str(unavailable.value),
        str(cause),
    ]
    assert SECRET not in json.dumps([repr(each) for each in shown])


def test_celery_shows_no_password_that_stands_beside_the_url(project, environment, send, server, name):
    """The example of docs/security.md: `celery inspect conf` and `celery report` show all settings."""
    conf = {"rlock_url": f"redis://default@127.0.0.1:{server.port}/0", "rlock_password": "the-right-one"}
    with make_worker(project, environment, conf=conf, args=AT_DEBUG, queues=["beside"]) as worker:
        worker.started()
        assert send("failing", name, queue="beside").get(timeout=SOON)["held"]
        app = Celery("operator", broker=environment["RLOCK_TEST_BROKER"], set_as_current=False)
        inspect = app.control.inspect(destination=[worker.nodename], timeout=10)
        shown = wait_until(lambda: json.dumps(inspect.conf() or ""), timeout=SOON, what="an answer")
        assert conf["rlock_url"] in shown
        assert "the-right-one" not in shown + worker.log


@pytest.mark.parametrize("kind", ["password", "client"])
def test_the_pages_examples_keep_the_password_out_of_the_settings(server, monkeypatch, kind):
    """`celery report` shows all settings, and an error may show the repr of a client."""
    user = acl.make_user(server)
    monkeypatch.setenv("RLOCK_PASSWORD", acl.PASSWORD)
    blocks = re.findall(r"^```python\n(.*?)^```", acl.PAGE.read_text(), re.MULTILINE | re.DOTALL)
    [source] = [
        block
        for block in blocks
        if "import os" in block
        and "RLOCK_PASSWORD" in block
        and ("lock_client" in block) == (kind == "client")
    ]
    for example, real in (
        ("redis.example", "127.0.0.1"),
        ("6379", str(server.port)),
        ('"rlock"', f'"{user}"'),
        ("rlock@", f"{user}@"),
    ):
        source = source.replace(example, real)
    with Celery("proj", set_as_current=False) as app:
        page = {"app": app}
        exec(source, page)
        if kind == "client":
            app.conf.rlock_client = page["lock_client"]
        lock_server = settings.server(app)
        verbs.use_all(lock_server)
        assert "rlock_" in app.bugreport()
        assert acl.PASSWORD not in app.bugreport()
        assert acl.PASSWORD not in repr(lock_server.client)
