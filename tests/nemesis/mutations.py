"""Defects of the client that the nemesis must find: a process installs one of them before it begins."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha1
from typing import Any

from celery_rlock.core import renewal
from celery_rlock.core.lease import Lease
from celery_rlock.server import lock_server
from celery_rlock.server.script import Script

_FENCE = "(ARGV[2] == '' or ARGV[2] == held[2] or ARGV[2] == held[4])"


def release_is_not_fenced() -> None:
    """A release that arrives late frees the next hold of the same owner."""
    source = lock_server._RELEASE.source
    if _FENCE not in source:
        raise ValueError("lua/release.lua has changed, so this mutation needs another text")
    lock_server._RELEASE = _changed(source.replace(_FENCE, "true"))


def renewal_ignores_the_reply() -> None:
    """A renewal that is refused or fails counts as done."""
    note = renewal.ServerRenewer._note

    def ignoring(self: Any, lease: Any, asked: Any, _answer: object, sent: float) -> None:
        note(self, lease, asked, True, sent)

    renewal.ServerRenewer._note = ignoring


def lease_is_never_checked() -> None:
    """A holder relies on its lock until a renewal is refused, however long it stood still."""
    Lease.held = property(lambda self: self.depth > 0 and self.lost is None)
    Lease.check_deadline = lambda self: None
    renewal.Renewer._watch = lambda self: 1.0


def owner_is_not_checked() -> None:
    """An acquire takes the lock although another owner has it, as `SET` without `NX` would."""
    old, source = "if holder and not is_mine then", lock_server._ACQUIRE.source
    if old not in source:
        raise ValueError("lua/acquire.lua has changed, so this mutation needs another text")
    lock_server._ACQUIRE = _changed(source.replace(old, "if false then"))


def _changed(source: str) -> Script:
    return Script(source, sha1(source.encode(), usedforsecurity=False).hexdigest())


MUTATIONS: dict[str, Callable[[], None]] = {
    change.__name__: change
    for change in (
        release_is_not_fenced,
        renewal_ignores_the_reply,
        lease_is_never_checked,
        owner_is_not_checked,
    )
}


def install(name: str) -> None:
    """Put the defect of this name into this process; without a name, none."""
    if name:
        MUTATIONS[name]()
