"""How long a queued task keeps its key, and what is refused before anything is published."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from celery_rlock import ConfigurationError
from tests.support.processes import free_port
from tests.support.proxy import Proxy
from tests.unique.conftest import port_of

TTL = 3600
ROOM = 60


def after(seconds):
    return datetime.now(timezone.utc) + timedelta(seconds=seconds)


LEASES = [
    ({}, TTL),
    ({"countdown": 1000}, 1000 + TTL),
    ({"eta": lambda: after(2000)}, 2000 + TTL),
    ({"eta": lambda: after(2000).isoformat()}, 2000 + TTL),
    ({"lock_queue_ttl": 100}, 100),
    ({"countdown": 1000, "lock_queue_ttl": 100}, 1100),
    ({"countdown": 1000, "expires": 1200}, 1201),
    ({"expires": lambda: after(500)}, 501),
    ({"expires": lambda: after(500).replace(tzinfo=None)}, 501),
    ({"expires": 2 * TTL}, TTL),
    ({"eta": lambda: after(-1000)}, TTL - 1000),
    ({"eta": lambda: after(2000), "countdown": 0}, 2000 + TTL),  # as Celery reads it
]


@pytest.mark.parametrize(("options", "seconds"), LEASES)
def test_the_lease_goes_beyond_the_eta_but_not_beyond_the_expiry(
    proj, name, idle, lease_of, options, seconds
):
    made = {option: value() if callable(value) else value for option, value in options.items()}
    proj.once.apply_async((name,), queue=idle, **made)
    assert seconds - ROOM < lease_of(name) <= seconds


def test_the_tasks_own_expiry_counts_and_the_calls_goes_before(proj, name, idle, lease_of):
    proj.once_in_time.apply_async((name,), queue=idle)
    assert lease_of(name) <= 101
    proj.once_in_time.apply_async((f"{name}-2",), queue=idle, expires=500)
    assert 101 < lease_of(f"{name}-2") <= 501


@pytest.mark.parametrize(
    "options",
    [{"eta": lambda: after(-2 * TTL)}, {"expires": lambda: after(-10)}, {"countdown": -2 * TTL}],
    ids=["eta", "expires", "countdown"],
)
def test_what_is_over_already_is_refused(proj, name, idle, messages, holder, options):
    """Semantics 16: a clear error, nothing published, no lock left."""
    made = {option: value() if callable(value) else value for option, value in options.items()}
    with pytest.raises(ConfigurationError, match="over before it is published"):
        proj.once.apply_async((name,), queue=idle, **made)
    assert (messages(idle), holder(name)) == ([], None)


def test_the_bound_ends_what_purge_forgot(proj, name, idle, messages, holder, await_free):
    first = proj.once.apply_async((name,), queue=idle, lock_queue_ttl=2)
    with proj.app.connection_for_write() as connection:
        assert connection.default_channel.queue_purge(idle) == 1
    assert holder(name) == f"queued:{first.id}"
    await_free(name)
    assert proj.once.apply_async((name,), queue=idle).id != first.id
    assert len(messages(idle)) == 1


def test_an_argument_that_cannot_be_serialized_leaves_no_lock(proj, name, idle, messages, holder):
    """Semantics 16."""
    with pytest.raises(Exception, match="not JSON serializable"):
        proj.once.apply_async((name, object()), queue=idle)
    assert (messages(idle), holder(name)) == ([], None)


def test_a_failing_publish_of_the_same_id_frees_not_what_the_first_has(proj, name, idle, holder):
    """Semantics 3: the first message is queued."""
    first = proj.once.apply_async((name,), queue=idle, task_id=f"id-{name}")
    with pytest.raises(Exception, match="not JSON serializable"):
        proj.once.apply_async((name, object()), queue=idle, task_id=first.id)
    assert holder(name) == f"queued:{first.id}"


def test_arguments_that_do_not_fit_leave_no_lock(proj, name, idle, messages):
    """Semantics 16."""
    with pytest.raises(TypeError):
        proj.once.apply_async((name, 0, None, "too many"), queue=idle)
    assert messages(idle) == []


def test_a_broker_that_is_away_leaves_no_lock(proj, name, idle, holder):
    with proj.app.connection_for_write(url=f"redis://127.0.0.1:{free_port()}/0") as connection:
        producer = proj.app.amqp.Producer(connection, auto_declare=False)
        with pytest.raises(Exception, match="refused"):
            proj.once.apply_async((name,), queue=idle, producer=producer, retry=False)
    assert holder(name) is None


def test_a_broker_that_fails_in_the_middle_leaves_no_lock(proj, name, idle, holder, environment):
    with (
        Proxy(port_of(environment["RLOCK_TEST_BROKER"])) as proxy,
        proj.app.connection_for_write(url=proxy.url) as connection,
    ):
        producer = proj.app.amqp.Producer(connection, auto_declare=False)
        rule = proxy.drop_request(lambda command: command[0].upper() == b"LPUSH", times=100)
        with pytest.raises(Exception, match="losed"):
            proj.once.apply_async((name,), queue=idle, producer=producer, retry=False)
        assert rule.left < 100
    assert holder(name) is None
