"""Reads the lock server's URL and TLS options."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from celery_rlock.errors import ConfigurationError, did_you_mean

Kind = Literal["standalone", "unix", "sentinel", "cluster", "memory"]

#: The kind of server that each scheme stands for, and whether it uses TLS.
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
    "memory": ("memory", False),
}
_PORTS = {"standalone": 6379, "sentinel": 26379, "cluster": 6379}

TLS_OPTIONS: dict[str, type] = {
    "ssl_cert_reqs": str,
    "ssl_ca_certs": str,
    "ssl_ca_path": str,
    "ssl_ca_data": str,
    "ssl_certfile": str,
    "ssl_keyfile": str,
    "ssl_password": str,
    "ssl_check_hostname": bool,
}

_CERT_REQS = {
    ssl.CERT_NONE: "none",
    ssl.CERT_OPTIONAL: "optional",
    ssl.CERT_REQUIRED: "required",
}

_SENTINEL_OPTIONS: dict[str, type] = {
    "sentinel_username": str,
    "sentinel_password": str,
    "sentinel_ssl": bool,
}
#: What may stand in a URL's query.
_QUERY: dict[str, type] = {
    "db": int,
    "virtual_host": int,  # as kombu calls it
    "username": str,
    "password": str,
    "socket_timeout": float,
    "socket_connect_timeout": float,
    "socket_keepalive": bool,
    "health_check_interval": float,
    "retry_on_timeout": bool,  # accepted because Celery accepts it; the lock retries nothing silently
    "max_connections": int,
    "client_name": str,
    "ssl": bool,
    "master_name": str,
    **_SENTINEL_OPTIONS,
    **TLS_OPTIONS,
}
_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}

#: The numbers that an option may have; others would raise inside redis-py, or wait for ever.
_BOUNDS: dict[str, tuple[float, float]] = {
    "db": (0, 10**9),
    "virtual_host": (0, 10**9),
    "socket_timeout": (0.001, 86_400),
    "socket_connect_timeout": (0.001, 86_400),
    "health_check_interval": (0, 86_400),
    "max_connections": (1, 2**31),
}
_LAST_PORT = 65_535

#: Schemes that people write by mistake, or that Celery uses. Any other text before :// may be a secret.
_OTHER_SCHEMES = ("amqp", "amqps", "pyamqp", "http", "https", "rpc", "tcp")

#: Options whose values are not shown.
_SECRET = {"username", "password", "sentinel_username", "sentinel_password", "ssl_password", "ssl_ca_data"}

_HOST = r"(?:\[[0-9a-fA-F:.]+\]|[\w.-]*)(?::\d{1,5})?"
#: A URL whose parts cannot be mistaken for each other, wherever a password may stand. After an empty login,
#: what looks like a host may be a password.
_CLEAR = re.compile(
    rf"(?P<scheme>[a-z+]+)://(?P<login>(?!:*@)[^@/?#]*@)?(?P<hosts>{_HOST}(?:,{_HOST})*)"
    r"(?P<path>/[\w./-]*)?(?:\?(?P<query>[^#@]*))?",
    re.ASCII,
)
_NAME = re.compile(r"[\w.-]*", re.ASCII)
_PLAIN = re.compile(r"[\w.,:/+-]*", re.ASCII)
_LONGEST = 4096


class _Wrong(ValueError):
    """Says what is wrong with a URL. It repeats nothing from the URL, because any part may be a password."""


@dataclass
class ServerAddress:
    """Where the locks are, and how to connect. Its repr shows no option, because some are passwords."""

    kind: Kind
    nodes: list[tuple[str, int]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict, repr=False)  # under redis-py's names
    tls: bool = False
    master_name: str = ""
    sentinel_options: dict[str, Any] = field(default_factory=dict, repr=False)


def parse(url: str) -> ServerAddress:
    """Raises ConfigurationError, which says what is wrong and shows no password."""
    try:
        return _joined([_parse_one(part) for part in _split(url)])
    except _Wrong as error:
        why = str(error)
    except ValueError:  # its text may repeat a part of the URL
        why = "it cannot be read"
    raise ConfigurationError(f"cannot use the lock's URL {hide_password(url)!r}: {why}")


def _joined(parts: list[ServerAddress]) -> ServerAddress:
    """The address of all sentinels, or all nodes of a Cluster. An option may stand in any of the URLs."""
    address = parts[0]
    if len(parts) > 1 and {part.kind for part in parts} not in ({"sentinel"}, {"cluster"}):
        raise _Wrong("it names several servers: use sentinel:// or redis+cluster:// for these")
    for other in parts[1:]:
        address.nodes += other.nodes
        address.options = {**other.options, **address.options}
        address.tls = address.tls or other.tls
        address.master_name = address.master_name or other.master_name
        address.sentinel_options = {**other.sentinel_options, **address.sentinel_options}
    return address


def understands(url: object) -> bool:
    """Whether this is the URL of a Redis, of Celery's, that the lock can use.

    Celery's own `memory://` is not: only `rlock_url` may put the locks into the memory of a process.
    """
    scheme = url.partition("://")[0] if isinstance(url, str) else ""
    return scheme in SCHEMES and scheme != "memory"


def hide_password(url: str) -> str:
    """The URL with *** in place of each password.

    Of a malformed URL no more than the scheme is shown: nothing tells where in it the password is.
    """
    return ";".join(map(_hidden, _split(url)))


def _hidden(url: str) -> str:
    clear = _CLEAR.fullmatch(url) if len(url) <= _LONGEST else None
    scheme = url.partition(":")[0]
    if scheme not in SCHEMES and scheme not in _OTHER_SCHEMES:
        return "***"
    if clear is None:
        return f"{scheme}://***" if "://" in url else f"{scheme}:***"
    login = "***@" if clear["login"] else ""  # all of it, because some people write the password first
    path = clear["path"] or ""
    if path.strip("/0123456789") and SCHEMES.get(scheme, ("",))[0] != "unix":
        path = "/***"
    query = "" if clear["query"] is None else "?" + "&".join(map(_hidden_option, clear["query"].split("&")))
    return f"{scheme}://{login}{clear['hosts']}{path}{query}"


def _hidden_option(option: str) -> str:
    name, _, value = option.partition("=")
    if name not in _QUERY:
        return "***"
    return option if name not in _SECRET and _PLAIN.fullmatch(value) else f"{name}=***"


def _split(url: str) -> list[str]:
    """Celery writes several sentinels as several URLs, separated by semicolons."""
    return re.split(r";(?=[\w+]+://)", url)


def _parse_one(url: str) -> ServerAddress:
    scheme, found, rest = url.partition("://")
    if not found:
        raise _Wrong("it is empty" if not url else "it begins with no scheme: write redis://HOST:6379/0")
    if scheme not in SCHEMES:
        shown = scheme if scheme in _OTHER_SCHEMES else ""
        raise _Wrong(f"unknown scheme {shown!r}: use one of {', '.join(SCHEMES)}")
    kind, with_tls = SCHEMES[scheme]
    if kind == "memory":
        return _in_memory(rest)
    try:
        rest.encode()
        parts = urlsplit(f"//{rest}")
    except ValueError:
        raise _Wrong("its host is not one") from None
    login, _, hosts = parts.netloc.rpartition("@")
    if parts.fragment or "@" in parts.query or "@" in parts.path or ":" in parts.path:
        # Perhaps a password, or a path: only the user can tell.
        raise _Wrong("write /, ?, #, @ and : in a password or a path as %2F, %3F, %23, %40 and %3A")
    user, _, password = login.partition(":")
    query = _query(parts.query)
    credentials = {"username": unquote(user) or None, "password": unquote(password) or None}
    options = {name: value for name, value in credentials.items() if value is not None}
    if with_tls and query.get("ssl") is False:
        raise _Wrong(f"{scheme}:// means TLS, but it says ssl=false")
    address = ServerAddress(
        kind, tls=bool(query.pop("ssl", with_tls)), master_name=query.pop("master_name", "")
    )
    for name in _SENTINEL_OPTIONS:
        if name in query:
            address.sentinel_options[name.removeprefix("sentinel_")] = query.pop(name)
    query.pop("retry_on_timeout", None)
    query.setdefault("db", query.pop("virtual_host", 0))
    address.options = options | query
    if kind == "unix":
        address.options["path"] = unquote(hosts + parts.path)
    else:
        address.nodes = [_node(host, _PORTS[kind]) for host in hosts.split(",")]
        address.options["db"] = _database(parts.path) or query["db"]
    _check(address)
    return address


def _in_memory(rest: str) -> ServerAddress:
    name = rest.rstrip("/")
    if not _NAME.fullmatch(name):
        raise _Wrong("a name may follow memory://, of letters, digits, dots, hyphens and underscores")
    return ServerAddress("memory", options={"name": name})


def _check(address: ServerAddress) -> None:
    if address.kind == "unix":
        path = address.options["path"]
        if not path.startswith("/") or "\0" in path:
            raise _Wrong("it names no socket: write unix:///path/of/the.sock")
    if address.kind == "standalone" and len(address.nodes) > 1:
        raise _Wrong("it names several servers: use sentinel:// or redis+cluster:// for these")
    if address.kind == "cluster" and address.options.pop("db"):
        raise _Wrong("a Cluster has no database but 0")


def _node(text: str, default: int) -> tuple[str, int]:
    match = re.fullmatch(r"(\[[0-9a-fA-F:.%\w]+\]|[^:\[\]]*)(?::([0-9]{1,5}))?", text)
    host = unquote(match[1]).strip("[]") if match else ""
    port = int(match[2] or default) if match else 0
    if not (match and _is_host(host) and 0 < port <= _LAST_PORT):
        raise _Wrong("its host or port is not one: is a /, ?, # or @ in its password not written as %XX?")
    return host or "localhost", port


def _is_host(text: str) -> bool:
    """Whether a resolver can be asked for it; otherwise it raises an error that is not an OSError."""
    try:
        text.encode("idna")
    except UnicodeError:
        return False
    return re.fullmatch(r"[\w.:%-]*", text) is not None


def _database(path: str) -> int:
    text = path.strip("/")
    if not re.fullmatch(r"[0-9]{0,9}", text):
        raise _Wrong("its database, after the host, must be a number")
    return int(text or 0)


def _query(text: str) -> dict[str, Any]:
    if ";" in text:  # what follows may be an option, perhaps a password, or a part of this value
        raise _Wrong("write & between its options, and ; in one of them as %3B")
    found = {}
    for number, (name, value) in enumerate(parse_qsl(text, keep_blank_values=True), 1):
        if name not in _QUERY:
            raise _Wrong(f"its option {number} is not known{did_you_mean(name, _QUERY)}")
        found[name] = _typed(name, value)
    return found


def _typed(name: str, value: str) -> Any:
    kind = _QUERY[name]
    try:
        typed = _WORDS[value.lower()] if kind is bool else kind(value)
    except (KeyError, ValueError):
        wanted = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
        raise _Wrong(f"its option {name} must be {wanted}") from None
    low, high = _BOUNDS.get(name, (None, None))
    if low is not None and high is not None and not low <= typed <= high:
        raise _Wrong(f"its option {name} must be between {low:g} and {high:g}")
    return typed


def tls_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """TLS options as redis-py wants them, from the forms that Celery's settings and URLs use.

    `ssl_cert_reqs` may be ssl.CERT_REQUIRED, "CERT_REQUIRED" or "required". It is required by default.
    """
    found = {_tls_name(name): value for name, value in given.items()}
    found["ssl_cert_reqs"] = _cert_reqs(found.get("ssl_cert_reqs", ssl.CERT_REQUIRED))
    if found["ssl_cert_reqs"] == "none":
        found["ssl_check_hostname"] = False
    else:
        found.setdefault("ssl_check_hostname", True)
    return found


def _tls_name(name: str) -> str:
    """`broker_use_ssl` may leave out the `ssl_` in front, as for RabbitMQ."""
    full = name if name.startswith("ssl_") else f"ssl_{name}"
    if full not in TLS_OPTIONS:
        raise ConfigurationError(f"unknown TLS option {name!r}: there are {', '.join(TLS_OPTIONS)}")
    return full


def _cert_reqs(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, int) and value in _CERT_REQS:
        return _CERT_REQS[ssl.VerifyMode(value)]
    word = re.sub(r"^cert_", "", str(value).lower())
    if word not in _CERT_REQS.values():
        raise ConfigurationError("ssl_cert_reqs must be required, optional or none")
    return word
