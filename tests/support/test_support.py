"""The test support itself: what the other tests take for granted."""

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
from tests.support.servers import Server, available_kinds
from tests.support.workers import Beat, Worker

pytestmark = pytest.mark.skipif(
    not available_kinds(), reason="neither a Valkey nor a Redis server is installed"
)


@pytest.fixture
def server():
    with Server.start(available_kinds()[0]) as server:
        yield server


@pytest.fixture
def proxy(server):
    before = threading.active_count()
    with Proxy(server.port) as proxy:
        yield proxy
    assert threading.active_count() == before


@pytest.mark.parametrize("kind", available_kinds())
def test_restarted_server_keeps_its_port_and_forgets_its_data(kind):
    with Server.start(kind, maxmemory="64mb") as server, server.client() as client:
        client.set("a", 1)
        assert client.info("memory")["maxmemory"] == 64 * 1024 * 1024
        server.kill()
        assert not server.running
        with pytest.raises(redis.ConnectionError):
            client.ping()
        server.restart()
        assert client.get("a") is None


def test_paused_server_answers_once_resumed(server):
    with server.client(socket_timeout=0.2) as client:
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.resume()
        assert client.ping()


def test_server_that_cannot_start_says_why():
    with pytest.raises(AssertionError, match="nonsense"):
        Server.start(available_kinds()[0], nonsense="yes")


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


def test_losing_one_reply_of_a_pipeline_passes_on_those_before_it(server, proxy):
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


def test_pub_sub_passes_the_proxy(proxy):
    with bare_client(proxy.url) as client, client.pubsub(ignore_subscribe_messages=True) as listener:
        listener.subscribe("news", "weather")
        wait_until(lambda: client.pubsub_numsub("weather")[0][1] == 1)
        client.publish("weather", "rain")
        message = wait_until(lambda: listener.get_message(timeout=0.1), what="the published message")
        assert message["data"] == b"rain"


@pytest.mark.parametrize("protocol", ["resp", "raw"])
def test_refuse_freeze_and_their_ends(server, protocol):
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


def test_worker_runs_a_task_in_a_pool_child_and_dies_whole(server):
    env = {"CELERY_BROKER_URL": server.url, "CELERY_RESULT_BACKEND": server.url}
    app = Celery(broker=server.url, backend=server.url, set_as_current=False)
    with Worker.start("tests.support.proj:app", env=env) as worker:
        assert app.send_task("tests.support.proj.pid").get(timeout=10) in worker.children()
        pool = [psutil.Process(pid) for pid in worker.children()]
        worker.kill()
        wait_until(lambda: not any(map(alive, pool)), what="the pool's end after its main process")
    app.close()


def test_beat_starts_and_stops(server):
    with Beat.start("tests.support.proj:app", env={"CELERY_BROKER_URL": server.url}) as beat:
        assert beat.running
    assert not beat.running


SESSION = """
import time
from tests.support.servers import Server, available_kinds
print(Server.start(available_kinds()[0]).pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_killed_test_process_leaves_no_server(tmp_path):
    env = {**os.environ, "TMPDIR": str(tmp_path)}  # it cannot remove its directory
    with subprocess.Popen(
        [sys.executable, "-c", SESSION], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True
    ) as session:
        server = psutil.Process(int(session.stdout.readline()))
        assert alive(server)
        session.send_signal(signal.SIGKILL)
        wait_until(lambda: not alive(server), what="the end of the server")
