"""The containers of examples/kubernetes run with the rights of its Secret, and their probes are right."""

from __future__ import annotations

import os
import time
import urllib.request
from pathlib import Path

import pytest
import redis
from celery import Celery

from tests.faults.kubernetes.containers import Container, Valkey, can_be_read_only, new_secret
from tests.support.processes import free_port, wait_until
from tests.support.proxy import Proxy
from tests.support.servers import available_kinds

pytestmark = pytest.mark.skipif("valkey" not in available_kinds(), reason="no Valkey on this machine")
LONG_AGO = 3600.0
#: What the doctor asks for as the workers' user, who may not do it: the example has another user for surveys.
FOR_SURVEYS = ("dbsize", "scan", "hscan", "pubsub|numsub", "zcard")
LONGER_THAN_A_BEAT = 5.0  # seconds; the loop touches the file every two seconds


@pytest.fixture(scope="module")
def secret():
    return new_secret()


@pytest.fixture(scope="module")
def valkey(secret, tmp_path_factory):
    with Valkey(secret, tmp_path_factory.mktemp("valkey")).started() as server:
        yield server


@pytest.fixture(scope="module")
def proxy(valkey):
    """The containers reach the server through this proxy."""
    with Proxy(valkey.port, protocol="raw") as proxy:
        yield proxy


@pytest.fixture(scope="module")
def start(secret, proxy, tmp_path_factory):
    """Starts a container that runs until the end of this module."""
    running = []

    def start(name, *more):
        container = Container(name, secret, proxy.port, tmp_path_factory.mktemp(name), more)
        running.append(container)
        return container.started()

    yield start
    for container in running:
        container.stop(timeout=0)


@pytest.fixture(scope="module")
def worker(start):
    return start("worker", "--include=tests.faults.kubernetes.hang_command")


@pytest.fixture(scope="module")
def beat(start):
    return start("beat")


@pytest.fixture(scope="module")
def client(secret, valkey):
    """A Celery app that publishes with the rights of the example's app."""
    url = f"redis://broker:{secret['broker']}@127.0.0.1:{valkey.port}/0"
    with Celery("client", broker=url, backend=url, set_as_current=False) as client:
        yield client


def logged_in(valkey, user, password):
    return redis.Redis(port=valkey.port, username=user, password=password)


def refused(valkey):
    """The commands that the server has refused, with their user."""
    return [(entry["username"], entry["object"]) for entry in valkey.client().acl_log()]


def becomes_fresh(container, within=60):
    """Make the file of the liveness probe old, and wait until the container touches it."""
    os.utime(container.alive_file, (0, time.time() - LONG_AGO))  # `stays_old` shows that the probe then fails
    wait_until(lambda: container.probe("liveness"), timeout=within, what="the file to be touched")


def stays_old(container):
    """Make the file of the liveness probe old, and check that the container does not touch it."""
    os.utime(container.alive_file, (0, time.time() - LONG_AGO))
    end = time.monotonic() + LONGER_THAN_A_BEAT
    while time.monotonic() < end:
        assert not container.probe("liveness")
        time.sleep(0.5)


def test_locked_tasks_run_with_the_rights_of_the_secret(valkey, worker, client):
    """Tasks wait, are woken and get tokens, and the server refuses no command."""
    sent = [client.send_task("proj.tasks.charge", (7, amount, 0.2)) for amount in range(5)]
    tokens = [result.get(timeout=60)["token"] for result in sent]
    assert len(set(tokens)) == 5
    assert client.send_task("proj.tasks.close_books").get(timeout=60)
    assert client.control.ping(timeout=10, limit=1)
    assert "Traceback" not in worker.log
    assert refused(valkey) == []


@pytest.mark.slow
def test_the_doctor_finds_no_problem(worker, valkey):
    """`kubectl exec deploy/worker -- celery -A proj rlock doctor`"""
    loaded = ("--skip", "latency", "--timeout", "5")  # the machine of the tests may be
    done = worker.execute("celery", "-A", "proj", "rlock", "doctor", *loaded)
    assert done.returncode == 0, done.stdout
    assert "all is well" in done.stdout
    assert set(refused(valkey)) <= {("locks", name) for name in FOR_SURVEYS}
    valkey.client().acl_log_reset()


@pytest.mark.skipif(not can_be_read_only(), reason="only root on Linux can create mounts")
def test_the_containers_write_to_their_own_folder_only(worker, beat):
    """The root file system is read-only in all tests of this module."""
    for container in (worker, beat):
        mounts = Path(f"/proc/{container.pid}/mounts").read_text().splitlines()
        [root] = [line.split() for line in mounts if line.split()[1] == "/"]
        assert root[3].split(",")[0] == "ro"


def test_no_user_can_touch_the_data_of_another(valkey, secret):
    broker = logged_in(valkey, "broker", secret["broker"])
    locks = logged_in(valkey, "locks", secret["locks"])
    survey = logged_in(valkey, "survey", secret["survey"])
    anonymous = redis.Redis(port=valkey.port)
    for attempt in (
        lambda: broker.delete("rlock:{account:7}"),
        broker.flushall,
        lambda: broker.config_get("*"),
        lambda: locks.lpush("celery", "message"),
        locks.flushall,
        lambda: locks.publish("celery-task-meta-1", "SUCCESS"),
        locks.scan,
        lambda: survey.delete("rlock:{account:7}"),
        lambda: survey.hset("rlock:{account:7}", "field", 1),
        lambda: survey.eval("return 1", 0),
        lambda: survey.publish("rlock:wake:1", "turn"),
        lambda: survey.lrange("celery", 0, 1),
        lambda: anonymous.get("celery"),
    ):
        with pytest.raises(redis.exceptions.NoPermissionError):
            attempt()
    assert anonymous.ping()
    valkey.client().acl_log_reset()


def test_the_server_evicts_no_key(valkey):
    memory = valkey.client().info("memory")
    assert (memory["maxmemory_policy"], memory["maxmemory"]) == ("noeviction", 200 * 1024 * 1024)


def test_the_liveness_probe_of_a_running_worker_succeeds(worker):
    becomes_fresh(worker)


@pytest.mark.slow
def test_the_liveness_probe_of_a_hanging_worker_fails(worker, client):
    hanging = worker.alive_file.with_name("hanging")  # the only folder that the worker can write to
    hanging.touch()
    client.control.broadcast("hang", {"file": str(hanging)})
    wait_until(lambda: hanging.read_text() == "hanging", timeout=30, what="the worker to hang")
    try:
        stays_old(worker)
    finally:
        hanging.unlink()
    becomes_fresh(worker)


@pytest.mark.slow
def test_the_liveness_probe_of_beat_succeeds(beat, valkey):
    becomes_fresh(beat)
    assert refused(valkey) == []


@pytest.mark.slow
def test_the_exporter_and_rlock_ls_have_the_rights_they_need(valkey, worker, secret, tmp_path):
    """They read locks from Redis and events from the broker, and the server refuses no command.

    `kubectl exec deploy/exporter -- celery -A proj rlock ls`
    """
    port = free_port()
    here = ("--host=127.0.0.1", f"--port={port}")
    exporter = Container("exporter", secret, valkey.port, tmp_path, here)
    exporter.is_ready = lambda: str(port) in exporter.log
    with exporter.started():
        page = lambda: _page(f"http://127.0.0.1:{port}/metrics")  # noqa: E731
        wait_until(lambda: "events_connected 1" in page(), timeout=30, what="the exporter to hear events")
        wait_until(lambda: "survey_complete 1" in page(), timeout=30, what="the exporter to count locks")
        for command in ("ls", "show doctor-was-here --timeout 0"):
            listed = exporter.execute("celery", "-A", "proj", "rlock", *command.split())
            assert listed.returncode in {0, 1}, listed.stderr
    assert refused(valkey) == []


def _page(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read().decode()
    except OSError:
        return ""


@pytest.mark.slow
def test_the_liveness_probe_of_a_worker_without_its_broker_succeeds(worker, proxy, client):
    """A restart would not bring the broker back. When it is back, the probe watches the loop again."""
    proxy.refuse()
    try:
        wait_until(lambda: "Trying again in" in worker.log, timeout=60, what="the worker to notice")
        becomes_fresh(worker)
    finally:
        proxy.accept()
    assert client.send_task("proj.tasks.charge", (8, 1)).get(timeout=60)
    becomes_fresh(worker)


def test_new_secret_makes_new_passwords_each_time(secret):
    again = new_secret()
    assert again["locks"] != secret["locks"] != secret["broker"]
    assert secret["locks"] not in secret["users.acl"]
