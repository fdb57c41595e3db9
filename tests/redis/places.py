"""The scripts for a key with a limit, with their arguments by name, and the model that they must follow."""

from __future__ import annotations

from celery_rlock.server.lock_record import place_in
from tests.redis.conftest import LOCK, TOKEN, WAITERS, WOKEN, Verbs

KEYS = (LOCK, TOKEN, WAITERS, WOKEN)
TAKEN, BUSY, GONE, TOO_LATE, LINE, OTHER_FORM = 1, 0, -1, -2, 2, 3


class PlaceVerbs(Verbs):
    def take(
        self,
        owner,
        limit=2,
        depth=1,
        ttl=5000,
        hold=0,
        task="",
        worker="w",
        *,
        attempt="1",
        deadline=0,
        waiter="",
        since=0,
    ):
        """[1, token, slot], [0, ms, owner, worker, task], [-1], [-2], [2] or [3]: see the script."""
        args = (owner, worker, ttl, task, attempt, deadline, limit, hold, depth, waiter, since, 60000)
        status, _, *rest = self._eval("acquire_place", KEYS, *args)
        return [status, *rest]

    def places(self):
        """The records in Redis, also those whose lease has ended, by their fields."""
        return {field: place_in(record) for field, record in self.client.hgetall(LOCK).items()}

    def renew_place(self, owner, token, ttl=5000):
        return self._eval("renew", (LOCK,), owner, token, ttl)

    def wake(self, instead_of=""):
        return self.release("", waiter=instead_of)
