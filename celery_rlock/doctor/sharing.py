"""Checks of what several processes must share: a key's lease, the lock server, the results."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from celery.backends.base import DisabledBackend

from celery_rlock import settings
from celery_rlock.doctor.findings import (
    CouldNotLook,
    Finding,
    NotChecked,
    error,
    named,
    not_checked,
    ok,
    warn,
)
from celery_rlock.doctor.setup import Locked, Setup
from celery_rlock.errors import ConfigurationError
from celery_rlock.server.url import parse

#: A host name or a socket path that means this host.
_LOCAL = re.compile(r"localhost|127\.[\d.]+|::1|0\.0\.0\.0|/.*|", re.IGNORECASE)

#: Brokers that are never on this host, although their URL may name no host.
_MANAGED = {"sqs", "azureservicebus", "azurestoragequeues", "gcpubsub"}


def check_keys(setup: Setup) -> Iterator[Finding]:
    sharing = defaultdict(list)
    for locked in setup.examined:
        for template in _templates(locked):
            sharing[template].append(locked)
    for template, tasks in sharing.items():
        leases = sorted({locked.options.ttl for locked in tasks})
        if len(leases) > 1:
            yield warn(
                f"{named(locked.name for locked in tasks)} share the key {template!r}, but their lock_ttl "
                f"differ: {', '.join(f'{lease:g}' for lease in leases)} s",
                "give them the same lock_ttl; otherwise the time until the key is free after a host dies "
                "depends on which task held it",
            )
    computed = [locked for locked in setup.examined if _is_computed(locked)]
    if computed and len({locked.options.ttl for locked in setup.examined}) > 1:
        yield not_checked(
            f"lock_key of {named(locked.name for locked in computed)} is a callable, and only a call tells "
            "which keys it shares"
        )


def _is_computed(locked: Locked) -> bool:
    keys = locked.options.key
    return any(map(callable, keys if isinstance(keys, list | tuple) else [keys]))


def _templates(locked: Locked) -> set[str]:
    """The task's key templates, with the names of arguments left out."""
    keys = locked.options.key
    several = keys if isinstance(keys, list | tuple) else [keys]
    return {re.sub(r"\{[^{}]*\}", "{}", key) for key in several if isinstance(key, str)}


def check_shared(setup: Setup) -> Iterator[Finding]:
    """If the lock server is on localhost but the broker is not, every host locks on its own server."""
    if settings.in_memory(setup.app):
        yield from _check_memory(setup)
        return
    locks = _addresses(setup)
    connection = setup.app.connection_for_write()
    managed = str(connection.transport_cls) in _MANAGED
    broker = str(connection.transport_cls if managed else connection.hostname or "")
    if all(map(_is_local, locks)) and (managed or not _is_local(broker)):
        published = [locked.name for locked in setup.tasks if locked.options.from_ == "publish"]
        publishers = f", and so does each host that publishes {named(published)}" if published else ""
        yield error(
            f"the lock server is on {named(locks)}, but the broker is on {broker}: each host locks on its "
            f"own server{publishers}",
            "set rlock_url to one server that every worker and publisher reaches by the same name",
        )


def _check_memory(setup: Setup) -> Iterator[Finding]:
    """Locks in memory serve one process, so the broker must be in it too, and the pool must not fork."""
    pool = str(setup.setting("worker_pool", "pool_cls"))
    if setup.broker == "memory" and "prefork" not in pool:
        yield ok("the locks and the broker are in the memory of one process")
        return
    yield error(
        "rlock_url is memory://: each process has locks of its own, so tasks of different processes overlap",
        "use memory:// in unit tests only, with a broker in memory and the pool solo or threads; set "
        "rlock_url to a Redis",
    )


def _addresses(setup: Setup) -> list[str]:
    """The addresses in the URL. No server is asked, because a worker checks this when it starts."""
    if setup.app.conf.get("rlock_client") is not None:
        raise NotChecked("rlock_client decides where the locks are")
    try:
        target = parse(settings.lock_url(setup.app))
    except ConfigurationError as wrong:
        raise CouldNotLook("the URL of the lock server is not valid", "see the check settings") from wrong
    if target.kind == "sentinel":
        raise NotChecked("Sentinel decides where the locks are")
    return [str(target.options["path"])] if target.kind == "unix" else [host for host, _ in target.nodes]


def _is_local(host: str) -> bool:
    return _LOCAL.fullmatch(host) is not None


def check_results(setup: Setup) -> Iterator[Finding]:
    disabled = isinstance(setup.app.backend, DisabledBackend)
    unstored = [locked for locked in setup.examined if disabled or locked.task.ignore_result]
    skipped = [locked.name for locked in unstored if locked.options.busy == "skip"]
    if skipped:
        yield warn(
            f"the results of {named(skipped)} are not stored, so only logs and events show a skip "
            '(lock_busy="skip")',
            "to see the state REVOKED, set result_backend, and do not set ignore_result",
        )
    joined = [locked.name for locked in unstored if _returns_existing(locked)]
    if joined:
        yield warn(
            f"the results of {named(joined)} are not stored, so the AsyncResult that a duplicate call "
            'returns (lock_duplicate="existing") never becomes ready',
            'set result_backend, and do not set ignore_result; or use lock_duplicate="raise"',
        )


def _returns_existing(locked: Locked) -> bool:
    options = locked.options
    return options.from_ == "publish" and options.duplicate == "existing" and not locked.task.ignore_result
