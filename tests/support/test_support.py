"""The test support itself: the other tests rely on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import psutil
import pytest
import redis
from celery import Celery

from tests.support.clients import bare_client
from tests.support.daemon import ROOT
from tests.support.faults import named
from tests.support.processes import alive, wait_until
from tests.support.proxy import Proxy
from tests.support.rabbit import Rabbit
from tests.support.servers import DEFAULT_KIND, Server, available_kinds
from tests.support.workers import Beat, Worker

pytestmark = pytest.mark.skipif(
    not available_kinds(), reason="neither a Valkey nor a Redis server is installed"
)


NEEDS_RABBIT = [
    pytest.mark.slow,
    pytest.mark.skipif(not Rabbit.available(), reason="no RabbitMQ on this machine"),
]


@pytest.fixture
def server():
    with Server.start(DEFAULT_KIND) as server:
        yield server


@pytest.fixture
def proxy(server):
    before = threading.active_count()
    with Proxy(server.port) as proxy:
        yield proxy
    assert threading.active_count() == before


@pytest.mark.parametrize("kind", available_kinds())
def test_a_restarted_server_keeps_its_port_and_loses_its_data(kind):
    with Server.start(kind, maxmemory="64mb") as server, server.client() as client:
        client.set("a", 1)
        assert client.info("memory")["maxmemory"] == 64 * 1024 * 1024
        server.kill()
        assert not server.running
        with pytest.raises(redis.ConnectionError):
            client.ping()
        server.restart()
        assert client.get("a") is None


def test_a_paused_server_answers_when_it_is_resumed(server):
    with server.client(socket_timeout=0.2) as client:
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.resume()
        assert client.ping()


def test_a_server_that_cannot_start_says_why():
    with pytest.raises(AssertionError, match="nonsense"):
        Server.start(DEFAULT_KIND, nonsense="yes")


@pytest.mark.parametrize(
    ("how", "error"), [("close", redis.ConnectionError), ("swallow", redis.TimeoutError)]
)
def test_a_lost_reply_hides_a_command_that_was_executed(server, proxy, how, error):
    with bare_client(proxy.url, socket_timeout=0.3) as client, server.client() as direct:
        client.ping()
        rule = proxy.lose_reply(named("rpush"), how=how)
        with pytest.raises(error):
            client.rpush("list", "a")
        assert rule.left == 0
        assert direct.llen("list") == 1
        assert client.rpush("list", "b") == 2
        assert [b"RPUSH", b"list", b"b"] in proxy.seen


def test_the_replies_before_a_lost_one_of_a_pipeline_arrive(server, proxy):
    with bare_client(proxy.url) as client, server.client() as direct:
        client.ping()
        connection = client.connection_pool.get_connection()
        proxy.lose_reply(lambda command: command == [b"INCR", b"b"])
        connection.send_packed_command(
            connection.pack_commands([("INCR", "a"), ("INCR", "b"), ("INCR", "c")])
        )
        assert connection.read_response() == 1
        with pytest.raises(redis.ConnectionError):
            connection.read_response()
        connection.disconnect()
        assert direct.mget("a", "b", "c") == [b"1"] * 3


def test_a_dropped_request_never_reaches_the_server(server, proxy):
    with bare_client(proxy.url) as client, server.client() as direct:
        proxy.drop_request(named("set"))
        with pytest.raises(redis.ConnectionError):
            client.set("a", 1)
        assert direct.get("a") is None
        assert client.set("a", 2)


def test_pub_sub_works_through_the_proxy(proxy):
    with bare_client(proxy.url) as client, client.pubsub(ignore_subscribe_messages=True) as listener:
        listener.subscribe("news", "weather")
        wait_until(lambda: client.pubsub_numsub("weather")[0][1] == 1)
        client.publish("weather", "rain")
        message = wait_until(lambda: listener.get_message(timeout=0.1), what="the published message")
        assert message["data"] == b"rain"


@pytest.mark.parametrize("protocol", ["resp", "raw"])
def test_a_proxy_refuses_and_accepts_freezes_and_thaws(server, protocol):
    with Proxy(server.port, protocol=protocol) as proxy, server.client() as direct:
        client = bare_client(f"redis://127.0.0.1:{proxy.port}/0", socket_timeout=0.2)
        client.ping()
        proxy.refuse()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        proxy.accept()
        assert client.ping()
        proxy.freeze()
        with pytest.raises(redis.TimeoutError):
            client.set("late", 1)
        assert direct.get("late") is None
        proxy.thaw()
        wait_until(lambda: direct.get("late") == b"1", what="the delayed request")
        client.close()


def test_the_pool_of_a_killed_worker_dies_too(server):
    env = {"RLOCK_TEST_BROKER": server.url, "RLOCK_TEST_BACKEND": server.url}
    app = Celery(broker=server.url, backend=server.url, set_as_current=False)
    with Worker.start("tests.support.proj:app", env=env) as worker:
        assert app.send_task("tests.support.proj.pid").get(timeout=10) in worker.children()
        pool = [psutil.Process(pid) for pid in worker.children()]
        worker.kill()
        wait_until(lambda: not any(map(alive, pool)), what="the pool's end after its main process")
    app.close()


def test_a_beat_starts_and_stops(server):
    with Beat.start("tests.support.proj:app", env={"RLOCK_TEST_BROKER": server.url}) as beat:
        assert beat.running
    assert not beat.running


SESSION = """
import sys, time
import psutil
from tests.support.rabbit import Rabbit
from tests.support.servers import Server, DEFAULT_KIND
from tests.support.workers import Beat, Worker
server = Server.start(DEFAULT_KIND)
env = {"RLOCK_TEST_BROKER": server.url, "RLOCK_TEST_BACKEND": server.url}
kept = [server, *(kind.start("tests.support.proj:app", env=env) for kind in (Worker, Beat))]
if "rabbit" in sys.argv:
    kept.append(Rabbit.start())
print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
@pytest.mark.parametrize(
    "more", [[], pytest.param(["rabbit"], marks=NEEDS_RABBIT)], ids=["redis", "rabbitmq"]
)
def test_a_killed_test_process_leaves_no_process(tmp_path, more):
    """Server, worker with its pool, beat, and RabbitMQ with its port mapper."""
    env = {**os.environ, "TMPDIR": str(tmp_path)}  # it cannot remove its directory
    with subprocess.Popen(
        [sys.executable, "-c", SESSION, *more], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True
    ) as session:
        family = [psutil.Process(int(pid)) for pid in session.stdout.readline().split()]
        assert len(family) >= 4
        session.send_signal(signal.SIGKILL)
        wait_until(lambda: not any(map(alive, family)), what="the end of all its processes")


IN_BACKGROUND = """
import signal, sys, time
from pathlib import Path
from tests.support.processes import start
log = Path(sys.argv[1])
process = start([sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(60)"], log=log)
while "ready" not in log.read_text():
    time.sleep(0.02)
process.send_signal(signal.SIGINT)
print(process.wait(20))
"""


def test_a_started_process_reacts_to_sigint_though_the_tests_ignore_it(tmp_path):
    """A shell ignores SIGINT in a command that it runs in the background, and children inherit that."""
    done = subprocess.run(
        [sys.executable, "-c", IN_BACKGROUND, str(tmp_path / "log")],
        cwd=ROOT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert int(done.stdout) == -signal.SIGINT
