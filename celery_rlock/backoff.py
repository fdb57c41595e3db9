"""How long a waiter stays away."""

from __future__ import annotations

import random

from celery_rlock.options import Options

#: Longer than the holder's lease nobody needs to wait: by then it is free or renewed.
_AFTER_LEASE = 0.05


def delay(options: Options, attempt: int, lease_left: float | None = None) -> float:
    """Seconds until the next attempt (the first is 0): exponential, capped, with full jitter."""
    longest = min(options.backoff_max, options.backoff * 2 ** min(attempt, 50))
    chosen = random.uniform(0, longest) if options.jitter else longest  # noqa: S311 - jitter, not a secret
    return chosen if lease_left is None else min(chosen, lease_left + _AFTER_LEASE)
