"""How long a queued task keeps its key, and which calls are refused before they are published."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from celery_rlock import ConfigurationError
from tests.support.outages import unreachable_url
from tests.support.proxy import Proxy

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
    proj, name, queue, lease_of, options, seconds
):
    made = {option: value() if callable(value) else value for option, value in options.items()}
    proj.once.apply_async((name,), queue=queue, **made)
    assert seconds - ROOM < lease_of(name) <= seconds


def test_the_expiry_of_the_task_counts_unless_the_call_has_one(proj, name, queue, lease_of):
    proj.once_in_time.apply_async((name,), queue=queue)
    assert lease_of(name) <= 101
    proj.once_in_time.apply_async((f"{name}-2",), queue=queue, expires=500)
    assert 101 < lease_of(f"{name}-2") <= 501


@pytest.mark.parametrize(
    "options",
    [{"eta": lambda: after(-2 * TTL)}, {"expires": lambda: after(-10)}, {"countdown": -2 * TTL}],
    ids=["eta", "expires", "countdown"],
)
def test_a_call_that_has_expired_already_is_refused(proj, name, queue, messages, holder, options):
    """Semantics 16: a clear error, no message, no lock."""
    made = {option: value() if callable(value) else value for option, value in options.items()}
    with pytest.raises(ConfigurationError, match="over before it is published"):
        proj.once.apply_async((name,), queue=queue, **made)
    assert (messages(queue), holder(name)) == ([], None)


def test_the_lease_of_a_purged_task_ends(proj, name, queue, messages, holder, await_free):
    first = proj.once.apply_async((name,), queue=queue, lock_queue_ttl=1)
    with proj.app.connection_for_write() as connection:
        assert connection.default_channel.queue_purge(queue) == 1
    assert holder(name) == f"queued:{first.id}"
    await_free(name)
    assert proj.once.apply_async((name,), queue=queue).id != first.id
    assert len(messages(queue)) == 1


def test_an_argument_that_cannot_be_serialized_leaves_no_lock(proj, name, queue, messages, holder):
    """Semantics 16: the caller gets the error."""
    with pytest.raises(Exception, match="not JSON serializable"):
        proj.once.apply_async((name, object()), queue=queue)
    assert (messages(queue), holder(name)) == ([], None)


def test_a_failing_publish_of_the_same_id_does_not_free_the_key_of_the_first(proj, name, queue, holder):
    """Semantics 3: the first message is still queued."""
    first = proj.once.apply_async((name,), queue=queue, task_id=f"id-{name}")
    with pytest.raises(Exception, match="not JSON serializable"):
        proj.once.apply_async((name, object()), queue=queue, task_id=first.id)
    assert holder(name) == f"queued:{first.id}"


def test_arguments_that_do_not_fit_leave_no_lock(proj, name, queue, messages, holder):
    """Semantics 16: the caller gets the error."""
    with pytest.raises(TypeError):
        proj.once.apply_async((name, 0, None, False, "too many"), queue=queue)
    assert (messages(queue), holder(name)) == ([], None)


def test_a_broker_that_is_away_leaves_no_lock(proj, name, queue, holder):
    with proj.app.connection_for_write(url=unreachable_url()) as connection:
        producer = proj.app.amqp.Producer(connection, auto_declare=False)
        with pytest.raises(Exception, match="refused"):
            proj.once.apply_async((name,), queue=queue, producer=producer, retry=False)
    assert holder(name) is None


def test_a_broker_that_fails_during_the_publish_leaves_no_lock(proj, name, queue, holder, fleet_redis):
    with (
        Proxy(fleet_redis.port) as proxy,
        proj.app.connection_for_write(url=proxy.url) as connection,
    ):
        producer = proj.app.amqp.Producer(connection, auto_declare=False)
        rule = proxy.drop_request(lambda command: command[0].upper() == b"LPUSH", times=100)
        with pytest.raises(Exception, match="losed"):
            proj.once.apply_async((name,), queue=queue, producer=producer, retry=False)
        assert rule.left < 100
    assert holder(name) is None
