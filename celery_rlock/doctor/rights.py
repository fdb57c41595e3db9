"""Whether the lock's user may do all that the lock does: each command is tried, on the probe's own keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from celery_rlock.checks.finding import Finding, error, ok, warn
from celery_rlock.checks.primary import Primary, each_primary
from celery_rlock.checks.setup import Setup

#: What a lock needs, itself or in its scripts.
_FOR_LOCKS = """
EVALSHA 0 1 <lock>
EVAL return(1) 1 <lock>
PUBLISH <channel> probe
TIME
HSET <lock> @probe 1
HKEYS <lock>
HGET <lock> @probe
HMGET <lock> @probe
HEXISTS <lock> @probe
HDEL <lock> @probe
PTTL <lock>
PEXPIRE <lock> 1000
EXISTS <lock>
DEL <lock>
SET <token> 1 PX 1000
GETDEL <token>
ZADD <waiters> NX 1 probe
PEXPIRE <waiters> 1000
ZRANGE <waiters> 0 -1
ZPOPMIN <waiters>
ZREM <waiters> probe
"""

#: And for tasks with `lock_replicas`.
_FOR_REPLICAS = "WAIT 0 1"

#: What only those who look at locks need.
_FOR_PEOPLE = """
INFO server
SCAN 0 COUNT 1
HGETALL <lock>
"""

NEEDED = ("SUBSCRIBE", *dict.fromkeys(line.split()[0] for line in _FOR_LOCKS.split("\n") if line))


@each_primary
def look_at_rights(primary: Primary, setup: Setup) -> Iterator[Finding]:
    user = _user(primary)
    commands = _FOR_LOCKS + _FOR_REPLICAS if setup.replicas else _FOR_LOCKS
    needed = dict(_refused(primary, setup, commands))
    if why := _refusal(lambda: _subscribe(primary, setup)):
        needed["SUBSCRIBE"] = why
    if needed:
        reason = next(iter(needed.values()))
        yield error(f"user {user!r} is refused {', '.join(needed)}: {reason}", _grant(user, needed, setup))
        return
    optional = dict(_refused(primary, setup, _FOR_PEOPLE))
    if optional:
        yield warn(
            f"user {user!r} is refused {', '.join(optional)}: locks do without, but you see less of them",
            _grant(user, optional, setup),
        )
    else:
        yield ok(f"user {user!r} may run every command that locks need")


def _refused(primary: Primary, setup: Setup, commands: str) -> Iterator[tuple[str, str]]:
    """The commands that are, and why."""
    places = {
        "<lock>": primary.probe.lock,
        "<token>": primary.probe.token,
        "<waiters>": primary.probe.waiters,
        "<channel>": f"{setup.scripts.channels}doctor",
    }
    for line in filter(None, commands.split("\n")):
        words = [places.get(word, word) for word in line.split()]
        if why := _refusal(lambda words=words: primary.client.execute_command(*words)):  # type: ignore[misc]
            yield words[0], why


def _refusal(do: Callable[[], object]) -> str:
    try:
        do()
    except NoPermissionError as refusal:
        return str(refusal)
    except ResponseError:
        pass  # it was permitted; what else is wrong with it others find
    return ""


def _subscribe(primary: Primary, setup: Setup) -> None:
    with primary.client.pubsub() as pubsub:
        pubsub.subscribe(f"{setup.scripts.channels}doctor")
        pubsub.get_message(timeout=setup.timeout)


def _user(primary: Primary) -> str:
    try:
        name = primary.client.acl_whoami()
    except ResponseError:
        name = _login(primary.client.connection_pool.connection_kwargs)
    return name.decode() if isinstance(name, bytes) else str(name)


def _login(options: dict[str, Any]) -> str:
    """The user's name as it stands in the URL, which the client keeps apart, or in a client of one's own."""
    provider = options.get("credential_provider")
    login = provider.get_credentials() if provider else (options.get("username"), "")
    return str((login[0] if len(login) > 1 else "") or "default")


def _grant(user: str, refused: dict[str, str], setup: Setup) -> str:
    rights = {_right(command, why, setup) for command, why in refused.items()}
    return f"ACL SETUSER {user} {' '.join(sorted(rights))}"


def _right(command: str, why: str, setup: Setup) -> str:
    if "access" not in why:
        return f"+{command.lower()}"
    if "channel" in why:
        return f"&{setup.scripts.channels}*"
    return f"~{setup.scripts.prefix}*"
