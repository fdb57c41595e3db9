"""The proxy of the nemesis does to a connection what its name says, on a real server."""

from __future__ import annotations

import subprocess
import sys

import pytest
import redis

from tests.nemesis import routes
from tests.nemesis.links import Links
from tests.support.clients import bare_client
from tests.support.daemon import ROOT
from tests.support.processes import wait_until


@pytest.fixture
def link(server):
    with Links() as links:
        yield links.link([server.port], "seed")


@pytest.fixture
def through(server, link):
    """A client whose way to the server is the link, and which gives up soon."""
    return bare_client(f"redis://127.0.0.1:{link.routes[server.port]}/0", socket_timeout=0.3)


def test_a_link_without_faults_forwards_everything(through):
    assert through.set("k", "x" * 200_000)
    assert len(through.get("k")) == 200_000


def test_held_requests_arrive_after_their_client_gave_up(through, link, client):
    through.ping()
    link.requests.held = True
    with pytest.raises(redis.TimeoutError):
        through.set("late", 1)
    assert not client.exists("late")
    link.mend()
    wait_until(lambda: client.exists("late"), what="the late request")


def test_a_slow_connection_is_overtaken_by_a_new_one(through, link, client):
    through.ping()
    link.requests.slow(1.0, 1.0)
    with pytest.raises(redis.TimeoutError):
        through.append("order", "first")
    link.requests.clear()
    through.append("order", "second")
    wait_until(lambda: client.get("order") == b"secondfirst", what="the first request, after the second")


def test_the_server_executes_a_request_whose_reply_is_lost(through, link, client):
    through.ping()
    link.replies.loses = True
    with pytest.raises(redis.TimeoutError):
        through.incr("n")
    assert client.get("n") == b"1"
    link.mend()
    assert through.incr("n") == 2


def test_a_lost_request_never_arrives(through, link, client):
    through.ping()
    link.requests.loses = True
    with pytest.raises(redis.TimeoutError):
        through.incr("n")
    link.mend()
    assert through.incr("n") == 1


def test_a_link_that_refuses_or_cuts_resets_connections(through, link):
    through.ping()
    link.refuse()
    with pytest.raises(redis.ConnectionError):
        through.ping()
    link.mend()
    assert through.ping()


def test_a_process_with_routes_connects_to_the_link(server, link, client):
    code = "import redis; from tests.nemesis import routes; routes.install()"
    code += f"; redis.Redis(port={server.port}).incr('n')"
    env = {"PATH": "/usr/bin", **routes.environment(link.routes)}
    subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, check=True, timeout=60)
    assert client.get("n") == b"1"
    link.refuse()
    assert subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, check=False, timeout=60).returncode
