"""The doctor's checks of the broker and the workers, with real ones."""

from __future__ import annotations

import json

import pytest
from celery import Celery

from celery_rlock import LockedTask
from celery_rlock.doctor.setup import Setup
from celery_rlock.doctor.workers import check_broker, check_workers
from tests.cli.doctor_app import APP, check, is_fine, only
from tests.support.daemon import running
from tests.support.processes import free_port, wait_until
from tests.support.proxy import Proxy
from tests.support.servers import DEFAULT_KIND
from tests.support.workers import Worker

SOON = 30


def settings(broker, locks, **others):
    return {"broker_url": broker, "result_backend": locks, "rlock_url": locks, **others}


def app_of(conf):
    app = Celery("examined", set_as_current=False)
    app.conf.update(conf)
    app.task(lambda: None, base=LockedTask, name="locked", shared=False)
    return app


def worker(name, conf):
    env = {"RLOCK_TEST_CONF": json.dumps(conf)}
    return Worker(APP, pool="solo", hostname=name, env=env)


@pytest.fixture(scope="module")
def brokers(servers):
    """Apps of three brokers: one with two workers of the same name, one with two others, one without."""
    address = servers(DEFAULT_KIND).url.removesuffix("/0")
    twins, others, none = (settings(f"{address}/{number}", f"{address}/0") for number in (1, 2, 3))
    fleet = [
        worker("twin@test", twins),
        worker("twin@test", twins),
        worker("alike@test", others),
        worker("apart@test", {**others, "rlock_prefix": "apart:", "rlock_url": f"{address}/4"}),
    ]
    with running(fleet):
        yield {"twins": app_of(twins), "others": app_of(others), "none": app_of(none)}


def await_level(name, app, level):
    """What the check finds, once it finds this level: on a loaded machine an answer may come too late."""
    return wait_until(
        lambda: [found for found in [check(name, app)] if level in {one.level for one in found}],
        timeout=SOON,
        what=f"{name} to find {level}",
    )[0]


def test_two_workers_of_the_same_name_are_an_error(brokers):
    what, todo = only(await_level("workers", brokers["twins"], "error"), "error")
    assert "twin@test" in what
    assert "-n NAME" in todo


def test_workers_with_names_of_their_own_are_fine(brokers):
    what, _ = only(await_level("workers", brokers["others"], "ok"), "ok")
    assert what.startswith("2 answered")


def test_no_worker_is_a_warning(brokers):
    only(check("workers", brokers["none"]), "warn")
    what, _ = only(check("agreement", brokers["none"]), "warn")
    assert "no worker answers" in what


def test_workers_with_other_locks_are_reported(brokers):
    """Another prefix is an error; another URL is a warning, because it may lead to the same server."""
    found = {finding.level: finding for finding in await_level("agreement", brokers["others"], "error")}
    assert "rlock_prefix of apart@test" in found["error"].what
    assert "rlock_url of apart@test" in found["warn"].what


def test_workers_that_agree_are_fine(brokers):
    assert await_level("agreement", brokers["twins"], "ok")


def test_a_broker_that_answers_is_fine(brokers):
    assert is_fine("broker", brokers["none"])


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_a_broker_that_is_down_is_an_error_and_no_worker_is_asked(server, scheme):
    app = app_of(settings(f"{scheme}://127.0.0.1:{free_port()}/0", server.url))
    _, todo = only(check("broker", app), "error")
    assert "broker_url" in todo
    for name in ("workers", "agreement"):
        what, _ = only(check(name, app), "warn")
        assert "broker" in what


def test_a_broker_that_does_not_answer_is_an_error(server):
    """kombu alone would wait for ever."""
    with Proxy(server.port) as proxy:
        proxy.freeze()
        setup = Setup(app_of(settings(proxy.url, server.url)), timeout=0.1)
        what, _ = only(list(check_broker(setup)), "error")
    assert "no answer within" in what


class OneOfTwoAnswers(Setup):
    """Two workers of the same name on RabbitMQ, of which only one answers each question.

    This happens when they share one control queue: with control_queue_exclusive=False, and with a Celery that
    does not have this setting.
    """

    broker = "amqp"

    def ask(self, command):
        self.asked = getattr(self, "asked", 0) + 1
        return [("twin@test", {"pid": 10 + self.asked % 2})]


def test_two_workers_that_answer_in_turn_are_an_error():
    what, _ = only(list(check_workers(OneOfTwoAnswers(Celery("examined", set_as_current=False)))), "error")
    assert "twin@test" in what
