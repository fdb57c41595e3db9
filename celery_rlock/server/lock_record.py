"""One lock as it stands in Redis, in the words that people use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote

from celery_rlock.core.name import QUEUED, RESTING, Name, Owner

HELD = "held"
_STATES = {QUEUED: "queued", RESTING: "resting"}

#: What an execution outside of any task calls its worker and its task: see core/execution.py.
_PROCESS = re.compile(r"\d+@.+")
_THREAD = "thread-"

#: In the Redis name of a long key: what follows is a digest of the whole.
DIGESTED = "%~"


@dataclass(frozen=True)
class Entry:
    """A lock that somebody has: running (held), published and not started (queued), or resting."""

    key: str
    digested: bool  # the key is longer, and Redis has only its beginning and a digest
    name: Name
    state: str
    owner: Owner
    task: str
    since: int  # when it was taken, seconds of the server's clock
    held_for: float
    lease_left: float
    depth: int
    token: int
    waiters: int
    copy: bool  # the holder's message was delivered again, and the copy waits for its end

    @property
    def is_script(self) -> bool:
        """Whether the holder is no worker's: an `RLock`, or a task called directly, in any other process."""
        return bool(_PROCESS.fullmatch(self.owner.worker)) and self.owner.task_id.startswith(_THREAD)


class WaiterEntry(NamedTuple):
    """One who waits for a lock."""

    place: str  # as it stands in Redis: listener:delivery:task-id
    listener: str
    task_id: str
    since: float
    waits_for: float


def entry_of(
    lock: str, prefix: str, fields: Mapping[str, str], *, now: float, lease_ms: int, waiters: int
) -> Entry | None:
    """The lock with these fields; None for a hash that is not a lock, or not any more."""
    owners = [name for name in fields if not name.startswith("@") and ":" in name]
    if len(owners) != 1 or "@token" not in fields or not fields[owners[0]].isdigit():
        return None
    delivery, _, task_id = owners[0].partition(":")
    key, digested = key_in(lock, prefix)
    since = _number(fields.get("@since"))
    return Entry(
        key=key,
        digested=digested,
        name=Name.around(key, lock),
        state=_STATES.get(delivery, HELD),
        owner=Owner(fields.get("@worker", "?"), delivery, task_id),
        task=fields.get("@task", ""),
        since=since,
        held_for=max(0.0, now - since),
        lease_left=max(0, lease_ms) / 1000,
        depth=_number(fields[owners[0]]),
        token=_number(fields["@token"]),
        waiters=waiters,
        copy="@copy" in fields,
    )


def waiter_of(place: str, since_us: float, now: float) -> WaiterEntry:
    listener, _, rest = place.partition(":")
    since = since_us / 1_000_000
    return WaiterEntry(place, listener, rest.partition(":")[2], since, max(0.0, now - since))


def key_in(lock: str, prefix: str) -> tuple[str, bool]:
    """The key that has this name in Redis; of a long one its beginning and digest as they are, and True."""
    escaped = lock.removeprefix(prefix).removeprefix("{").removesuffix("}")
    if DIGESTED in escaped:
        return escaped, True
    return unquote(escaped, errors="surrogatepass"), False


def names_of(key: str, prefix: str) -> list[Name]:
    """What somebody may mean who writes `key`: the key itself, its Redis name, or it as it was shown."""
    names = [Name.of(key, prefix)]
    if key.startswith(prefix + "{") and key.endswith("}"):
        names.append(Name.around(key_in(key, prefix)[0], key))
    if DIGESTED in key:
        names.append(Name.around(key, f"{prefix}{{{key}}}"))
    unescaped = _without_escapes(key)
    if unescaped not in {key, ""}:
        names.append(Name.of(unescaped, prefix))
    return names


def _without_escapes(shown: str) -> str:
    r"""`a\x1bb` as `printable` writes it, with the real character."""
    return re.sub(
        r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[tnr])",
        lambda match: match[0].encode().decode("unicode_escape"),
        shown,
    )


def _number(value: str | None) -> int:
    return int(value) if value and value.isdigit() else 0
