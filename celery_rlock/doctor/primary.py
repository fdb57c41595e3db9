"""The servers that hold the locks: one, or the primaries of a Cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import islice
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError

from celery_rlock.checks.finding import Finding, NotChecked, located
from celery_rlock.core.cluster import primaries, server_of
from celery_rlock.core.name import Name

if TYPE_CHECKING:
    import redis

    from celery_rlock.checks.setup import Setup
    from celery_rlock.core.scripts import Scripts

#: So many keys are tried to find one on each primary of a Cluster.
_PROBES = 10_000


class Primary:
    """A server, and the name of a key on it that nobody else uses."""

    def __init__(self, address: str, client: redis.Redis, probe: Name) -> None:
        self.address, self.client, self.probe = address, client, probe

    @cached_property
    def info(self) -> dict[str, Any]:
        """What INFO says."""
        try:
            return dict(self.client.info())
        except NoPermissionError as refusal:
            raise NotChecked("the user may not run INFO") from refusal

    def clean(self) -> None:
        """Leave nothing of the probe behind."""
        self.client.delete(*self.probe[1:])


def primaries_of(scripts: Scripts) -> list[Primary]:
    """Each with a probe of its own."""
    missing = {address_of(client) for client in primaries(scripts.client)}
    found = []
    for probe in islice(_probes(scripts), _PROBES):
        client = server_of(scripts.client, probe.lock)
        address = address_of(client)
        if address in missing:
            missing.remove(address)
            found.append(Primary(address, client, probe))
        if not missing:
            break
    return found


def address_of(client: redis.Redis) -> str:
    """`host:port`, a socket's path, or how Sentinel calls it."""
    pool: Any = client.connection_pool
    options = pool.connection_kwargs
    if "path" in options:
        return str(options["path"])
    if "host" in options:
        return f"{options['host']}:{options.get('port', 6379)}"
    return str(getattr(pool, "service_name", type(client).__name__))


Look = Callable[["Setup"], Iterable[Finding]]


def each_primary(look: Callable[[Primary, Setup], Iterable[Finding]]) -> Look:
    """Look at every server; where there are several, what is found says which."""

    def look_at_each(setup: Setup) -> Iterator[Finding]:
        primaries = setup.primaries
        for primary in primaries:
            found = look(primary, setup)
            yield from located(found, primary.address) if len(primaries) > 1 else found

    return look_at_each


def _probes(scripts: Scripts) -> Iterator[Name]:
    while True:
        yield scripts.name(f"doctor:{token_hex(8)}")
