"""Several lock servers in one process are independent."""

from __future__ import annotations

import time

import pytest

from tests.attacks.attack import Locks, raises_unavailable, taken_by_another
from tests.conftest import DEFAULT_KIND
from tests.support.servers import Server


@pytest.fixture
def frozen():
    """Two servers that fall silent when the test says so."""
    servers = [Server.start(DEFAULT_KIND) for _ in range(2)]
    yield servers
    for server in servers:
        server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", "?socket_timeout=3"], ids=["default timeouts", "long timeouts"])
def test_a_frozen_server_does_not_stop_the_renewals_of_another(server, frozen, options):
    """Point 8."""
    healthy = Locks(server.url)("a", ttl=2)
    others = [Locks(bad.url + options)("b", ttl=30) for bad in frozen]
    for lock in others:
        lock.acquire()
    with healthy:
        for bad in frozen:
            bad.pause()
        end = time.monotonic() + 10
        while time.monotonic() < end:
            assert healthy.held
            time.sleep(0.05)
        assert healthy.owned()
        assert not raises_unavailable(lambda: taken_by_another(Locks(server.url)("c")))
    for bad in frozen:
        bad.resume()
    for lock in others:
        assert lock.owned()
        lock.release()


@pytest.mark.slow
def test_a_frozen_server_does_not_stop_the_background_releases_of_another(server, frozen, proxy):
    """Point 8: what has to be freed later on one server does not wait for another server."""
    healthy = Locks(proxy.url + "?socket_timeout=0.5")("a", ttl=120)
    others = [Locks(bad.url)("b", ttl=30) for bad in frozen]
    for lock in (healthy, *others):
        lock.acquire()
    for bad in frozen:
        bad.pause()
    proxy.refuse()
    for lock in (*others, healthy):
        lock.release()  # only logs that the server does not answer
    proxy.accept()
    direct = Locks(server.url)("a")
    start = time.monotonic()
    while not taken_by_another(direct):
        assert time.monotonic() - start < 20, "the lock on the healthy server is never freed"
        time.sleep(0.05)
