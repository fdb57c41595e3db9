"""Random arguments, and random values in Redis: every command ends with its exit code, and shows no harm.

CELERY_RLOCK_FUZZ=10000 tries so many instead of a few hundred.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from celery_rlock.cli.metrics import survey
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer
from tests.cli.commands_app import make_app
from tests.cli.run_commands import Locks, run
from tests.support.fuzz import EXAMPLES
from tests.support.servers import DEFAULT_KIND, Server

SECRET = "geheim4711"
HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\n\u202e"

#: An operating system passes no NUL. Bytes that are not UTF-8 arrive as surrogates.
TEXT = st.one_of(
    st.text(st.characters(codec=None, exclude_characters="\0"), max_size=12),
    st.text(st.sampled_from("a*?[]{}%\\'\"\x1b\n\r\u202e\udcff \t=-:/"), max_size=12),
    st.sampled_from(
        ["", "real", HOSTILE, "rlock:{real}", "rlock:{%FF}", "%~", "--", "-1", "²", "9" * 5000, "nan"]
    ),
)
TASK = st.one_of(TEXT, st.sampled_from(["charge", "proj.transfer", "by_default", "skipping", "plain"]))
JSON = st.one_of(
    TEXT, st.sampled_from(["[1]", "[]", "{}", '{"account_id": 1}', "NaN", "[" * 2000, '["\\u001b"]'])
)
SORT = st.one_of(TEXT, st.sampled_from(["held", "key", "token", "worker"]))


def option(name, values):
    return st.one_of(st.just([]), st.tuples(values).map(lambda found: [f"--{name}={found[0]}"]))


def command(name, *parts):
    return st.tuples(*parts).map(lambda found: [name, *(word for words in found for word in words)])


WORDS = st.one_of(
    command(
        "ls",
        *(option(name, TEXT) for name in ("task", "worker", "older-than")),
        option("sort", SORT),
        st.sampled_from([[], ["--json"]]),
        st.lists(TEXT, max_size=1),
    ),
    command("show", option("limit", TEXT), st.sampled_from([[], ["--json"]]), st.lists(TEXT, max_size=2)),
    command(
        "explain",
        option("args", JSON),
        option("kwargs", JSON),
        TASK.map(lambda name: [name]),
        st.lists(st.one_of(TEXT, JSON), max_size=3),
    ),
    command(
        "release",
        option("owner", TEXT),
        st.sampled_from([["--yes"], ["--yes", "--json"], []]),
        st.lists(TEXT, max_size=2),
    ),
    command("watch", st.just(["--count=1"]), option("interval", TEXT), st.lists(TEXT, max_size=1)),
    st.lists(TEXT, max_size=3),
)


@pytest.fixture(scope="module")
def url():
    """A server that wants a password, with a real lock and one of a hostile owner."""
    with Server(DEFAULT_KIND, requirepass=SECRET) as server:
        server.url = f"redis://:{SECRET}@127.0.0.1:{server.port}/0"
        server.started()
        locks = Locks(server.url)
        locks.hold("real", ttl=3600)
        locks.hold(HOSTILE, worker=HOSTILE, task_id=HOSTILE, task=HOSTILE, delivery="d2", ttl=3600)
        yield server.url


@pytest.fixture(scope="module")
def app(url):
    return make_app(url, rlock_url=url)


def check(done, words):
    assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.exception)
    assert done.exit_code in {0, 1, 2, 3}, words
    shown = done.stdout + done.stderr
    harmful = {char for line in shown.split("\n") for char in line if not char.isprintable() and char != "\t"}
    assert not harmful, (words, shown)
    assert SECRET not in shown


@settings(max_examples=EXAMPLES, deadline=None)
@given(WORDS)
@example(["explain", "charge", "[" * 2000])
@example(["explain", "charge", f"--kwargs={'[' * 2000}"])
def test_any_arguments_end_a_command_with_its_exit_code(app, words):
    if words[:1] in (["show"], ["explain"], ["release"]):
        words = [words[0], "--timeout=0", *words[1:]]  # asking the workers would only take time
    check(run(app, *words, input="n\n"), words)


FIELD = st.one_of(
    st.binary(max_size=8),
    st.sampled_from([b"d:id", b"@token", b"@since", b"@worker", b"@task", b"a:b:c"]),
    st.sampled_from([b"turn:x/3:d:id", b"turn:", b"rest.0:id", f"d:{HOSTILE}".encode()]),
)
VALUE = st.one_of(
    st.binary(max_size=8),
    st.integers().map(lambda number: str(number).encode()),
    st.sampled_from([b"1", b"0", "²".encode(), b"9" * 5000, b"-1", b"1e5", HOSTILE.encode()]),
    # a place of a key with a limit
    st.tuples(
        st.lists(st.sampled_from(["0", "3", "9" * 16, "9" * 18, "9" * 19, "x"]), min_size=7, max_size=7),
        st.sampled_from(["0 7 w\nt", f"1 7 {HOSTILE}\n{HOSTILE}", "2 7 w\nt"]),
    ).map(lambda said: f"{' '.join(said[0])} {said[1]}".encode()),
)
NAME = st.one_of(
    st.binary(max_size=8),
    st.sampled_from([b"%FF", b"%", b"%~", b"", b"}", b"a}{b", b"a:waiters", "é".encode()]),
)


@settings(max_examples=EXAMPLES // 4, deadline=None)
@given(
    name=NAME,
    fields=st.dictionaries(FIELD, VALUE, min_size=1, max_size=5),
    whole=st.booleans(),
    waiters=st.dictionaries(st.binary(max_size=8), st.floats(allow_nan=False), max_size=3),
)
def test_any_value_in_redis_stops_no_command(app, url, name, fields, whole, waiters):
    client, key = connect(url), b"rlock:{" + name + b"}"
    if whole:
        fields = {b"d:id": b"1", b"@token": b"1", **fields}
    client.hset(key, mapping=fields)
    try:
        if waiters:
            client.zadd(key + b":waiters", waiters)
        shown = key.decode(errors="surrogateescape")
        for words in (
            ["ls"],
            ["ls", "--json"],
            ["show", shown, "--timeout=0"],
            ["show", shown, "--timeout=0", "--json"],
        ):
            check(run(app, *words), (words, fields))
        found = survey(RedisLockServer(client), str, longest=30)
        assert found.is_complete
        assert all(map(math.isfinite, found.oldest.values()))
        assert client.hgetall(key) == fields
    finally:
        client.delete(key, key + b":waiters")
