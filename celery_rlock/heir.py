"""Who has a task's keys when its run has ended."""

from __future__ import annotations

from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery.exceptions import Retry
from celery.utils.time import maybe_iso8601, maybe_make_aware

from celery_rlock.core.name import QUEUED, RESTING
from celery_rlock.core.replies import Heir

if TYPE_CHECKING:
    from celery import Celery

    from celery_rlock.hold import Hold
    from celery_rlock.options import Options


def heir_of(app: Celery, options: Options, hold: Hold, error: BaseException | None) -> Heir | None:
    """The task's own retry, if it is unique from publish on; its rest, until it was held long enough."""
    if isinstance(error, Retry) and options.from_ == "publish":
        return Heir(QUEUED, max(0.0, seconds_until(app, error.when)) + options.queue_ttl)
    rest = hold.since + options.hold_at_least - monotonic()
    return Heir(RESTING, rest) if rest > 0 else None


def seconds_until(app: Celery, when: Any) -> float:
    """Until an ETA or expiry as Celery takes it: seconds, a datetime, or one in ISO 8601."""
    if when is None:
        return 0.0
    if isinstance(when, int | float):
        return float(when)
    moment: Any = when if isinstance(when, datetime) else maybe_iso8601(when)
    return float((maybe_make_aware(moment, app.timezone) - app.now()).total_seconds())
