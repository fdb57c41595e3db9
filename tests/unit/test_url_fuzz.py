"""URLs that are broken in random ways: an error names what is wrong, and no text shows the password.

CELERY_RLOCK_FUZZ=100000 tries so many instead of a few hundred.
"""

from __future__ import annotations

import traceback

from celery import Celery
from hypothesis import example, given, settings
from hypothesis import strategies as st

from celery_rlock import ConfigurationError
from celery_rlock import settings as lock_settings
from celery_rlock.server.client import connect
from celery_rlock.server.url import SCHEMES, hide_password, parse
from tests.support.fuzz import EXAMPLES

SECRET = "geheim4711"

#: What people write between the parts of a URL, rightly and wrongly.
AFTER_SCHEME = st.sampled_from(["://", "://", "://", ":/", ":", "//", ":///", "", "://://"])
LOGIN = st.sampled_from(["", "user", "us@er", "us:er", "us/er", "us%40er", "üser", "\x00", "\ud800"])
JUNK = st.text(st.sampled_from("ab1:@/?#;,%&=[]{} \\\n\x1b\u202eé\ud800"), max_size=6)
HOST = st.sampled_from(
    ["h", "h:1", "h:x", "h:99999", "[::1]:1", "[::1", "a,b", "a..b", "", "h\n", "127.0.0.1"]
)
PATH = st.sampled_from(["", "/", "/0", "/x", "/²", "/0/1", "//", "/r.sock", "#f"])
OPTION = st.sampled_from(
    [
        "db=1",
        "db=x",
        "ssl=true",
        "ssl=maybe",
        "socket_timeout=1",
        "socket_timeout=nan",
        "x=y",
        "=",
        "",
        "master_name=m",
    ]
)
#: Names that people give to a password in a query.
PASSWORD_OPTION = st.sampled_from(
    [
        "password",
        "Password",
        "PASSWORD",
        "passwd",
        "pass",
        "sentinel_password",
        "ssl_password",
        "auth",
        "pass word",
        "",
    ]
)


@st.composite
def secrets(draw):
    return draw(JUNK) + SECRET + draw(JUNK)


@st.composite
def with_login(draw):
    """The password where it belongs, with one or the other sign around it missing or doubled."""
    before, after = draw(
        st.sampled_from(
            [(":", "@"), (":", "@"), (":", ""), ("", "@"), (":", "@@"), ("::", "@"), (":", "%40@")]
        )
    )
    scheme = draw(st.sampled_from([*SCHEMES, "http", "REDIS", ""])) + draw(AFTER_SCHEME)
    query = draw(st.sampled_from(["", "?"])) + "&".join(draw(st.lists(OPTION, max_size=2)))
    return scheme + draw(LOGIN) + before + draw(secrets()) + after + draw(HOST) + draw(PATH) + query


@st.composite
def with_option(draw):
    """The password in the query, under some name, and with some sign before it."""
    scheme = draw(st.sampled_from([*SCHEMES, "http"])) + "://"
    options = draw(st.lists(OPTION, max_size=2))
    equals = draw(st.sampled_from(["=", "=", "", "==", "=a;", "=a&", ";"]))
    options.insert(draw(st.integers(0, len(options))), draw(PASSWORD_OPTION) + equals + draw(secrets()))
    sign = draw(st.sampled_from(["&", "&", ";"]))
    return scheme + draw(HOST) + draw(PATH) + "?" + sign.join(options)


@st.composite
def several(draw):
    return ";".join(draw(st.lists(st.one_of(with_login(), with_option()), min_size=1, max_size=3)))


def shown_by(client):
    """The reprs of what a log or an error report may show of a client."""
    pool = getattr(client, "connection_pool", None) if type(client).__name__ != "LazyCluster" else None
    manager = getattr(pool, "sentinel_manager", None)
    sentinels = manager.sentinels if manager else []
    return "".join(map(repr, [client if pool else "", pool, *sentinels]))


@settings(max_examples=EXAMPLES, deadline=None)
@example(f"redis://:{SECRET}@h;redis://:@{SECRET}h")
@given(several())
def test_no_text_about_a_url_shows_its_password(url):
    texts = [hide_password(url)]
    try:
        texts += [repr(parse(url)), shown_by(connect(url, {"master_name": "m"}))]
    except ConfigurationError as error:
        texts += [str(error), repr(error), "".join(traceback.format_exception(error))]
    assert SECRET not in "".join(texts)
    assert all(text.isprintable() for text in texts[:2])


@settings(max_examples=EXAMPLES // 4, deadline=None)
@given(several(), st.sampled_from(lock_settings.PASSWORDS))
def test_the_settings_show_no_password_either(url, name):
    app = Celery("fuzzed", set_as_current=False)
    app.conf.update(rlock_url=url, **{name: SECRET})
    try:
        shown = shown_by(lock_settings.redis_server(app).client)
    except ConfigurationError as error:
        shown = "".join(traceback.format_exception(error))
    assert SECRET not in shown


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.text(st.characters(codec=None)), st.sampled_from(["", *(f"{scheme}://" for scheme in SCHEMES)]))
def test_any_text_is_a_url_or_a_configuration_error(text, scheme):
    try:
        connect(scheme + text, {"master_name": "m"})
    except ConfigurationError as error:
        assert str(error).isprintable()
