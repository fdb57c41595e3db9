"""The exporter's page: static files, the data beside them as JSON, and the release of a lock.

The page shows text from Redis and from messages. No file here contains any of it: the script gets it as JSON
and puts it into the page as text.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable
from hmac import compare_digest
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from urllib.parse import parse_qs, urlsplit

from celery import Celery

from celery_rlock import settings
from celery_rlock.cli.page_data import PageData, row, shown
from celery_rlock.errors import RLockError
from celery_rlock.log import about, logger
from celery_rlock.server.failures import FAILURES, brief
from celery_rlock.server.inventory import Inventory, release_seen
from celery_rlock.server.lock_record import LockRecord
from celery_rlock.server.replies import ReleaseReply

StartResponse = Callable[..., Any]

#: A page that is open asks this often, in seconds.
REFRESH = 2.0

SHORTEST_TOKEN = 16

#: The page uses its own files and nothing else. No other site can show it in a frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)

_FOLDER = Path(__file__).with_name("static")
_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_LOCKS, _RELEASE = "/locks.json", "/release"

#: In bytes. The page never sends more.
_LONGEST_BODY = 16_384


class Refused(Exception):
    """The request is not answered as asked. The status and the text are the answer."""

    def __init__(self, status: HTTPStatus, text: str, *headers: tuple[str, str]) -> None:
        super().__init__(status, text, headers)
        self.status, self.text, self.headers = status, text, headers


class Seen(NamedTuple):
    """The ownership that a user saw on the page and wants to end."""

    redis_key: str
    owner: str
    token: int


class LockPage:
    """Answers the requests of the page. Without a token it releases nothing."""

    def __init__(self, app: Celery, data: PageData, *, refresh: float, token: str | None = None) -> None:
        self._app, self._data, self._refresh, self._token = app, data, refresh, token
        self._files = {path: ((_FOLDER / name).read_bytes(), kind) for path, (name, kind) in _FILES.items()}

    def has(self, path: str) -> bool:
        return path in self._files or path in {_LOCKS, _RELEASE}

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        try:
            status, kind, body = HTTPStatus.OK, *self._answer(environ)
            more: tuple[tuple[str, str], ...] = ()
        except Refused as refused:
            status, kind, more = refused.status, "application/json", refused.headers
            body = json.dumps({"released": False, "text": refused.text}).encode()
        length = ("Content-Length", str(len(body)))
        start_response(f"{status:d} {status.phrase}", [("Content-Type", kind), length, *HEADERS, *more])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    def _answer(self, environ: dict[str, Any]) -> tuple[str, bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        allowed = ("POST",) if path == _RELEASE else ("GET", "HEAD")
        if method not in allowed:
            text = f"{path} answers {' and '.join(allowed)} only"
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, text, ("Allow", ", ".join(allowed)))
        if path in self._files:
            body, kind = self._files[path]
            return kind, body
        document = self._locks(environ) if path == _LOCKS else self._release(environ)
        return "application/json", json.dumps(document, allow_nan=False).encode()

    def _locks(self, environ: dict[str, Any]) -> dict[str, Any]:
        try:
            query = parse_qs(environ.get("QUERY_STRING", ""), max_num_fields=5)
        except ValueError:
            raise Refused(HTTPStatus.BAD_REQUEST, "the query has too many fields") from None
        found = self._data.as_json(query.get("filter", [""])[0])
        about_page = {"refresh": self._refresh, "may_release": self._token is not None}
        return {"app": shown(self._app.main or ""), **about_page, **found}

    def _release(self, environ: dict[str, Any]) -> dict[str, Any]:
        if self._token is None:
            raise Refused(HTTPStatus.FORBIDDEN, "this page only shows locks: it has no --allow-release")
        self._authorize(environ, self._token)
        seen = _seen(environ)
        try:
            record = self._free(seen)
        except (*FAILURES, RLockError) as error:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, f"nothing released: {brief(error)}") from error
        client = shown(environ.get("REMOTE_ADDR", "?"))
        logger.warning(
            "lock %r of %s was released from the page, by %s",
            record.key,
            record.owner,
            client,
            extra=about(record.key, record.owner, record.owner.task_id),
        )
        self._data.wanted.set()
        return {"released": True, "text": f"released {shown(record.key)}", "holder": row(record)}

    def _authorize(self, environ: dict[str, Any], token: str) -> None:
        """Only a script of this very page can pass: a browser lets no other site send this header here."""
        if not _is_from_here(environ):
            raise Refused(HTTPStatus.FORBIDDEN, "the request comes from a page of another site")
        scheme, _, given = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        # WSGI decodes headers as latin-1, so every header can be encoded that way.
        is_right = compare_digest(given.strip().encode("latin-1"), token.encode())
        if scheme.lower() != "bearer" or not is_right:
            logger.warning("a release with a wrong token was refused, from %s", environ.get("REMOTE_ADDR"))
            raise Refused(HTTPStatus.UNAUTHORIZED, "the token is wrong", ("WWW-Authenticate", "Bearer"))

    def _free(self, seen: Seen) -> LockRecord:
        """Release what was seen, and nothing else."""
        lock_server = settings.redis_server(self._app)
        if not (seen.redis_key.startswith(f"{lock_server.prefix}{{") and seen.redis_key.endswith("}")):
            _refuse_body()
        (holders,) = Inventory(lock_server.client, lock_server.prefix).find(seen.redis_key)
        if not holders:
            raise Refused(HTTPStatus.CONFLICT, "nothing released: the lock is free by now")
        wanted = (seen.token, seen.owner)
        record = next((one for one in holders if (one.token, shown(str(one.owner))) == wanted), None)
        if record is None:
            raise Refused(HTTPStatus.CONFLICT, "nothing released: another owner has taken the lock by now")
        if release_seen(lock_server, record) != ReleaseReply.RELEASED:
            raise Refused(HTTPStatus.CONFLICT, "nothing released: the holder has left the lock by now")
        return record


def _is_from_here(environ: dict[str, Any]) -> bool:
    """Whether a browser says that the request comes from a page of this server, or no browser sent it."""
    if (site := environ.get("HTTP_SEC_FETCH_SITE")) is not None:  # right behind a proxy, too
        return bool(site == "same-origin")
    origin = environ.get("HTTP_ORIGIN")
    return origin is None or origin.partition("://")[2] == environ.get("HTTP_HOST")


def _seen(environ: dict[str, Any]) -> Seen:
    if environ.get("CONTENT_TYPE", "").partition(";")[0].strip() != "application/json":
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be application/json")
    length = environ.get("CONTENT_LENGTH") or "0"
    if not (length.isascii() and length.isdigit() and len(length) < 10 and int(length) <= _LONGEST_BODY):  # noqa: PLR2004
        raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is longer than {_LONGEST_BODY} bytes")
    try:
        found = json.loads(environ["wsgi.input"].read(int(length)))
        seen = Seen(found["redis_key"], found["owner"], found["token"])
        str(seen.redis_key).encode()  # JSON can name half characters, and no client can send them
    except (ValueError, TypeError, KeyError, RecursionError):
        _refuse_body()
    kinds = tuple(map(type, seen))
    return seen if kinds == (str, str, int) else _refuse_body()


def _refuse_body() -> NoReturn:
    raise Refused(HTTPStatus.BAD_REQUEST, "the body must name redis_key, owner and token of a lock")


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_local(host_header: str, *names: str) -> bool:
    """Whether the Host header of a request names this host: a loopback address, or one of these names.

    A page of another site can make its own name lead to 127.0.0.1 ("DNS rebinding"), and then read what a
    server there answers. Its requests still carry its own name.
    """
    try:
        host = urlsplit(f"//{host_header}").hostname or ""
    except ValueError:
        return False
    return is_loopback(host) or host in names


def new_token() -> str:
    return secrets.token_urlsafe(24)
