"""TLS connections with checked certificates, to a server that accepts only TLS."""

from __future__ import annotations

import ssl
from functools import partial

import pytest
from celery import Celery, states

from celery_rlock import LockUnavailable
from celery_rlock.core.lock import ReentrantLock
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer
from tests.faults import verbs
from tests.support.fixtures import new_name, sender
from tests.support.processes import wait_until
from tests.support.tls import Authority, TlsServer

pytestmark = pytest.mark.skipif(not TlsServer.available(), reason="needs a redis-server built with TLS")

QUEUE = "tls"
SOON = 30.0
REFUSED = "certificate verify failed"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory):
    """An authority that the server's certificate does not come from."""
    return Authority(tmp_path_factory.mktemp("other-authority"))


@pytest.fixture(scope="module")
def server(authority):
    with TlsServer(authority).started() as server:
        yield server


@pytest.fixture(scope="module")
def mutual_server(authority):
    """A server whose clients need a certificate too."""
    with TlsServer(authority, "localhost", "127.0.0.1", mutual=True).started() as server:
        yield server


def lock_at(url):
    return ReentrantLock(new_name(), lock_server=RedisLockServer(connect(url)))


@pytest.mark.parametrize("checked", ["ssl_cert_reqs=required&", "ssl_cert_reqs=CERT_REQUIRED&", ""])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_servers_authority_is_all_that_a_client_needs(server, authority, host, checked):
    """Certificates are checked also when the URL does not say so. `valkeys://` means the same."""
    address = server.address.replace("127.0.0.1", host)
    for url in (address, address.replace("rediss", "valkeys")):
        verbs.use_all(RedisLockServer(connect(f"{url}?{checked}ssl_ca_certs={authority.path}")))


@pytest.mark.parametrize("checked", ["ssl_cert_reqs=required&", ""])
def test_another_authority_is_refused(server, other_authority, checked):
    with pytest.raises(LockUnavailable, match=REFUSED):
        lock_at(f"{server.address}?{checked}ssl_ca_certs={other_authority.path}").acquire()


def test_an_authority_that_the_url_does_not_name_is_refused(server):
    with pytest.raises(LockUnavailable, match=REFUSED):
        lock_at(server.address).acquire()


def test_the_certificate_of_another_host_is_refused(authority):
    with TlsServer(authority, "redis.example").started() as server:
        url = f"{server.address}?ssl_ca_certs={authority.path}"
        with pytest.raises(LockUnavailable, match=rf"{REFUSED}.*(mismatch|doesn't match|not valid)"):
            lock_at(url).acquire()
        with lock_at(f"{url}&ssl_check_hostname=false") as lock:
            assert lock.held


def test_ssl_cert_reqs_none_turns_the_check_off(server, other_authority):
    with lock_at(f"{server.address}?ssl_cert_reqs=none&ssl_ca_certs={other_authority.path}") as lock:
        assert lock.held


def test_a_plain_connection_is_refused(server):
    with pytest.raises(LockUnavailable):
        lock_at(server.address.replace("rediss", "redis")).acquire()


def test_a_server_may_require_a_client_certificate(mutual_server, authority, other_authority):
    url = f"{mutual_server.address}?ssl_ca_certs={authority.path}"
    certificate, key = authority.issue("client.example")
    verbs.use_all(RedisLockServer(connect(f"{url}&ssl_certfile={certificate}&ssl_keyfile={key}")))
    with pytest.raises(LockUnavailable):
        lock_at(url).acquire()
    certificate, key = other_authority.issue("client.example")
    with pytest.raises(LockUnavailable):
        lock_at(f"{url}&ssl_certfile={certificate}&ssl_keyfile={key}").acquire()


@pytest.fixture(scope="module")
def with_tls(server, authority):
    """The environment of a worker without `rlock_url` whose broker and backend use Celery's TLS settings."""
    own = {"RLOCK_TEST_BROKER": server.address, "RLOCK_TEST_BACKEND": server.address}
    return {**own, "RLOCK_TEST_AUTHORITY": str(authority.path)}


@pytest.fixture(scope="module")
def fleet(start_fleet, with_tls):
    with start_fleet(queue=QUEUE, count=1, env=with_tls) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def tls_publisher(with_tls):
    tls = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": with_tls["RLOCK_TEST_AUTHORITY"]}
    with Celery("client", broker=with_tls["RLOCK_TEST_BROKER"], set_as_current=False) as app:
        app.conf.update(result_backend=with_tls["RLOCK_TEST_BACKEND"])
        app.conf.update(broker_use_ssl=tls, redis_backend_use_ssl=tls)
        yield app


def test_a_worker_uses_the_tls_settings_of_its_result_backend(
    project, fleet, tls_publisher, server, records, tell, name
):
    """Without `rlock_url` the lock uses the backend's URL and `redis_backend_use_ssl`."""
    send = partial(sender(project, tls_publisher, tls_publisher.backend), queue=QUEUE)
    holder = send("until_told", name)
    wait_until(lambda: records(name, "start"), timeout=SOON, what="the run")
    assert server.client().hgetall(f"rlock:{{{name}}}")
    waiter = send("retrying", name)
    wait_until(lambda: waiter.state == states.RETRY, timeout=SOON, what="it to wait")
    tell(name)
    assert holder.get(timeout=SOON)["held"]
    assert waiter.get(timeout=SOON)["held"]


def test_a_worker_with_another_authority_gets_no_lock(
    start_fleet, server, other_authority, send, records, name
):
    """The task fails with an error that says what is wrong."""
    url = f"{server.address}?ssl_ca_certs={other_authority.path}"
    with start_fleet(url, queue="other-authority", count=1), pytest.raises(LockUnavailable, match=REFUSED):
        send("failing", name, queue="other-authority").get(timeout=SOON)
    assert records(name, "start") == []
