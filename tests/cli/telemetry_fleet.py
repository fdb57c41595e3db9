"""A worker that is watched: its fleet, the events it sends, and the lines it logs about locks."""

from __future__ import annotations

import importlib.util
import json
import threading
from contextlib import contextmanager

from celery import Celery

from celery_rlock.core.client import connect
from celery_rlock.core.lock import RLock
from celery_rlock.core.scripts import Scripts
from tests.support.processes import wait_until
from tests.support.workers import Worker

PROJ = "tests.ops.observed_proj:app"


def environment(url, *, broker=None, conf=None):
    return {
        "RLOCK_TEST_BROKER": broker or url,
        "RLOCK_TEST_BACKEND": url,
        "RLOCK_TEST_CONF": json.dumps(conf or {}),
    }


def fresh_proj(url, broker):
    """The app's module anew: Celery keeps its first broker for as long as an app lives."""
    spec = importlib.util.find_spec(PROJ.partition(":")[0])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.app.conf.update(broker_url=broker, result_backend=url)
    return module


class Fleet:
    """One worker, and the app's module in this process, to publish from."""

    def __init__(self, worker, url, broker, lines):
        self.worker, self.url, self.proj, self._lines = worker, url, fresh_proj(url, broker), lines

    def hold(self, name, ttl=30):
        """Holds a key from here, as another owner, until the block's end."""
        return RLock(name, scripts=Scripts(connect(self.url)), ttl=ttl)

    def lines(self, name):
        """What was logged about the lock of this name, oldest first."""
        entries = map(json.loads, self._lines.read_text().splitlines())
        return [entry for entry in entries if entry["key"] == name or name in entry["text"]]


@contextmanager
def started(url, *args, lock_url=None, broker=None, publish_to=None, directory, conf=None, **options):
    conf = {**(conf or {}), **({"rlock_url": lock_url} if lock_url else {})}
    lines = directory / "lines"
    lines.touch()
    env = {**environment(url, broker=broker, conf=conf), "RLOCK_TEST_LOG": str(lines)}
    with Worker.start(PROJ, env=env, args=args, **options) as worker:
        yield Fleet(worker, url, publish_to or broker or url, lines)


class Capture:
    """Everything on the event bus of a broker, from its creation to the end of the block."""

    def __init__(self, url):
        self.events = []
        self._app = Celery("capture", broker=url, set_as_current=False)
        self._connection = self._app.connection_for_read()
        self._receiver = self._app.events.Receiver(self._connection, handlers={"*": self.events.append})
        self._thread = threading.Thread(target=self._receiver.capture, kwargs={"wakeup": False}, daemon=True)
        self._thread.start()
        wait_until(self._hears, timeout=20, what="the bus", every=0.1)

    def _hears(self):
        with self._app.events.default_dispatcher() as dispatcher:
            dispatcher.send("probe-sent")
        return bool(self.events)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._receiver.should_stop = True
        self._thread.join(10)
        self._connection.release()

    def locks(self, task_id):
        """The events of this task's lock, in the order of their coming."""
        return [e for e in list(self.events) if e["type"].startswith("lock-") and e["uuid"] == task_id]

    def types(self, task_id):
        return [event["type"] for event in self.locks(task_id)]

    def await_types(self, task_id, *types):
        """Its events once they are these, and in this order; for a loss is told on its own thread."""
        wait_until(
            lambda: sorted(self.types(task_id)) == sorted(types), timeout=30, what=f"{types} of {task_id}"
        )
        return sorted(self.locks(task_id), key=lambda event: types.index(event["type"]))
