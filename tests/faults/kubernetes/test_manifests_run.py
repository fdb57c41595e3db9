"""The example's containers run: with the ACL of its Secret, and with probes that tell what they should."""

from __future__ import annotations

import os
import time
import urllib.request
from pathlib import Path

import pytest
import redis
from celery import Celery

from tests.kubernetes.containers import Container, Valkey, can_be_read_only, has_exporter, new_secret
from tests.support.processes import free_port, wait_until
from tests.support.proxy import Proxy
from tests.support.servers import available_kinds

pytestmark = pytest.mark.skipif("valkey" not in available_kinds(), reason="no Valkey on this machine")
LONG_AGO = 3600.0
LONGER_THAN_A_TURN = 5.0  # the file is touched every two seconds


@pytest.fixture(scope="module")
def secret():
    return new_secret()


@pytest.fixture(scope="module")
def valkey(secret, tmp_path_factory):
    with Valkey(secret, tmp_path_factory.mktemp("valkey")).started() as server:
        yield server


@pytest.fixture(scope="module")
def way(valkey):
    """The containers' way to the server, which can be closed."""
    with Proxy(valkey.port, protocol="raw") as proxy:
        yield proxy


@pytest.fixture(scope="module")
def start(secret, way, tmp_path_factory):
    """Starts a container, to be gone with this module."""
    running = []

    def start(name, *more):
        container = Container(name, secret, way.port, tmp_path_factory.mktemp(name), more)
        running.append(container)
        return container.started()

    yield start
    for container in running:
        container.stop(timeout=0)


@pytest.fixture(scope="module")
def worker(start):
    return start("worker", "--include=tests.kubernetes.hanging")


@pytest.fixture(scope="module")
def beat(start):
    return start("beat")


@pytest.fixture(scope="module")
def client(secret, valkey):
    """A client with the rights that the app has."""
    url = f"redis://broker:{secret['broker']}@127.0.0.1:{valkey.port}/0"
    with Celery("client", broker=url, backend=url, set_as_current=False) as client:
        yield client


def logged_in(valkey, user, password):
    return redis.Redis(port=valkey.port, username=user, password=password)


def refused(valkey):
    return [(entry["username"], entry["object"]) for entry in valkey.client().acl_log()]


def becomes_fresh(container, within=60):
    """Make the file old; it does not stay so."""
    os.utime(container.alive_file, (0, time.time() - LONG_AGO))
    assert not container.probe("liveness")
    wait_until(lambda: container.probe("liveness"), timeout=within, what="the file to be touched")


def stays_old(container):
    os.utime(container.alive_file, (0, time.time() - LONG_AGO))
    end = time.monotonic() + LONGER_THAN_A_TURN
    while time.monotonic() < end:
        assert not container.probe("liveness")
        time.sleep(0.5)


def test_locked_tasks_run_with_the_rights_of_the_secret(valkey, worker, client):
    """Waiting, waking and fencing included; the server has refused nothing."""
    sent = [client.send_task("proj.tasks.charge", (7, amount, 0.2)) for amount in range(5)]
    tokens = [result.get(timeout=60)["token"] for result in sent]
    assert len(set(tokens)) == 5
    assert client.send_task("proj.tasks.close_books").get(timeout=60)
    assert client.control.ping(timeout=10, limit=1)
    assert "Traceback" not in worker.log
    assert refused(valkey) == []


def test_the_doctor_finds_nothing_wrong(worker, valkey):
    """`kubectl exec deploy/worker -- celery -A proj rlock doctor`"""
    done = worker.execute("celery", "-A", "proj", "rlock", "doctor")
    assert done.returncode == 0, done.stdout
    assert "all is well" in done.stdout
    assert refused(valkey) == []


@pytest.mark.skipif(not can_be_read_only(), reason="only root on Linux can make mounts")
def test_the_containers_write_to_their_own_folder_only(worker, beat):
    """What all tests of this module run with: a root that is read-only."""
    for container in (worker, beat):
        mounts = Path(f"/proc/{container.pid}/mounts").read_text().splitlines()
        [root] = [line.split() for line in mounts if line.split()[1] == "/"]
        assert root[3].split(",")[0] == "ro"


def test_one_user_cannot_touch_what_is_the_others(valkey, secret):
    broker = logged_in(valkey, "broker", secret["broker"])
    locks = logged_in(valkey, "locks", secret["locks"])
    nobody = redis.Redis(port=valkey.port)
    for attempt in (
        lambda: broker.delete("rlock:{account:7}"),
        broker.flushall,
        lambda: broker.config_get("*"),
        lambda: locks.lpush("celery", "message"),
        locks.flushall,
        lambda: locks.publish("celery-task-meta-1", "SUCCESS"),
        lambda: nobody.get("celery"),
    ):
        with pytest.raises(redis.exceptions.NoPermissionError):
            attempt()
    assert nobody.ping()
    valkey.client().acl_log_reset()


def test_the_server_evicts_nothing(valkey):
    memory = valkey.client().info("memory")
    assert (memory["maxmemory_policy"], memory["maxmemory"]) == ("noeviction", 200 * 1024 * 1024)


def test_a_worker_whose_loop_turns_is_alive(worker):
    becomes_fresh(worker)


def test_a_worker_whose_loop_hangs_is_not(worker, client, tmp_path):
    hanging = tmp_path / "hanging"
    hanging.touch()
    client.control.broadcast("hang", {"file": str(hanging)})
    time.sleep(2)
    try:
        stays_old(worker)
    finally:
        hanging.unlink()
    becomes_fresh(worker)


def test_beat_is_alive(beat, valkey):
    becomes_fresh(beat)
    assert refused(valkey) == []


@pytest.mark.skipif(not has_exporter(), reason="celery rlock exporter is not there")
def test_the_exporter_and_ls_may_see_what_they_need(valkey, worker, secret, tmp_path):
    """They ask Redis for locks and the broker for events, and neither refuses anything."""
    port = free_port()
    here = ("--host=127.0.0.1", f"--port={port}")
    exporter = Container("exporter", secret, valkey.port, tmp_path, here)
    exporter.is_ready = lambda: str(port) in exporter.log
    with exporter.started():
        page = lambda: _page(f"http://127.0.0.1:{port}/metrics")  # noqa: E731
        wait_until(lambda: "events_connected 1" in page(), timeout=30, what="the exporter to hear events")
        assert "celery_rlock_locks" in page()
    listed = worker.execute("celery", "-A", "proj", "rlock", "ls")
    assert listed.returncode == 0, listed.stderr
    assert refused(valkey) == []


def _page(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read().decode()
    except OSError:
        return ""


def test_a_worker_without_its_broker_is_not_restarted(worker, way, client):
    """A restart would bring no broker back; and when it is back the loop is watched again."""
    way.refuse()
    try:
        wait_until(lambda: "Trying again in" in worker.log, timeout=60, what="the worker to notice")
        becomes_fresh(worker)
    finally:
        way.accept()
    assert client.send_task("proj.tasks.charge", (8, 1)).get(timeout=60)
    becomes_fresh(worker)


def test_the_script_makes_new_passwords_each_time(secret):
    again = new_secret()
    assert again["locks"] != secret["locks"] != secret["broker"]
    assert secret["locks"] not in secret["users.acl"]
