"""One server's messages on one channel, heard on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import redis

from celery_rlock.core.log import logger

_SILENCE = 5.0
_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)
_TO_MYSELF = ""


class Subscription:
    """Subscribes again whenever it has lost its server, until it is not wanted any more.

    Now and then it speaks to itself: when it does not hear itself, or the server says that nobody does, then
    the connection is dead or its server is not the primary any more.
    """

    def __init__(
        self,
        server: redis.Redis,
        channel: str,
        hear: Callable[[dict[str, Any]], None],
        is_wanted: Callable[[Subscription], bool],
    ) -> None:
        self.server = server
        self.listening = False
        self._channel, self._hear, self._is_wanted = channel, hear, is_wanted

    def start(self) -> None:
        threading.Thread(target=self._run, name="rlock-listener", daemon=True).start()

    def _run(self) -> None:
        failures = 0
        while True:
            try:
                with self.server.pubsub() as pubsub:
                    pubsub.subscribe(self._channel)
                    failures = 0 if self._listen(pubsub) else failures + 1
            except Exception as error:  # noqa: BLE001 - whatever it is, the waiters need ears
                failures += 1
                logger.debug("the listener for released locks starts again: %r", error)
            self.listening = False
            if not self._is_wanted(self):
                return
            if failures:
                threading.Event().wait(_PAUSES[min(failures, len(_PAUSES)) - 1])

    def _listen(self, pubsub: Any) -> bool:
        """Until it is not wanted (True), or there is nothing to hear (False)."""
        asked = True  # the subscription is to be confirmed
        look = monotonic() + _SILENCE
        while True:
            message = pubsub.get_message(timeout=max(0.0, look - monotonic()))
            if message is not None:
                asked = False
                self.listening = True
                self._hear(message)
            if monotonic() < look:
                continue
            if not self._is_wanted(self):
                return True
            if asked or not self.server.publish(self._channel, _TO_MYSELF):
                return False
            asked, look = True, monotonic() + _SILENCE
