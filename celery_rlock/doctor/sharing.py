"""Whether those who are to share something do: a key, a server, a result."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from celery.backends.base import DisabledBackend

from celery_rlock import settings
from celery_rlock.checks.finding import Finding, NotChecked, error, named, warn
from celery_rlock.checks.setup import Locked, Setup
from celery_rlock.core.url import parse
from celery_rlock.errors import ConfigurationError

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
    locks = _addresses(setup)
    broker = str(setup.app.connection_for_write().hostname or "")
    if all(map(_is_here, locks)) and not _is_here(broker):
        published = [one.name for one in setup.tasks if one.options.from_ == "publish"]
        whom = f", and so does whoever publishes {named(published)}" if published else ""
        yield error(
            f"the locks are on {named(locks)}, the broker is on {broker}: each host locks on a server of its "
            f"own{whom}",
            "set rlock_url to one server that every worker and publisher reaches under that name",
        )


def _addresses(setup: Setup) -> list[str]:
    """As they are written: nobody is asked, for this is looked at while a worker starts."""
    if setup.app.conf.get("rlock_client") is not None:
        raise NotChecked("rlock_client decides where the locks are")
    try:
        target = parse(settings.lock_url(setup.app))
    except ConfigurationError as wrong:
        raise NotChecked("where the locks are cannot be understood") from wrong
    if target.kind == "sentinel":
        raise NotChecked("Sentinel decides where the locks are")
    return [str(target.options["path"])] if target.kind == "unix" else [host for host, _ in target.nodes]


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
