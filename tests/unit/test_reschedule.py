"""How a message is delayed when it is published again."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_rlock.running import reschedule
from celery_rlock.running.reschedule import delayed_by, seconds_until, without_dead_letters


def app_of(queue_type, broker="amqp://localhost"):
    app = Celery("delays", broker=broker, set_as_current=False)
    app.conf.task_default_queue_type = queue_type
    return app


@pytest.fixture
def can_be_woken(monkeypatch):
    return lambda can: monkeypatch.setattr(reschedule, "CAN_BE_WOKEN", can)


@pytest.mark.parametrize(("queue_type", "broker"), [("classic", "amqp://x"), ("quorum", "redis://x")])
def test_a_worker_keeps_the_message_until_its_countdown_is_over(queue_type, broker):
    assert delayed_by(app_of(queue_type, broker), 0.3) == {"countdown": 0.3}


def test_for_a_quorum_queue_the_delay_is_the_workers_alone(can_be_woken):
    """A countdown would have RabbitMQ keep the message, where no release can wake its task."""
    can_be_woken(True)
    app = app_of("quorum")
    [(option, headers)] = delayed_by(app, 30).items()
    assert option == "headers"
    assert 0 < seconds_until(app, headers["eta"]) <= 30


@pytest.mark.parametrize(("seconds", "countdown"), [(0, 1), (0.3, 1), (1, 1), (1.2, 2), (30, 30)])
def test_where_no_task_is_woken_rabbitmq_delays_it_by_whole_seconds(can_be_woken, seconds, countdown):
    """kombu refuses a delay of 0, and Celery would cut off the rest of a second."""
    can_be_woken(False)
    assert delayed_by(app_of("quorum"), seconds) == {"countdown": countdown}


def test_the_headers_that_rabbitmq_added_are_left_out():
    """RabbitMQ drops a message that comes into the same delay queue with them once more."""
    added = {"x-death": [{}], "x-first-death-queue": "q", "x-last-death-reason": "expired"}
    assert without_dead_letters({"mine": 1, "x-mine": 2, **added}) == {"mine": 1, "x-mine": 2}
