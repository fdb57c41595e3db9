"""What a URL says; what is wrong with it; and that it shows no password."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_rlock import ConfigurationError
from celery_rlock.server.client import connect
from celery_rlock.server.url import SCHEMES, ServerAddress, hide_password, parse, tls_options


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("redis://", ServerAddress("standalone", [("localhost", 6379)], {"db": 0})),
        ("valkey://h:1/2", ServerAddress("standalone", [("h", 1)], {"db": 2})),
        ("redis://h?db=3", ServerAddress("standalone", [("h", 6379)], {"db": 3})),
        ("redis://[::1]:7/1", ServerAddress("standalone", [("::1", 7)], {"db": 1})),
        (
            "rediss://u:p%40ss@h/0?ssl_cert_reqs=none",
            ServerAddress(
                "standalone",
                [("h", 6379)],
                {"username": "u", "password": "p@ss", "ssl_cert_reqs": "none", "db": 0},
                tls=True,
            ),
        ),
        ("unix:///run/r.sock?db=4", ServerAddress("unix", [], {"path": "/run/r.sock", "db": 4})),
        ("redis+socket:///r.sock?virtual_host=5", ServerAddress("unix", [], {"path": "/r.sock", "db": 5})),
        ("unix://:p@/r.sock", ServerAddress("unix", [], {"path": "/r.sock", "password": "p", "db": 0})),
        (
            "sentinel://:p@a:1/2;sentinel://b;sentinel://c:3/2?master_name=m&sentinel_password=s",
            ServerAddress(
                "sentinel",
                [("a", 1), ("b", 26379), ("c", 3)],
                {"password": "p", "db": 2},
                master_name="m",
                sentinel_options={"password": "s"},
            ),
        ),
        (
            "sentinel://a,b:7/1?master_name=m&ssl=true",
            ServerAddress("sentinel", [("a", 26379), ("b", 7)], {"db": 1}, tls=True, master_name="m"),
        ),
        (
            "redis+cluster://u:p@a:1,b,[::1]:3",
            ServerAddress("cluster", [("a", 1), ("b", 6379), ("::1", 3)], {"username": "u", "password": "p"}),
        ),
        ("rediss+cluster://a/0", ServerAddress("cluster", [("a", 6379)], {}, tls=True)),
        (
            "redis://h?socket_timeout=2.5&socket_keepalive=yes&max_connections=7",
            ServerAddress(
                "standalone",
                [("h", 6379)],
                {"socket_timeout": 2.5, "socket_keepalive": True, "max_connections": 7, "db": 0},
            ),
        ),
    ],
)
def test_a_url_says_where_the_locks_are(url, target):
    assert parse(url) == target


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("http://h", "unknown scheme 'http': use one of redis, "),
        ("localhost:6379", "no scheme: write redis://HOST:6379/0"),
        ("", "it is empty"),
        ("redis://h:port/0", "its host or port is not one"),
        ("redis://h/zero", "its database, after the host, must be a number"),
        ("redis://a,b/0", "use sentinel:// or redis\\+cluster://"),
        ("redis+cluster://a/3", "a Cluster has no database but 0"),
        ("unix://", "it names no socket"),
        ("redis://h?socket_timeot=3", "its option 1 is not known, did you mean 'socket_timeout'"),
        ("redis://h?socket_timeout=soon", "socket_timeout must be a number$"),
        ("redis://h?socket_timeout=nan", "socket_timeout must be between 0.001 and 86400"),
        ("redis://h?max_connections=0", "max_connections must be between 1 and"),
        ("redis://h:65536", "its host or port is not one"),
        ("redis://h/²", "its database, after the host, must be a number"),
        (f"redis://h/{'9' * 5000}", "its database, after the host, must be a number"),
        ("redis://a..b", "its host or port is not one"),
        ("redis://h%00", "its host or port is not one"),
        ("redis://\ud800", "its host is not one"),
        ("unix:///a%00b", "it names no socket"),
        ("redis://a;redis://b", "it names several servers"),
        ("sentinel://a;redis://b", "it names several servers"),
        ("redis://h?db=1;password=geheim", "write & between its options"),
        ("rediss://h?ssl=false", "rediss:// means TLS, but it says ssl=false"),
        ("redis://h?ssl_check_hostname=maybe", "must be true or false"),
        ("redis://[::1/0", "its host is not one"),
        ("redis://:ge/heim@h/0", "%2F"),
        ("redis://:ge#heim@h/0", "%23"),
        ("rediss://h?ssl_cert_reqs=perhaps", "ssl_cert_reqs must be required, optional or none"),
    ],
)
def test_a_wrong_url_names_what_is_wrong(url, wrong):
    """Semantics 16: wrong URL."""
    with pytest.raises(ConfigurationError, match=wrong) as error:
        connect(url)
    assert "geheim" not in str(error.value)
    assert "heim" not in str(error.value)


def test_a_sentinel_needs_the_masters_name():
    """Semantics 16."""
    with pytest.raises(ConfigurationError, match=r"'sentinel://\*\*\*@a' does not name the master: add \?m"):
        connect("sentinel://:geheim@a")
    assert connect("sentinel://a", {"master_name": "m"}).connection_pool.service_name == "m"


SECRET = st.text(st.sampled_from("abc:@/?#;,%&=[]"), min_size=1).map(lambda text: f"geheim{text}geheim")


@given(
    scheme=st.sampled_from([*SCHEMES, "http"]), secret=SECRET, tail=st.sampled_from(["h/0", "h:x", "h?a=1"])
)
def test_no_error_shows_a_password_however_it_is_written(scheme, secret, tail):
    url = f"{scheme}://user:{secret}@{tail}"
    assert "geheim" not in hide_password(url)
    try:
        target = parse(url)
    except ConfigurationError as error:
        assert "geheim" not in str(error)
        assert error.__cause__ is error.__context__ is None
    else:
        assert "geheim" not in repr(connect(url, {"master_name": "m"}))
        assert target.options["password"].startswith("geheim")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis:/u:geheim@h", "redis:***"),
        ("redis:u:geheim@h", "redis:***"),
        ("u:geheim@h", "***"),
        ("geheim", "***"),
        ("geheim://h", "***"),
        ("redis://us@er:geheim@h", "redis://***"),
        ("redis://geheim@h", "redis://***@h"),
        ("redis://geheim:@h", "redis://***@h"),
        ("redis://u:geheim", "redis://***"),
        ("redis:///u:geheim@h", "redis://***"),
        ("redis://u:geheim/0", "redis://***"),
        ("redis://u:ge/heim@h", "redis://***"),
        ("redis://h/geheim", "redis://h/***"),
        ("redis://h#geheim", "redis://***"),
        ("redis://h?Password=geheim", "redis://h?***"),
        ("redis://h?password=a;geheim", "redis://h?password=***"),
        ("redis://h?password=a&geheim", "redis://h?password=***&***"),
        ("redis://h?db=1;password=geheim", "redis://h?db=***"),
        ("redis://h?socket_timeout=1;geheim", "redis://h?socket_timeout=***"),
        ("redis://h?ssl_cert_reqs=required;password=geheim", "redis://h?ssl_cert_reqs=***"),
        ("rediss://h?ssl_password=geheim&ssl_keyfile=/k", "rediss://h?ssl_password=***&ssl_keyfile=/k"),
        ("unix:///u:geheim@/r.sock", "unix://***"),
        ("unix://u:geheim/r.sock", "unix://***"),
        ("unix://u:geheim@/r.sock?db=1", "unix://***@/r.sock?db=1"),
        ("sentinel://:geheim@a;sentinel://:ge;heim@b:1/0", "sentinel://***@a;sentinel://***@b:1/0"),
        ("redis+cluster://u:geheim@a:1,b", "redis+cluster://***@a:1,b"),
        ("amqp://u:geheim@h//", "amqp://***@h//"),
        ("amqp://u:geheim@h/vhost", "amqp://***@h/***"),
        ("redis://u:geheim\n@h", "redis://***@h"),
    ],
)
def test_a_password_is_hidden_wherever_it_stands(url, shown):
    """A malformed URL shows no more than its scheme."""
    assert hide_password(url) == shown
    try:
        connect(url, {"master_name": "m"})
    except ConfigurationError as error:
        assert "geheim" not in str(error)
        assert "heim" not in str(error)


def test_passwords_in_the_query_are_hidden_too():
    shown = hide_password("sentinel://a;sentinel://:geheim@b?sentinel_password=geheim&master_name=m")
    assert shown == "sentinel://a;sentinel://***@b?sentinel_password=***&master_name=m"


@pytest.mark.parametrize("value", [ssl.CERT_REQUIRED, 2, "CERT_REQUIRED", "required", "Required"])
def test_certificates_are_required_in_every_form_that_celery_takes(value):
    assert tls_options({"ssl_cert_reqs": value})["ssl_cert_reqs"] == "required"


def test_certificates_and_host_names_are_checked_unless_said_otherwise():
    assert tls_options({}) == {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
    assert tls_options({"ssl_cert_reqs": None}) == {"ssl_cert_reqs": "none", "ssl_check_hostname": False}


def test_tls_options_may_stand_without_their_prefix_as_rabbitmqs_do():
    assert tls_options({"ca_certs": "/ca", "cert_reqs": ssl.CERT_NONE})["ssl_ca_certs"] == "/ca"
    with pytest.raises(ConfigurationError, match="unknown TLS option 'cacerts'"):
        tls_options({"cacerts": "/ca"})
