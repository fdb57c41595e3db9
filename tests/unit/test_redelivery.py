from __future__ import annotations

import pytest
from celery.exceptions import Ignore, Reject

from celery_rlock.redelivery import has_ended


@pytest.mark.parametrize(
    ("state", "result", "ended"),
    [
        ("SUCCESS", 5, True),
        ("FAILURE", ValueError(), True),
        ("RETRY", None, True),
        ("IGNORED", Ignore(), True),
        ("REJECTED", Reject("no", requeue=False), True),
        ("REJECTED", Reject("later", requeue=True), False),
        (None, None, False),
    ],
)
def test_what_may_be_delivered_again_has_not_ended(state, result, ended):
    """Semantics 10: a terminated or requeued run is not an end, so a copy of its message runs."""
    assert has_ended(state, result) is ended
