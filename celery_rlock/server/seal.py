"""A secret that the users of one lock server share, to recognise in a message what one of them wrote."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from secrets import token_hex
from typing import Any

from celery_rlock.server.clock import now
from celery_rlock.server.failures import FAILURES
from celery_rlock.server.replies import text

_KEEP_MS = 24 * 3_600_000
_READ_AGAIN = 3600.0


class Seal:
    """Signs texts with a secret that lies in Redis, where programs that only use the broker cannot read it.

    Redis keeps the secret for a day after its last use. A process reads it once an hour. If Redis loses it,
    the next process makes a new one, and seals made with the old one are worth nothing.
    """

    def __init__(self, send: Callable[..., Any], prefix: str) -> None:
        """`send` takes a command and returns the reply."""
        self._send, self._name = send, f"{prefix}seal"
        self._secret, self._read_at = "", 0.0

    def of(self, what: str) -> str:
        """The seal of a text; empty while the server does not answer."""
        if not self._secret or now() - self._read_at > _READ_AGAIN:
            try:
                self._secret = self._read()
            except FAILURES:
                return ""
            self._read_at = now()
        return hmac.new(self._secret.encode(), what.encode("utf-8", "surrogatepass"), "sha256").hexdigest()[
            :32
        ]

    def _read(self) -> str:
        self._send("SET", self._name, token_hex(16), "NX", "PX", _KEEP_MS)
        secret = text(self._send("GET", self._name))
        self._send("PEXPIRE", self._name, _KEEP_MS)
        return secret
