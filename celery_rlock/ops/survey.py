"""How many locks there are and who waits, counted in Redis without holding it up."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from celery_rlock.core.name import QUEUED, RESTING
from celery_rlock.core.scripts import text

if TYPE_CHECKING:
    from celery_rlock.core.scripts import Scripts

HELD = "held"
STATES = (HELD, QUEUED, RESTING)

_PAGE = 500
_MOST_LOCKS = 100_000
_WAITERS = ":waiters"


@dataclass
class Survey:
    """What was found; `is_complete` is False when it took too long, or there were too many to count."""

    locks: Counter[tuple[str, str]] = field(default_factory=Counter)  #: by label and state
    waiters: Counter[str] = field(default_factory=Counter)  #: by the label of whom they wait for
    oldest: dict[str, float] = field(default_factory=dict)  #: seconds that the oldest is held, by label
    is_complete: bool = False
    seconds: float = 0.0


def survey(scripts: Scripts, label: Callable[[str], str], longest: float) -> Survey:
    """Count all locks, for at most `longest` seconds. Whatever redis-py raises is raised.

    SCAN in small pages: no command keeps the server busy for more than a moment.
    """
    found, start = Survey(), monotonic()
    seen: set[str] = set()
    keys = map(text, scripts.client.scan_iter(match=f"{_literally(scripts.prefix)}{{*", count=_PAGE))
    for page in _pages(keys):
        new = [key for key in dict.fromkeys(page) if key not in seen]
        seen.update(new)
        _count_locks(found, scripts, label, [key for key in new if key.endswith("}")])
        _count_waiters(found, scripts, label, [key for key in new if key.endswith(_WAITERS)])
        if monotonic() - start > longest or len(seen) > _MOST_LOCKS:
            break
    else:
        found.is_complete = True
    found.seconds = monotonic() - start
    return found


def _count_locks(found: Survey, scripts: Scripts, label: Callable[[str], str], keys: list[str]) -> None:
    now = time()
    for answer in _ask(scripts, [("HGETALL", key) for key in keys]):
        if isinstance(answer, Exception) or not answer:
            continue  # gone meanwhile, or something that is not a lock
        fields = _as_dict(answer)
        task = label(fields.get("@task", ""))
        state = _state(fields)
        found.locks[task, state] += 1
        if state == HELD:
            age = max(0.0, now - float(fields.get("@since", now)))
            found.oldest[task] = max(age, found.oldest.get(task, 0.0))


def _count_waiters(found: Survey, scripts: Scripts, label: Callable[[str], str], keys: list[str]) -> None:
    counts = _ask(scripts, [("ZCARD", key) for key in keys])
    tasks = _ask(scripts, [("HGET", key.removesuffix(_WAITERS), "@task") for key in keys])
    for count, task in zip(counts, tasks, strict=True):
        if isinstance(count, int):
            known = task is not None and not isinstance(task, Exception)
            found.waiters[label(text(task) if known else "?")] += count


def _ask(scripts: Scripts, commands: list[tuple[str, ...]]) -> list[Any]:
    if not commands:
        return []
    with scripts.client.pipeline(transaction=False) as pipe:
        for command in commands:
            pipe.execute_command(*command)
        return pipe.execute(raise_on_error=False)


def _as_dict(answer: Any) -> dict[str, str]:
    pairs = answer.items() if isinstance(answer, dict) else zip(answer[::2], answer[1::2], strict=True)
    return {text(name): text(value) for name, value in pairs}


def _state(fields: dict[str, str]) -> str:
    owner = next((name for name in fields if not name.startswith("@")), "")
    delivery = owner.partition(":")[0]
    return delivery if delivery in {QUEUED, RESTING} else HELD


def _pages(keys: Iterator[str]) -> Iterator[list[str]]:
    while page := list(islice(keys, _PAGE)):
        yield page


def _literally(prefix: str) -> str:
    """The prefix as a pattern that only it matches."""
    return re.sub(r"([\\*?\[\]])", r"\\\1", prefix)
