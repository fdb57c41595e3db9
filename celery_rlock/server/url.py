"""What a lock server's URL says."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from celery_rlock.core import tls
from celery_rlock.errors import ConfigurationError

Kind = Literal["standalone", "unix", "sentinel", "cluster"]

#: What each scheme means, and whether it is with TLS.
SCHEMES: dict[str, tuple[Kind, bool]] = {
    "redis": ("standalone", False),
    "rediss": ("standalone", True),
    "valkey": ("standalone", False),
    "valkeys": ("standalone", True),
    "unix": ("unix", False),
    "redis+socket": ("unix", False),
    "socket": ("unix", False),
    "sentinel": ("sentinel", False),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
    "valkey+cluster": ("cluster", False),
    "valkeys+cluster": ("cluster", True),
}
_PORTS = {"standalone": 6379, "sentinel": 26379, "cluster": 6379}

_SENTINEL_OPTIONS = ("master_name", "sentinel_username", "sentinel_password")
#: What may stand in a URL's query, besides what is known of TLS.
_QUERY: dict[str, type] = {
    "db": int,
    "virtual_host": int,  # as kombu calls it
    "username": str,
    "password": str,
    "socket_timeout": float,
    "socket_connect_timeout": float,
    "socket_keepalive": bool,
    "health_check_interval": float,
    "retry_on_timeout": bool,  # Celery takes it; here nothing is retried behind the caller's back
    "max_connections": int,
    "client_name": str,
    "ssl": bool,
    **dict.fromkeys(_SENTINEL_OPTIONS, str),
    **tls.OPTIONS,
}
_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass
class Target:
    """Where the locks are."""

    kind: Kind
    nodes: list[tuple[str, int]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)  # of each connection, as redis-py names them
    tls: bool = False
    master_name: str = ""
    sentinel_options: dict[str, Any] = field(default_factory=dict)


def parse(url: str) -> Target:
    """A ConfigurationError names what is wrong, and shows no password."""
    try:
        parts = [_parse_one(part) for part in _split(url)]
    except ValueError as error:
        raise ConfigurationError(f"cannot use the lock's URL {hide_password(url)!r}: {error}") from None
    target = parts[0]
    for other in parts[1:]:
        target.nodes += other.nodes
        target.options = {**other.options, **target.options}
        target.master_name = target.master_name or other.master_name
        target.sentinel_options = {**other.sentinel_options, **target.sentinel_options}
    return target


def understands(url: object) -> bool:
    """Whether the URL's scheme is one of ours."""
    return isinstance(url, str) and url.partition("://")[0] in SCHEMES


def hide_password(url: str) -> str:
    """The URL with *** for each password in it, also where it is not a proper one."""
    hidden = [re.sub(r"(?<=://)([^:@/]*):.*@", r"\1:***@", part, flags=re.DOTALL) for part in _split(url)]
    return re.sub(r"(password=)[^&;]*", r"\1***", ";".join(hidden))


def _split(url: str) -> list[str]:
    """Celery writes several sentinels as several URLs."""
    return re.split(r";(?=[\w+]+://)", url)


def _parse_one(url: str) -> Target:
    scheme, found, rest = url.partition("://")
    if not found or scheme not in SCHEMES:
        raise ValueError(f"unknown scheme {scheme if found else ''!r}: use one of {', '.join(SCHEMES)}")
    kind, with_tls = SCHEMES[scheme]
    try:
        parts = urlsplit(f"//{rest}")
    except ValueError:
        raise ValueError("its host is not one") from None
    login, _, hosts = parts.netloc.rpartition("@")
    if parts.fragment or "@" in parts.query or ("@" in parts.path and (login or kind != "unix")):
        raise ValueError("write /, ?, # and @ in a password as %2F, %3F, %23 and %40")
    user, _, password = login.partition(":")
    query = _query(parts.query)
    credentials = {"username": unquote(user) or None, "password": unquote(password) or None}
    options = {name: value for name, value in credentials.items() if value is not None}
    target = Target(kind, tls=bool(query.pop("ssl", with_tls)), master_name=query.pop("master_name", ""))
    for name in _SENTINEL_OPTIONS[1:]:
        if name in query:
            target.sentinel_options[name.removeprefix("sentinel_")] = query.pop(name)
    query.pop("retry_on_timeout", None)
    query.setdefault("db", query.pop("virtual_host", 0))
    target.options = options | query
    if kind == "unix":
        target.options["path"] = unquote(hosts + parts.path)
    else:
        target.nodes = [_node(host, _PORTS[kind]) for host in hosts.split(",")]
        target.options["db"] = _database(parts.path) or query["db"]
    _check(target)
    return target


def _check(target: Target) -> None:
    if target.kind == "unix" and not target.options["path"].startswith("/"):
        raise ValueError("it names no socket: write unix:///path/of/the.sock")
    if target.kind == "standalone" and len(target.nodes) > 1:
        raise ValueError("it names several servers: use sentinel:// or redis+cluster:// for these")
    if target.kind == "cluster" and target.options.pop("db"):
        raise ValueError("a Cluster has no database but 0")


def _node(text: str, default: int) -> tuple[str, int]:
    match = re.fullmatch(r"(\[[0-9a-fA-F:.%\w]+\]|[^:\[\]]*)(?::(\d+))?", text)
    if match is None:
        raise ValueError("its host or port is not one: is a /, ?, # or @ in its password not written as %XX?")
    return unquote(match[1]).strip("[]") or "localhost", int(match[2] or default)


def _database(path: str) -> int:
    text = path.strip("/")
    if text and not text.isdigit():
        raise ValueError(f"its database must be a number, not {text!r}")
    return int(text or 0)


def _query(text: str) -> dict[str, Any]:
    found = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        if name not in _QUERY:
            close = difflib.get_close_matches(name, _QUERY, 1)
            hint = f", did you mean {close[0]!r}?" if close else f": there are {', '.join(_QUERY)}"
            raise ValueError(f"unknown option {name!r}{hint}")
        found[name] = _typed(name, value)
    return found


def _typed(name: str, value: str) -> Any:
    kind = _QUERY[name]
    try:
        return _WORDS[value.lower()] if kind is bool else kind(value)
    except (KeyError, ValueError):
        wanted = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
        raise ValueError(f"its option {name} must be {wanted}, not {value!r}") from None
