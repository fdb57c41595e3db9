"""Real workers, and what the doctor learns from them; a broker that is down."""

from __future__ import annotations

import json

import pytest
from celery import Celery

from celery_rlock import LockedTask
from celery_rlock.checks.fleet import look_at_broker, look_at_workers
from celery_rlock.checks.setup import Setup
from tests.conftest import DEFAULT_KIND
from tests.ops.clinic import is_fine, look, only
from tests.support.daemon import running
from tests.support.processes import free_port, wait_until
from tests.support.proxy import Proxy
from tests.support.workers import Worker

SOON = 30


def settings(broker, locks, **others):
    return {"broker_url": broker, "result_backend": locks, "rlock_url": locks, **others}


def app_of(conf):
    app = Celery("patient", set_as_current=False)
    app.conf.update(conf)
    app.task(lambda: None, base=LockedTask, name="locked", shared=False)
    return app


def worker(name, conf):
    env = {"RLOCK_TEST_CONF": json.dumps(conf)}
    return Worker("tests.ops.patient:app", pool="solo", hostname=name, env=env)


@pytest.fixture(scope="module")
def brokers(servers):
    """Three of them, each with workers of its own: twins, others, and none."""
    address = servers(DEFAULT_KIND).url.removesuffix("/0")
    twins, others, nobody = (settings(f"{address}/{number}", f"{address}/0") for number in (1, 2, 3))
    fleet = [
        worker("twin@test", twins),
        worker("twin@test", twins),
        worker("alike@test", others),
        worker("apart@test", {**others, "rlock_prefix": "apart:", "rlock_url": f"{address}/4"}),
    ]
    with running(fleet):
        yield {"twins": app_of(twins), "others": app_of(others), "nobody": app_of(nobody)}


def settled(check, app, level):
    """A loaded machine may answer too late: ask again."""
    return wait_until(
        lambda: [found for found in [look(check, app)] if level in {one.level for one in found}],
        timeout=SOON,
        what=f"{check} to find {level}",
    )[0]


def test_two_workers_of_one_name_are_told(brokers):
    what, todo = only(settled("workers", brokers["twins"], "error"), "error")
    assert "twin@test" in what
    assert "-n NAME" in todo


def test_workers_with_names_of_their_own_are_fine(brokers):
    what, _ = only(settled("workers", brokers["others"], "ok"), "ok")
    assert what.startswith("2 answered")


def test_a_fleet_without_workers_is_told(brokers):
    only(look("workers", brokers["nobody"]), "warn")
    only(look("agreement", brokers["nobody"]), "skip")


def test_workers_that_look_elsewhere_for_the_locks_are_told(brokers):
    """Another prefix is another lock for sure; another URL may lead to the same server."""
    found = {finding.level: finding for finding in settled("agreement", brokers["others"], "error")}
    assert "rlock_prefix of apart@test" in found["error"].what
    assert "rlock_url of apart@test" in found["warn"].what


def test_workers_that_agree_are_fine(brokers):
    assert settled("agreement", brokers["twins"], "ok")


def test_a_broker_that_answers_is_fine(brokers):
    assert is_fine("broker", brokers["nobody"])


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_a_broker_that_is_down_is_told_and_no_worker_is_asked(server, scheme):
    app = app_of(settings(f"{scheme}://127.0.0.1:{free_port()}/0", server.url))
    _, todo = only(look("broker", app), "error")
    assert "broker_url" in todo
    for check in ("workers", "agreement"):
        what, _ = only(look(check, app), "skip")
        assert "broker" in what


def test_a_broker_that_is_silent_is_told(server):
    """kombu alone would wait for it for ever."""
    with Proxy(server.port) as proxy:
        proxy.freeze()
        setup = Setup(app_of(settings(proxy.url, server.url)), timeout=0.1)
        what, _ = only(list(look_at_broker(setup)), "error")
    assert "no answer within" in what


class OneAnswers(Setup):
    """Two workers of one name on RabbitMQ: where they share the queue of what they are asked
    (control_queue_exclusive=False, and Celery before it had that), only one of them answers each question.
    """

    broker = "amqp"

    def ask(self, command):
        self.asked = getattr(self, "asked", 0) + 1
        return [("twin@test", {"pid": 10 + self.asked % 2})]


def test_two_workers_that_answer_in_turn_are_told():
    what, _ = only(list(look_at_workers(OneAnswers(Celery("patient", set_as_current=False)))), "error")
    assert "twin@test" in what
