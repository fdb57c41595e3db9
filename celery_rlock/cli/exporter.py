"""`celery rlock exporter`: serve metrics of all locks to Prometheus over HTTP, and a page to people."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from socketserver import ThreadingMixIn
from time import monotonic
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import click
from celery import Celery

from celery_rlock import settings
from celery_rlock.cli.page import REFRESH, SHORTEST_TOKEN, LockPage, is_local, is_loopback, new_token
from celery_rlock.cli.page_data import MOST_KEPT, PageData
from celery_rlock.cli.session import LockCommand
from celery_rlock.log import logger

if TYPE_CHECKING:  # it needs prometheus_client, which is an extra
    from celery_rlock.cli.metrics import LockMetrics

#: Holds the token for releases, if no file does. A command line is visible to all users of a host.
TOKEN_VARIABLE = "CELERY_RLOCK_TOKEN"  # noqa: S105 - a name

#: While a page is open, surveys of Redis take at most this part of the time.
_SHARE_FOR_THE_PAGE = 0.1

_PAUSE_AFTER_ERROR = 1.0

#: The most connections at a time, and the most seconds that each may last.
MOST_CONNECTIONS = 20
LONGEST_REQUEST = 5.0

StartResponse = Callable[..., Any]


@click.command(cls=LockCommand)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=9808,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--interval",
    default=15.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    help="Seconds between two surveys of Redis.",
)
@click.option(
    "--max-tasks",
    default=100,
    show_default=True,
    type=click.IntRange(min=0),
    help="The most tasks that get a label of their own; the others share the label 'other'.",
)
@click.option(
    "--page", is_flag=True, help="Serve the page also if --host is not a loopback address: it shows all keys."
)
@click.option("--allow-release", is_flag=True, help="Let users of the page who have the token release locks.")
@click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"File with the token; else the variable {TOKEN_VARIABLE} has it, else a random one is printed.",
)
@click.pass_context
def exporter(
    ctx: click.Context,
    /,
    *,
    host: str,
    port: int,
    interval: float,
    max_tasks: int,
    page: bool,
    allow_release: bool,
    token_file: Path | None,
) -> None:
    """Serve metrics of all locks to Prometheus at /metrics, and a live page of the locks at /.

    The exporter counts the workers' events (start the workers with -E), and surveys the locks in Redis.
    """
    try:
        from celery_rlock.cli.metrics import LockMetrics  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise click.ClickException(f"{error}: pip install celery-rlock[metrics]") from error
    app: Celery = ctx.obj.app
    if not settings.enabled(app):
        raise click.ClickException("rlock_enabled is False: there are no locks to measure")
    try:
        server = http_server(host, port)
    except (OSError, TypeError, UnicodeError) as error:  # a name that cannot be encoded is a TypeError
        raise click.ClickException(f"cannot listen on {host}:{port}: {error}") from error
    local = is_loopback(str(server.server_address[0]))
    has_page = page or local
    token = _release_token(token_file, allowed=allow_release, local=local, page=has_page)
    source = Exporter(app, LockMetrics(app, max_tasks=max_tasks), interval, keep=MOST_KEPT if has_page else 0)
    shown = LockPage(app, source.page_data, refresh=min(REFRESH, interval), token=token) if has_page else None
    server.set_app(_wsgi_app(source, shown, own_name=host.lower() if local else None))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    source.start()
    address = f"http://[{host}]" if ":" in host else f"http://{host}"
    click.echo(f"metrics of locks: {address}:{server.server_port}/metrics")
    if has_page:
        click.echo(f"page of locks: {address}:{server.server_port}/")
    server.serve_forever()


def _release_token(file: Path | None, *, allowed: bool, local: bool, page: bool) -> str | None:
    """The token for releases: from the file, from the environment, or a new one; None if there are none."""
    if not allowed:
        if file is not None:
            raise click.UsageError("--token-file needs --allow-release")
        return None
    if not page:
        raise click.UsageError("--allow-release needs --page, because --host is not a loopback address")
    token = _given_token(file, os.environ.get(TOKEN_VARIABLE))
    if token is None and not local:  # a printed one would stand in the logs of a whole cluster
        raise click.UsageError(f"--allow-release for other hosts needs --token-file or {TOKEN_VARIABLE}")
    if token is None:
        token = new_token()
        click.echo(f"token for releases: {token}")
    return token


def _given_token(file: Path | None, variable: str | None) -> str | None:
    if file is None and variable is None:
        return None
    if file is not None and variable is not None:
        raise click.UsageError(f"--token-file and {TOKEN_VARIABLE} both have a token: remove one of them")
    try:
        token = (variable or "" if file is None else file.read_text(encoding="utf-8")).strip()
    except (OSError, UnicodeError) as error:
        raise click.UsageError(f"cannot read the token: {type(error).__name__}") from error
    if len(token) < SHORTEST_TOKEN or not re.fullmatch("[!-~]+", token):
        raise click.UsageError(
            f"the token for releases must have {SHORTEST_TOKEN} or more ASCII characters without spaces: "
            "openssl rand -hex 16 prints one"
        )
    return token


class Exporter:
    """Fills metrics and page from two threads: one receives events and reconnects, one surveys Redis.

    Of each survey the page gets `keep` locks; 0 if there is no page.
    """

    def __init__(self, app: Celery, metrics: LockMetrics, interval: float, *, keep: int) -> None:
        self._app, self._interval, self._keep = app, interval, keep
        self.metrics, self.page_data = metrics, PageData()
        self._threads = [self._thread(self._receive_events), self._thread(self._survey)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def is_healthy(self) -> bool:
        """Whether both threads live. A server that is away shows in the metrics; a restart would not help."""
        return all(thread.is_alive() for thread in self._threads)

    def _thread(self, turn: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            while True:
                turn()

        return threading.Thread(target=run, name=f"rlock-exporter{turn.__name__}", daemon=True)

    def _receive_events(self) -> None:
        try:
            with self._app.connection_for_read() as connection:
                connection.ensure_connection(max_retries=1)
                self._receiver(connection).capture(wakeup=False)
        except Exception as error:  # noqa: BLE001 - whatever it is, only a new connection helps
            logger.warning("the exporter receives no events, reconnecting: %r", error)
        self._set_connected(False)
        _pause(_PAUSE_AFTER_ERROR)

    def _receiver(self, connection: Any) -> Any:
        counted, shown = self.metrics.events.handlers(), self.page_data.handlers()
        handlers = {kind: _tolerant(counted[kind], shown[kind]) for kind in counted}
        receiver: Any = self._app.events.Receiver(connection, handlers=handlers, routing_key="lock.#")
        receiver.on_consume_ready = lambda *_, **__: self._set_connected(True)
        return receiver

    def _set_connected(self, connected: bool) -> None:
        self.metrics.connected.set(connected)
        self.page_data.hears = connected

    def _survey(self) -> None:
        began = monotonic()
        self.page_data.wanted.clear()
        try:
            lock_server = settings.redis_server(self._app)
            self.page_data.show(self.metrics.survey(lock_server, self._interval, self._keep))
        except Exception as error:  # noqa: BLE001 - the next survey may succeed
            logger.warning("could not survey the locks, trying again: %r", error)
            self.page_data.fail(error)
        self._pause_after(monotonic() - began)

    def _pause_after(self, took: float) -> None:
        """Wait for the interval; less if a page is open, however many of them ask and however often."""
        shortest = min(self._interval, max(REFRESH, took / _SHARE_FOR_THE_PAGE))
        _pause(shortest)
        self.page_data.wanted.wait(self._interval - shortest)


def _tolerant(*handlers: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    """All these handlers, without their errors: a malformed event must not stop the receiver."""

    def handle(event: dict[str, Any]) -> None:
        try:
            for handler in handlers:
                handler(event)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            logger.debug("an event is malformed and not counted: %r in %r", error, event)

    return handle


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


class HttpServer(ThreadingMixIn, WSGIServer):
    """Answers a few clients at a time, and gives each of them only a few seconds.

    A scrape takes milliseconds. So a client that is slow on purpose, or opens many connections, cannot take
    all threads and sockets of the exporter, nor keep Prometheus out for longer than these few seconds.
    """

    daemon_threads = True

    def __init__(self, *args: Any, **options: Any) -> None:
        self._began: dict[socket.socket, float] = {}
        super().__init__(*args, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._began) >= MOST_CONNECTIONS:
            self.shutdown_request(request)
            return
        self._began[request] = monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._began.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Runs twice a second. A timeout of the socket alone would start anew with each byte."""
        for request, began in list(self._began.items()):
            if monotonic() - began > LONGEST_REQUEST:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - socketserver's interface
        """A client that goes away, or is too slow, is no reason for a traceback."""
        logger.debug("a request of %s was not answered: %r", client_address, sys.exc_info()[1])


class HttpServerIPv6(HttpServer):
    address_family = socket.AF_INET6


class QuietHandler(WSGIRequestHandler):
    timeout = LONGEST_REQUEST

    def log_message(self, *args: Any) -> None:
        """Prometheus scrapes every few seconds; nothing of that is logged."""


def http_server(host: str, port: int) -> WSGIServer:
    """A bound server without an application. It answers once it has one and `serve_forever` runs."""
    kind = HttpServerIPv6 if ":" in host else HttpServer
    return kind((host, port), QuietHandler)


def _wsgi_app(
    exporter: Exporter, page: LockPage | None, own_name: str | None
) -> Callable[[dict[str, Any], StartResponse], Iterable[bytes]]:
    """Serves `/metrics`, `/healthz` and the page, if there is one.

    With `own_name`, the server listens on a loopback address, and requests must name this host.
    """
    metrics = exporter.metrics.wsgi_app()

    def application(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/healthz":
            if exporter.is_healthy:
                return _answer(start_response, "200 OK", "ok\n")
            return _answer(start_response, "503 Service Unavailable", "a thread of the exporter has ended\n")
        if own_name is not None and not is_local(environ.get("HTTP_HOST", ""), own_name):
            text = "the exporter listens on this host only: use its address or localhost\n"
            return _answer(start_response, "421 Misdirected Request", text)
        if path == "/metrics":
            return metrics(environ, start_response)
        if page is not None and page.has(path):
            return page(environ, start_response)
        text = "/metrics or /healthz; the page needs --page, because --host is not a loopback address\n"
        return _answer(start_response, "404 Not Found", text if page is None else "/, /metrics or /healthz\n")

    return application


def _answer(start_response: StartResponse, status: str, text: str) -> list[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [text.encode()]
