from __future__ import annotations

import pytest
from celery.exceptions import Ignore, Reject

from celery_rlock.running.redelivery import has_ended
from celery_rlock.running.reschedule import Waiting


@pytest.mark.parametrize(
    ("state", "result", "ended"),
    [
        ("SUCCESS", 5, True),
        ("FAILURE", ValueError(), True),
        ("RETRY", None, True),
        ("IGNORED", Ignore(), True),
        ("IGNORED", Waiting("again in 1 s"), False),
        ("REJECTED", Reject("no", requeue=False), True),
        ("REJECTED", Reject("later", requeue=True), False),
        (None, None, False),
    ],
)
def test_what_may_be_delivered_again_has_not_ended(state, result, ended):
    """Semantics 10: a run that was terminated, requeued or published again is no end: its message runs."""
    assert has_ended(state, result) is ended
