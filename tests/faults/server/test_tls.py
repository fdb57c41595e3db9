"""TLS with its certificates checked, against a server that speaks nothing else."""

from __future__ import annotations

import ssl

import pytest
from celery import Celery, states

from celery_rlock import LockUnavailable
from celery_rlock.core.client import connect
from celery_rlock.core.lock import RLock
from celery_rlock.core.scripts import Scripts
from tests.support.processes import wait_until
from tests.support.tls import Authority, TlsServer
from tests.trouble import rights
from tests.trouble.conftest import new_name, sender

pytestmark = pytest.mark.skipif(not TlsServer.available(), reason="needs a redis-server built with TLS")

QUEUE = "tls"
SOON = 30.0
REFUSED = "certificate verify failed"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """Another authority."""
    return Authority(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(scope="module")
def server(authority):
    with TlsServer(authority).started() as server:
        yield server


@pytest.fixture(scope="module")
def mutual_server(authority):
    """Its clients need a certificate too."""
    with TlsServer(authority, "localhost", "127.0.0.1", mutual=True).started() as server:
        yield server


def lock_at(url):
    return RLock(new_name(), scripts=Scripts(connect(url)))


@pytest.mark.parametrize("checked", ["ssl_cert_reqs=required&", "ssl_cert_reqs=CERT_REQUIRED&", ""])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_right_authority_is_enough(server, authority, host, checked):
    """And `valkeys://` is the same; certificates are checked also where the URL does not say so."""
    address = server.address.replace("127.0.0.1", host)
    for url in (address, address.replace("rediss", "valkeys")):
        rights.use_everything(Scripts(connect(f"{url}?{checked}ssl_ca_certs={authority.path}")))


@pytest.mark.parametrize("checked", ["ssl_cert_reqs=required&", ""])
def test_another_authority_is_refused(server, stranger, checked):
    with pytest.raises(LockUnavailable, match=REFUSED):
        lock_at(f"{server.address}?{checked}ssl_ca_certs={stranger.path}").acquire()


def test_an_authority_that_nobody_named_is_refused(server):
    with pytest.raises(LockUnavailable, match=REFUSED):
        lock_at(server.address).acquire()


def test_the_certificate_of_another_host_is_refused(authority):
    with TlsServer(authority, "redis.example").started() as server:
        url = f"{server.address}?ssl_ca_certs={authority.path}"
        with pytest.raises(LockUnavailable, match=rf"{REFUSED}.*(mismatch|doesn't match|not valid)"):
            lock_at(url).acquire()
        with lock_at(f"{url}&ssl_check_hostname=false") as lock:
            assert lock.held


def test_who_says_that_nothing_is_to_be_checked_gets_that(server, stranger):
    with lock_at(f"{server.address}?ssl_cert_reqs=none&ssl_ca_certs={stranger.path}") as lock:
        assert lock.held


def test_a_plain_connection_is_refused(server):
    with pytest.raises(LockUnavailable):
        lock_at(server.address.replace("rediss", "redis")).acquire()


def test_a_server_may_want_to_see_the_clients_certificate(mutual_server, authority, stranger):
    url = f"{mutual_server.address}?ssl_ca_certs={authority.path}"
    certificate, key = authority.issue("client.example")
    rights.use_everything(Scripts(connect(f"{url}&ssl_certfile={certificate}&ssl_keyfile={key}")))
    with pytest.raises(LockUnavailable):
        lock_at(url).acquire()
    certificate, key = stranger.issue("client.example")
    with pytest.raises(LockUnavailable):
        lock_at(f"{url}&ssl_certfile={certificate}&ssl_keyfile={key}").acquire()


@pytest.fixture(scope="module")
def with_tls(server, authority):
    """Broker and backend are on the TLS server, by Celery's own settings; there is no `rlock_url`."""
    own = {"RLOCK_TEST_BROKER": server.address, "RLOCK_TEST_BACKEND": server.address}
    return {**own, "RLOCK_TEST_AUTHORITY": str(authority.path)}


@pytest.fixture(scope="module")
def fleet(start_fleet, with_tls):
    with start_fleet(queue=QUEUE, count=1, env=with_tls) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def publisher(with_tls):
    tls = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": with_tls["RLOCK_TEST_AUTHORITY"]}
    with Celery("client", broker=with_tls["RLOCK_TEST_BROKER"], set_as_current=False) as app:
        app.conf.update(result_backend=with_tls["RLOCK_TEST_BACKEND"])
        app.conf.update(broker_use_ssl=tls, redis_backend_use_ssl=tls)
        yield app


def test_a_worker_uses_what_celery_knows_of_tls(fleet, publisher, server, records, tell, name):
    """Without `rlock_url` the backend's serves, with `redis_backend_use_ssl`."""
    send = sender(publisher, QUEUE)
    holder = send("until_told", name)
    wait_until(lambda: records(name, "start"), timeout=SOON, what="the run")
    assert server.client().hgetall(f"rlock:{{{name}}}")
    waiter = send("retrying", name)
    wait_until(lambda: waiter.state == states.RETRY, timeout=SOON, what="it to wait")
    tell(name)
    assert holder.get(timeout=SOON)["held"]
    assert waiter.get(timeout=SOON)["held"]


def test_a_worker_without_the_right_authority_gets_no_lock(
    start_fleet, server, stranger, send, records, name
):
    """The error is the task's result, and says what is wrong."""
    url = f"{server.address}?ssl_ca_certs={stranger.path}"
    with start_fleet(url, queue="stranger", count=1), pytest.raises(LockUnavailable, match=REFUSED):
        send("failing", name, queue="stranger").get(timeout=SOON)
    assert records(name, "start") == []
