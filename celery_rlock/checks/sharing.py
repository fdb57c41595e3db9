"""Whether those who are to share something do: a key, a server, a result."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from celery.backends.base import DisabledBackend

from celery_rlock.checks.finding import Finding, NotChecked, error, named, warn
from celery_rlock.checks.setup import Locked, Setup

_HERE = re.compile(r"localhost|127\.[\d.]+|::1|0\.0\.0\.0|/.*|", re.IGNORECASE)


def look_at_keys(setup: Setup) -> Iterator[Finding]:
    sharing = defaultdict(list)
    for one in setup.tasks:
        for template in _templates(one):
            sharing[template].append(one)
    for template, tasks in sharing.items():
        leases = sorted({one.options.ttl for one in tasks})
        if len(leases) > 1:
            yield warn(
                f"{named(one.name for one in tasks)} share the key {template!r}, but their lock_ttl are "
                f"{', '.join(f'{lease:g}' for lease in leases)} s",
                "give them one lock_ttl: how long the key stays taken when a host dies depends on who had it",
            )


def _templates(one: Locked) -> set[str]:
    """What its keys look like, whatever the arguments are called."""
    keys = one.options.key
    several = keys if isinstance(keys, list | tuple) else [keys]
    return {re.sub(r"\{[^{}]*\}", "{}", key) for key in several if isinstance(key, str)}


def look_at_shared(setup: Setup) -> Iterator[Finding]:
    """A lock server on this host, with a broker elsewhere, is not everybody's."""
    client: Any = setup.scripts.client
    options = getattr(getattr(client, "connection_pool", None), "connection_kwargs", None)
    if options is None:
        raise NotChecked("this client does not tell its address")
    lock = str(options.get("path") or options.get("host") or "")
    broker = str(setup.app.connection_for_write().hostname or "")
    if lock and _is_here(lock) and not _is_here(broker):
        published = [one.name for one in setup.tasks if one.options.from_ == "publish"]
        whom = f", and so does whoever publishes {named(published)}" if published else ""
        yield error(
            f"the locks are on {lock}, the broker is on {broker}: each host locks on a server of its "
            f"own{whom}",
            "set rlock_url to one server that every worker and publisher reaches under that name",
        )


def _is_here(host: str) -> bool:
    return _HERE.fullmatch(host) is not None


def look_at_results(setup: Setup) -> Iterator[Finding]:
    disabled = isinstance(setup.app.backend, DisabledBackend)
    unstored = [one for one in setup.tasks if disabled or one.task.ignore_result]
    skipped = [one.name for one in unstored if one.options.busy == "skip"]
    if skipped:
        yield warn(
            f'no result is stored of {named(skipped)}: that a task was skipped (lock_busy="skip") shows in '
            "the "
            "log and in events only",
            "set result_backend, and not ignore_result, if somebody is to see the state REVOKED",
        )
    joined = [one.name for one in unstored if _returns_existing(one)]
    if joined:
        yield warn(
            f"no result is stored of {named(joined)}: the AsyncResult that a duplicate is given "
            '(lock_duplicate="existing") never becomes ready',
            'set result_backend, and not ignore_result; or lock_duplicate="raise"',
        )


def _returns_existing(one: Locked) -> bool:
    return (
        one.options.from_ == "publish" and one.options.duplicate == "existing" and not one.task.ignore_result
    )
