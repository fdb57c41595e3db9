"""Checks whether the lock's user may run every command it needs, by running each on the doctor's own key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from celery_rlock.doctor.findings import Finding, error, ok, warn
from celery_rlock.doctor.primary import Primary
from celery_rlock.doctor.setup import Setup, each_primary

#: The commands of a lock, sent by a worker or called by the scripts.
_FOR_LOCKS = """
EVALSHA 0 1 <lock>
EVAL return(1) 1 <lock>
PUBLISH <channel> probe
TIME
HSET <lock> @probe 1
HKEYS <lock>
HGET <lock> @probe
HGETALL <lock>
HMGET <lock> @probe
HEXISTS <lock> @probe
HDEL <lock> @probe
PTTL <lock>
PEXPIRE <lock> 1000
EXISTS <lock>
DEL <lock>
SET <token> 1 PX 1000
GET <token>
GETDEL <token>
ZADD <waiters> NX 1 probe
PEXPIRE <waiters> 1000
ZRANGE <waiters> 0 -1
ZRANK <waiters> probe
ZREVRANGE <waiters> 0 0
ZREM <waiters> probe
"""

#: In addition, for tasks with `lock_replicas`.
_FOR_REPLICAS = "WAIT 0 1"

#: In addition, for `celery rlock ls`, `show`, `watch`, `doctor` and `exporter`.
_FOR_OPERATORS = """
INFO server
DBSIZE
SCAN 0 COUNT 1
HSCAN <lock> 0
ZCARD <waiters>
PUBSUB NUMSUB <channel>
"""


def _names(commands: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line.split()[0] for line in commands.split("\n") if line))


#: Every command that a lock needs.
NEEDED = ("SUBSCRIBE", *_names(_FOR_LOCKS))

#: Every further command that operators need.
NEEDED_BY_OPERATORS = _names(_FOR_OPERATORS)


@each_primary
def check_rights(primary: Primary, setup: Setup) -> Iterator[Finding]:
    user = _user(primary)
    commands = _FOR_LOCKS + _FOR_REPLICAS if setup.replicas else _FOR_LOCKS
    refused = dict(_refused(primary, setup, commands))
    if why := _refusal(partial(_subscribe, primary, setup)):
        refused["SUBSCRIBE"] = why
    unknown = [command for command, why in refused.items() if _is_unknown(why)]
    if unknown:
        yield error(
            f"the server does not know {', '.join(unknown)}: {refused[unknown[0]]}",
            "upgrade the server; undo rename-command in its configuration; a proxy must pass these on",
        )
        return
    if refused:
        reason = next(iter(refused.values()))
        yield error(f"user {user!r} is refused {', '.join(refused)}: {reason}", _grant(user, refused, setup))
        return
    optional = {} if primary.in_memory else dict(_refused(primary, setup, _FOR_OPERATORS))
    if "INFO" in optional and _is_unknown(optional["INFO"]):
        yield warn(
            "the server does not know INFO: locks work, but the server's settings are not checked",
            "look at the server's settings yourself",
        )
        return
    if "INFO" in optional:
        yield warn(
            f"user {user!r} is refused {', '.join(optional)}: locks work, but the server's settings are not "
            "checked",
            _grant(user, {"INFO": optional["INFO"]}, setup),
        )
        return
    # A user of its own for those who look is the safer choice, so this is no warning.
    but = f", but not {', '.join(optional)}: celery rlock ls needs another user" if optional else ""
    yield ok(f"user {user!r} may run every command that locks need{but}")


def _refused(primary: Primary, setup: Setup, commands: str) -> Iterator[tuple[str, str]]:
    """The commands that the server refuses, each with its reason."""
    places = {
        "<lock>": primary.probe.lock,
        "<token>": primary.probe.token,
        "<waiters>": primary.probe.waiters,
        "<channel>": f"{setup.lock_server.channels}doctor",
    }
    for line in filter(None, commands.split("\n")):
        words = [places.get(word, word) for word in line.split()]
        if why := _refusal(partial(primary.client.execute_command, *words)):
            yield words[0], why


def _refusal(do: Callable[[], object]) -> str:
    """Why the server refuses this; empty if it does not."""
    try:
        do()
    except NoPermissionError as refusal:
        return str(refusal)
    except ResponseError as answer:
        if _is_unknown(str(answer)):
            return str(answer)
        # The server permits it, for it looks at the rights first. Other checks find out what else is wrong.
    return ""


def _is_unknown(why: str) -> bool:
    return "unknown command" in why.lower()


def _subscribe(primary: Primary, setup: Setup) -> None:
    with primary.client.pubsub() as pubsub:
        pubsub.subscribe(f"{setup.lock_server.channels}doctor")
        pubsub.get_message(timeout=setup.timeout)


def _user(primary: Primary) -> str:
    try:
        name = primary.client.acl_whoami()
    except ResponseError:
        name = _login(primary.client.connection_pool.connection_kwargs)
    return name.decode() if isinstance(name, bytes) else str(name)


def _login(options: dict[str, Any]) -> str:
    """The user's name, from the URL (our client keeps it in a provider) or from the user's own client."""
    provider = options.get("credential_provider")
    login = provider.get_credentials() if provider else (options.get("username"), "")
    return str((login[0] if len(login) > 1 else "") or "default")


def _grant(user: str, refused: dict[str, str], setup: Setup) -> str:
    rights = {_right(command, why, setup) for command, why in refused.items()}
    return f"ACL SETUSER {user} {' '.join(sorted(rights))}"


def _right(command: str, why: str, setup: Setup) -> str:
    if "access" not in why:
        return "+pubsub|numsub" if command == "PUBSUB" else f"+{command.lower()}"
    if "channel" in why:
        return f"&{setup.lock_server.channels}*"
    return f"~{setup.lock_server.prefix}*"
