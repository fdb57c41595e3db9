"""Serves `/metrics` and `/healthz`."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

from celery_rlock.ops.exporter import Exporter

StartResponse = Callable[..., Any]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    def log_message(self, *args: Any) -> None:
        """A scrape every few seconds is no news."""


def http_server(exporter: Exporter, host: str, port: int) -> WSGIServer:
    """A server that is bound, and serves from `serve_forever` on."""
    kind = _Server6 if ":" in host else _Server
    return make_server(host, port, _application(exporter), kind, _Quiet)


def _application(exporter: Exporter) -> Callable[[dict[str, Any], StartResponse], Iterable[bytes]]:
    metrics = make_wsgi_app(exporter.registry)

    def application(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return metrics(environ, start_response)  # type: ignore[no-any-return]
        if path != "/healthz":
            return _answer(start_response, "404 Not Found", "/metrics or /healthz\n")
        if exporter.is_healthy:
            return _answer(start_response, "200 OK", "ok\n")
        return _answer(start_response, "503 Service Unavailable", "a thread has ended\n")

    return application


def _answer(start_response: StartResponse, status: str, text: str) -> list[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [text.encode()]
