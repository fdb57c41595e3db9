"""The server's clock: tokens and waiters' places are made of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from redis.exceptions import NoPermissionError

from celery_rlock.checks.finding import Finding, NotChecked, error, ok, warn
from celery_rlock.checks.primary import Primary, each_primary
from celery_rlock.checks.setup import Setup

_SAMPLES = 10
_PAUSE = 0.03
_FAR = 1.0
_JUMP = 0.2


class Sample(NamedTuple):
    """The server's time, and between which moments of ours it said so."""

    server: float
    local: float
    before: float  # monotonic
    after: float

    @property
    def unsure(self) -> float:
        return self.after - self.before

    @property
    def ahead(self) -> float:
        return self.server - self.local


@each_primary
def look_at_clock(primary: Primary, _: Setup) -> Iterator[Finding]:
    try:
        samples = [_sample(primary) for _ in range(_SAMPLES)]
    except NoPermissionError as refusal:
        raise NotChecked("the user may not run TIME") from refusal
    yield from judge(samples)


def judge(samples: list[Sample]) -> Iterator[Finding]:
    """Whether the server's clock runs as ours does, and shows the same time."""
    jump = max(map(_jump, samples, samples[1:]), default=0.0)
    best = min(samples, key=lambda sample: sample.unsure)
    if jump > _JUMP:
        yield error(
            f"the server's clock jumps: by {jump:.1f} s within {samples[-1].after - samples[0].before:.1f} s",
            "let chrony or ntpd slew it instead of setting it; when it goes back by more than a minute, "
            "tokens may not grow",
        )
    elif abs(best.ahead) - best.unsure > _FAR:
        way = "ahead of" if best.ahead > 0 else "behind"
        yield warn(
            f"the server's clock is {abs(best.ahead):.1f} s {way} that of this host",
            "synchronize both (chrony, ntpd): ETA, expires and a lock's age are compared between hosts",
        )
    else:
        yield ok(f"the server's clock is within {abs(best.ahead) + best.unsure:.3f} s of this host's")


def _sample(primary: Primary) -> Sample:
    time.sleep(_PAUSE)
    before, local = time.monotonic(), time.time()
    seconds, micros = primary.client.time()
    after = time.monotonic()
    return Sample(seconds + micros / 1e6, local + (after - before) / 2, before, after)


def _jump(one: Sample, next_one: Sample) -> float:
    """By how much more or less time passed there than here, for sure."""
    apart = abs((next_one.server - one.server) - (next_one.before - one.before))
    return apart - one.unsure - next_one.unsure
