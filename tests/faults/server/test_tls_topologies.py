"""TLS to sentinels and to the nodes of a Cluster: nothing in plain text, and every certificate is checked."""

from __future__ import annotations

import socket
import threading

import pytest
import redis

from celery_rlock import LockUnavailable
from celery_rlock.core.lock import ReentrantLock
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer
from tests.faults import verbs
from tests.support.fixtures import new_name
from tests.support.processes import free_port, wait_until
from tests.support.sentinel import NAME, SentinelNode
from tests.support.tls import Authority, TlsSentinel, TlsServer

pytestmark = pytest.mark.skipif(not TlsServer.available(), reason="needs a redis-server built with TLS")

SECRET = "geheim-4711"
KEY_PASSWORD = "geheim-of-the-key"
REFUSED = "certificate verify failed"
#: redis-py 8 does not say why a sentinel cannot be asked.
SENTINEL_REFUSED = f"{REFUSED}|MasterNotFoundError: .*ConnectionError"
SOON = 30.0
TLS_HANDSHAKE = 0x16


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory):
    """An authority that no server's certificate comes from."""
    return Authority(tmp_path_factory.mktemp("other-authority"))


@pytest.fixture(scope="module")
def primary(authority):
    with TlsServer(authority).started() as server:
        yield server


@pytest.fixture(scope="module")
def sentinel(authority, primary):
    with TlsSentinel(authority, primary.port, SECRET).started() as sentinel:
        yield sentinel


def lock_at(url, **beside):
    return ReentrantLock(new_name(), lock_server=RedisLockServer(connect(url, beside)))


def sentinel_url(port, authority, more="ssl=true"):
    login = f"sentinel_password={SECRET}&ssl_ca_certs={authority.path}"
    return f"sentinel://127.0.0.1:{port}/0?master_name={NAME}&{login}&{more}"


class Eavesdropper:
    """Accepts connections, reads what clients say first, and answers nothing."""

    def __init__(self):
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.heard = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            client.settimeout(SOON)
            self.heard.append(client.recv(65536))
            client.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()


@pytest.mark.parametrize(
    "url",
    [
        "sentinel://127.0.0.1:{port}/0?master_name=m&ssl=true&sentinel_password={secret}",
        "sentinel://127.0.0.1:{port}/0;sentinel://127.0.0.1:{port}/0?master_name=m&ssl=true&sentinel_password={secret}",
        "sentinel://127.0.0.1:{port}/0?master_name=m&ssl_cert_reqs=none&sentinel_password={secret}",
        "rediss://:{secret}@127.0.0.1:{port}/0",
        "redis://:{secret}@127.0.0.1:{port}/0?ssl=true",
        "redis://:{secret}@127.0.0.1:{port}/0?ssl_cert_reqs=none",
        "rediss+cluster://:{secret}@127.0.0.1:{port}",
    ],
)
def test_a_url_with_tls_says_nothing_in_plain_text(url):
    with Eavesdropper() as server:
        with pytest.raises(LockUnavailable):
            lock_at(url.format(port=server.port, secret=SECRET)).acquire()
        wait_until(lambda: server.heard, timeout=SOON, what="a client")
    assert {said[0] for said in server.heard if said} == {TLS_HANDSHAKE}
    assert SECRET.encode() not in b"".join(server.heard)


def test_sentinels_and_primary_are_asked_over_tls(sentinel, authority):
    verbs.use_all(RedisLockServer(connect(sentinel_url(sentinel.port, authority))))


def test_a_sentinel_with_the_certificate_of_another_authority_is_refused(sentinel, other_authority):
    with pytest.raises(LockUnavailable, match=SENTINEL_REFUSED):
        lock_at(sentinel_url(sentinel.port, other_authority)).acquire()


def test_a_sentinel_with_the_certificate_of_another_host_is_refused(authority, primary):
    with TlsSentinel(authority, primary.port, SECRET, "sentinel.example").started() as elsewhere:
        with pytest.raises(LockUnavailable, match=SENTINEL_REFUSED):
            lock_at(sentinel_url(elsewhere.port, authority)).acquire()
        with lock_at(sentinel_url(elsewhere.port, authority, "ssl_check_hostname=false")) as lock:
            assert lock.held


def test_a_primary_with_the_certificate_of_another_host_is_refused(authority):
    """The sentinels may name any host: its certificate is checked for the name that they give."""
    with (
        TlsServer(authority, "redis.example").started() as elsewhere,
        TlsSentinel(authority, elsewhere.port, SECRET).started() as sentinel,
        pytest.raises(LockUnavailable, match=REFUSED),
    ):
        lock_at(sentinel_url(sentinel.port, authority)).acquire()


class PlainSentinel(SentinelNode):
    """A sentinel without TLS, whose primary speaks TLS."""

    quorum = 1

    def __init__(self, authority, master_port):
        super().__init__("redis", master_port)
        certificate, key = authority.issue("plain.example")
        files = [f"tls-cert-file {certificate}", f"tls-key-file {key}", f"tls-ca-cert-file {authority.path}"]
        self._tls = ["tls-replication yes", *files]

    def ports(self):
        return [*super().ports(), *self._tls]


def test_plain_sentinels_of_a_tls_primary_need_a_word(authority, primary):
    """Or Celery's settings, in which TLS means the primary only, as for Celery itself."""
    with PlainSentinel(authority, primary.port).started() as plain:
        url = f"sentinel://127.0.0.1:{plain.port}/0?master_name={NAME}"
        tls = f"&ssl=true&ssl_ca_certs={authority.path}"
        with pytest.raises(LockUnavailable):
            lock_at(url + tls).acquire()
        with lock_at(f"{url}{tls}&sentinel_ssl=false") as lock:
            assert lock.held
        with lock_at(url, ssl={"ssl_ca_certs": str(authority.path)}) as lock:
            assert lock.held


def test_sentinel_kwargs_of_celery_get_their_certificates_checked(sentinel, authority, other_authority):
    """redis-py before 6 checks no host name unless it is told to."""
    url = f"sentinel://127.0.0.1:{sentinel.port}/0?master_name={NAME}"
    beside = {"ssl": {"ssl_ca_certs": str(authority.path)}}
    right = {"ssl": True, "password": SECRET, "ssl_ca_certs": str(authority.path)}
    with lock_at(url, sentinel_kwargs=right, **beside) as lock:
        assert lock.held
        [asked] = lock._lock_server.client.connection_pool.sentinel_manager.sentinels
        assert asked.connection_pool.connection_kwargs["ssl_check_hostname"] is True
    wrong = {**right, "ssl_ca_certs": str(other_authority.path)}
    with pytest.raises(LockUnavailable, match=SENTINEL_REFUSED):
        lock_at(url, sentinel_kwargs=wrong, **beside).acquire()


@pytest.fixture(scope="module")
def start_cluster(authority):
    """Starts a Cluster of one node whose certificate names these hosts."""
    running = []

    def start(*names):
        node = TlsServer(
            authority,
            *names,
            cluster_enabled="yes",
            cluster_port=free_port(),
            tls_cluster="yes",
            tls_replication="yes",
        )
        running.append(node.started())
        client = node.client()
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        wait_until(
            lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO", NEVER_DECODE=True),
            timeout=SOON,
            what="the Cluster",
        )
        return f"rediss+cluster://127.0.0.1:{node.port}"

    yield start
    for node in running:
        node.stop()


def test_the_nodes_of_a_cluster_are_asked_over_tls(start_cluster, authority, other_authority, tmp_path):
    url = start_cluster()
    verbs.use_all(RedisLockServer(connect(f"{url}?ssl_ca_certs={authority.path}")))
    with pytest.raises(LockUnavailable):
        lock_at(f"{url}?ssl_ca_certs={other_authority.path}").acquire()
    with pytest.raises(LockUnavailable):
        lock_at(f"{url}?ssl_ca_path={tmp_path}").acquire()


def test_a_cluster_node_with_the_certificate_of_another_host_is_refused(start_cluster, authority):
    """redis-py 5 drops the option that checks host names when it makes a Cluster's connections."""
    url = f"{start_cluster('redis.example')}?ssl_ca_certs={authority.path}"
    with pytest.raises(LockUnavailable):
        lock_at(url).acquire()
    with lock_at(f"{url}&ssl_check_hostname=false") as lock:
        assert lock.held


@pytest.fixture(scope="module")
def locked_key(authority, tmp_path_factory):
    """A client's certificate and its key, which is encrypted with a password."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - trustme needs it too

    certificate, key = authority.issue("client.example")
    encrypted = tmp_path_factory.mktemp("key") / "client.key"
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    encrypted.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(KEY_PASSWORD.encode()),
        )
    )
    return f"ssl_certfile={certificate}&ssl_keyfile={encrypted}&ssl_password={KEY_PASSWORD}"


def test_the_password_of_a_key_opens_it_and_is_shown_nowhere(authority, sentinel, start_cluster, locked_key):
    """Neither on any supported redis-py, nor on a sentinel, nor on a node of a Cluster."""
    with TlsServer(authority, mutual=True).started() as mutual:
        urls = [
            f"{mutual.address}?ssl_ca_certs={authority.path}&{locked_key}",
            f"{sentinel_url(sentinel.port, authority)}&{locked_key}",
            f"{start_cluster()}?ssl_ca_certs={authority.path}&{locked_key}",
        ]
        for url in urls:
            with lock_at(url) as lock:
                assert lock.held
                shown = "".join(map(repr, every_object_of(lock._lock_server.client)))
                assert KEY_PASSWORD not in shown
                assert SECRET not in shown


def every_object_of(client):
    """The client, its pools, and the clients and pools of its sentinels or nodes."""
    if isinstance(client, redis.RedisCluster):
        nodes = [node.redis_connection for node in client.get_nodes()]
        return [client, client.nodes_manager, *nodes, *(node.connection_pool for node in nodes)]
    pool = client.connection_pool
    sentinels = pool.sentinel_manager.sentinels if hasattr(pool, "sentinel_manager") else []
    connection = pool.make_connection()
    return [client, pool, connection, *sentinels, *(each.connection_pool for each in sentinels)]
