from __future__ import annotations

import pytest
import redis
import redis.asyncio
from celery import Celery
from redis.cluster import RedisCluster

from celery_rlock import ConfigurationError, LockUnavailable, RLock, settings
from celery_rlock.asyncio import RLock as AsyncRLock
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import Renewal
from celery_rlock.server.owner import Owner
from celery_rlock.server.url import hide_password
from tests.support.processes import free_port


def test_it_fails_soon_and_never_retries_by_itself():
    kwargs = connect("redis://example/3").connection_pool.connection_kwargs
    assert (kwargs["host"], kwargs["db"]) == ("example", 3)
    assert kwargs["socket_timeout"] == kwargs["socket_connect_timeout"] == 1.0
    assert kwargs["retry"]._retries == 0


def test_timeouts_may_stand_in_the_url():
    kwargs = connect("redis://example/0?socket_timeout=7").connection_pool.connection_kwargs
    assert kwargs["socket_timeout"] == 7


def test_there_is_one_client_for_a_url():
    assert connect("redis://example/0") is connect("redis://example/0")


@pytest.mark.parametrize(
    ("url", "connection"),
    [
        ("redis://h/0", "TcpConnection"),
        ("valkey://h/0", "TcpConnection"),
        ("rediss://h/0?ssl_cert_reqs=CERT_REQUIRED", "TlsConnection"),
        ("valkeys://h/0?ssl_cert_reqs=none", "TlsConnection"),
        ("unix:///run/redis.sock", "UnixConnection"),
        ("redis+socket:///run/redis.sock", "UnixConnection"),
    ],
)
def test_urls_of_redis_and_valkey_are_understood(url, connection):
    assert connect(url).connection_pool.connection_class.__name__ == connection


@pytest.mark.parametrize("url", ["http://h/0", "amqp://h//"])
def test_an_unknown_scheme_is_named(url):
    """Semantics 16: wrong URL."""
    with pytest.raises(ConfigurationError, match=r"unknown scheme .*: use one of redis"):
        connect(url)


def test_a_password_is_never_shown():
    with pytest.raises(ConfigurationError) as error:
        connect("http://user:geheim@host/0")
    assert "geheim" not in str(error.value)
    assert hide_password("redis://:geheim@host:1/0") == "redis://***@host:1/0"


def login_of(kwargs):
    """As the server is given it."""
    return kwargs["credential_provider"].get_credentials()


def app_with(**conf):
    app = Celery("unit", set_as_current=False)
    app.conf.update(conf)
    return app


@pytest.mark.parametrize(
    ("conf", "url"),
    [
        ({"rlock_url": "redis://own/0", "result_backend": "redis://b/0"}, "redis://own/0"),
        ({"result_backend": "redis://b/0", "broker_url": "redis://c/0"}, "redis://b/0"),
        ({"result_backend": "db+sqlite://", "broker_url": "redis://c/0"}, "redis://c/0"),
        ({"broker_url": "amqp://a;redis://c/0"}, "redis://c/0"),
        ({"broker_url": ["amqp://a", "redis://c/0"]}, "redis://c/0"),
    ],
)
def test_the_url_falls_back_to_a_redis_backend_then_a_redis_broker(conf, url):
    assert settings.lock_url(app_with(**conf)) == url


def test_the_passwords_may_stand_beside_the_url():
    url = "sentinel://rlock@a/0?master_name=m&ssl=true"
    beside = {"rlock_password": "p", "rlock_sentinel_password": "s", "rlock_ssl_password": "k"}
    pool = settings.redis_server(app_with(rlock_url=url, **beside)).client.connection_pool
    assert login_of(pool.connection_kwargs) == ("rlock", "p")
    assert pool.connection_kwargs["ssl_password"]() == "k"
    [sentinel] = pool.sentinel_manager.sentinels
    assert login_of(sentinel.connection_pool.connection_kwargs) == ("s",)
    assert sentinel.connection_pool.connection_kwargs["ssl_password"]() == "k"


@pytest.mark.parametrize(
    ("conf", "wrong"),
    [
        ({"rlock_password": "geheim"}, "rlock_url is missing"),
        ({"rlock_url": "redis://:geheim@h", "rlock_password": "geheim"}, "remove it from rlock_url"),
        ({"rlock_url": "redis://h", "rlock_password": b"geheim"}, "rlock_password must be a str, not bytes"),
        ({"rlock_client": object(), "rlock_url": "redis://h"}, "or its dotted name, not a object"),
    ],
)
def test_a_password_in_the_wrong_place_is_an_error_that_does_not_show_it(conf, wrong):
    """Semantics 16."""
    with pytest.raises(ConfigurationError, match=wrong) as error:
        settings.server(app_with(broker_url="redis://c/0", **conf))
    assert "geheim" not in str(error.value)


def test_celery_shows_no_password_that_stands_beside_the_url():
    app = app_with(rlock_url="redis://rlock@h/0", **dict.fromkeys(settings.PASSWORDS, "geheim"))
    assert "rlock_url" in app.bugreport()
    assert "geheim" not in app.bugreport() + str(app.conf.table(with_defaults=False, censored=True))


SENTINELS = "sentinel://a:1/0;sentinel://b:2/0"


def test_sentinels_of_the_backend_belong_together_and_their_master_is_named_apart():
    app = app_with(result_backend=SENTINELS, result_backend_transport_options={"master_name": "m"})
    assert settings.lock_url(app) == SENTINELS
    pool = settings.redis_server(app).client.connection_pool
    assert pool.service_name == "m"
    ports = [s.connection_pool.connection_kwargs["port"] for s in pool.sentinel_manager.sentinels]
    assert ports == [1, 2]


def test_the_brokers_sentinels_and_their_password_are_understood():
    options = {"master_name": "m", "sentinel_kwargs": {"password": "geheim"}}
    app = app_with(broker_url=SENTINELS, broker_transport_options=options, result_backend="rpc://")
    sentinel = settings.redis_server(app).client.connection_pool.sentinel_manager.sentinels[0]
    kwargs = sentinel.connection_pool.connection_kwargs
    assert (login_of(kwargs), kwargs["socket_timeout"]) == (("geheim",), 1.0)


@pytest.mark.parametrize(
    "conf",
    [
        {"result_backend": "rediss://h/0", "redis_backend_use_ssl": {"ssl_ca_certs": "/ca"}},
        {"result_backend": "redis://h/0", "redis_backend_use_ssl": {"ssl_ca_certs": "/ca"}},
        {"broker_url": "redis://h/0", "broker_use_ssl": {"ssl_ca_certs": "/ca", "ssl_cert_reqs": 2}},
        {"rlock_url": "rediss://h/0?ssl_ca_certs=/ca", "broker_use_ssl": {"ssl_ca_certs": "/other"}},
    ],
)
def test_tls_is_set_as_celery_sets_it(conf):
    pool = settings.server(app_with(**conf)).client.connection_pool
    assert pool.connection_class.__name__ == "TlsConnection"
    assert pool.connection_kwargs["ssl_ca_certs"] == "/ca"
    assert pool.connection_kwargs["ssl_cert_reqs"] == "required"


def test_the_backends_login_may_stand_apart_and_the_urls_goes_first():
    login = {"redis_username": "u", "redis_password": "p"}
    kwargs = settings.server(app_with(result_backend="redis://h/0", **login)).client.get_connection_kwargs()
    assert login_of(kwargs) == ("u", "p")
    kwargs = settings.server(
        app_with(result_backend="redis://:q@h/0", **login)
    ).client.get_connection_kwargs()
    assert login_of(kwargs) == ("q",)


def test_the_tls_of_a_broker_is_not_taken_for_the_backends():
    app = app_with(result_backend="redis://h/0", broker_url="amqps://x", broker_use_ssl={"ca_certs": "/ca"})
    assert settings.redis_server(app).client.connection_pool.connection_class.__name__ == "TcpConnection"


def test_a_cluster_that_is_down_is_unavailable_and_no_error_before_it_is_used():
    app = app_with(rlock_url=f"redis+cluster://127.0.0.1:{free_port()}")
    lock_server = settings.server(app)
    assert isinstance(lock_server.client, RedisCluster)
    with pytest.raises(LockUnavailable, match="lock 'k' is unavailable"):
        lock_server.locked(lock_server.redis_keys("k"))
    name, owner = lock_server.redis_keys("k"), Owner("w", "d", "t")
    assert isinstance(lock_server.renew([Renewal(name, owner, 1, 1.0)])[0], Exception)


def test_no_redis_at_all_is_an_error():
    """Semantics 16."""
    with pytest.raises(ConfigurationError, match="set rlock_url"):
        settings.lock_url(app_with(broker_url="amqp://a", result_backend="rpc://"))


def test_the_app_has_one_client_and_its_factory_is_called_once(client):
    calls = []
    app = app_with(rlock_client=lambda: calls.append(1) or client, rlock_prefix="mine:")
    assert settings.redis_server(app).client is settings.redis_server(app).client is client
    assert calls == [1]
    assert settings.server(app).redis_keys("k").lock == "mine:{k}"


@pytest.mark.parametrize("name", ["no.such:factory", "celery:no_such_name", "celery_rlock.no_such"])
def test_a_client_factory_that_cannot_be_imported_is_an_error_that_names_the_setting(name):
    """Semantics 16."""
    with pytest.raises(ConfigurationError, match=f"rlock_client: cannot import '{name}'"):
        settings.server(app_with(broker_url="redis://c/0", rlock_client=name))


@pytest.mark.parametrize(
    ("lock", "client", "said"),
    [
        (RLock, "redis://h/0", "must be a redis.Redis or RedisCluster, not a builtins.str; a URL"),
        (RLock, redis.asyncio.Redis(), "must be a redis.Redis .*, not a redis.asyncio.client"),
        (
            AsyncRLock,
            redis.Redis(),
            "must be a redis.asyncio.Redis .*, not a redis.client.Redis",
        ),
        (AsyncRLock, "redis://h/0", "must be a redis.asyncio.Redis"),
    ],
)
def test_a_client_of_the_other_kind_is_an_error_at_once(lock, client, said):
    """Semantics 16."""
    with pytest.raises(ConfigurationError, match=said):
        lock("k", client=client)


@pytest.mark.parametrize("made", [None, redis.asyncio.Redis()])
def test_a_client_factory_that_returns_something_else_is_an_error(made):
    """Semantics 16."""
    with pytest.raises(ConfigurationError, match=r"client must be a redis\.Redis"):
        settings.server(app_with(rlock_client=lambda: made))


@pytest.mark.parametrize(
    "conf", [{"rlock_client": 7}, {"rlock_url": 7}, {"rlock_prefix": "{"}, {"rlock_enabled": "no"}]
)
def test_settings_of_the_wrong_kind_are_errors(conf):
    """Semantics 16."""
    with pytest.raises((ConfigurationError, AttributeError), match="rlock_"):
        settings.server(app_with(broker_url="redis://c/0", **conf))
