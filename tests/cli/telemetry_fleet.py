"""A worker whose events, log lines and metrics tests read; and the exporter as a process."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import urllib.request
from contextlib import contextmanager

from celery import Celery
from prometheus_client.parser import text_string_to_metric_families

from celery_rlock.core.lock import ReentrantLock
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer
from tests.support.daemon import Daemon
from tests.support.processes import free_port, wait_until
from tests.support.workers import Worker

PROJ = "tests.cli.telemetry_app:app"


def environment(url, *, broker=None, conf=None):
    return {
        "RLOCK_TEST_BROKER": broker or url,
        "RLOCK_TEST_BACKEND": url,
        "RLOCK_TEST_CONF": json.dumps(conf or {}),
    }


def fresh_proj(url, broker):
    """A new copy of the app's module: a Celery app keeps its first broker for its whole life."""
    spec = importlib.util.find_spec(PROJ.partition(":")[0])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.app.conf.update(broker_url=broker, result_backend=url)
    return module


class TelemetryFleet:
    """One worker, and the app's module in this process to publish tasks from."""

    def __init__(self, worker, url, broker, lines):
        self.worker, self.url, self.proj, self._lines = worker, url, fresh_proj(url, broker), lines

    def hold(self, name, ttl=30):
        """Holds the lock from this process, as another owner, until the end of the block."""
        return ReentrantLock(name, lock_server=RedisLockServer(connect(self.url)), ttl=ttl)

    def lines(self, name):
        """The log lines about the lock of this name, oldest first."""
        lines = map(json.loads, self._lines.read_text().splitlines())
        return [line for line in lines if line["key"] == name or name in line["text"]]


@contextmanager
def started(url, *args, lock_url=None, broker=None, publish_to=None, directory, conf=None, **options):
    conf = {**(conf or {}), **({"rlock_url": lock_url} if lock_url else {})}
    lines = directory / "lines"
    lines.touch()
    env = {**environment(url, broker=broker, conf=conf), "RLOCK_TEST_LOG": str(lines)}
    with Worker.start(PROJ, env=env, args=args, **options) as worker:
        yield TelemetryFleet(worker, url, publish_to or broker or url, lines)


class EventCapture:
    """Records every event of a broker, from its creation to the end of the block."""

    def __init__(self, url):
        self.events = []
        self._app = Celery("capture", broker=url, set_as_current=False)
        self._connection = self._app.connection_for_read()
        self._receiver = self._app.events.Receiver(self._connection, handlers={"*": self.events.append})
        self._thread = threading.Thread(target=self._receiver.capture, kwargs={"wakeup": False}, daemon=True)
        self._thread.start()
        wait_until(self._receives, timeout=20, what="the first event", every=0.1)

    def _receives(self):
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
        """The lock events of this task, in the order of arrival."""
        return [e for e in list(self.events) if e["type"].startswith("lock-") and e["uuid"] == task_id]

    def types(self, task_id):
        return [event["type"] for event in self.locks(task_id)]

    def await_types(self, task_id, *types):
        """Wait for exactly these lock events; return them in this order.

        They may arrive in another order, because another thread sends the event of a lost lock.
        """
        wait_until(
            lambda: sorted(self.types(task_id)) == sorted(types), timeout=30, what=f"{types} of {task_id}"
        )
        return sorted(self.locks(task_id), key=lambda event: types.index(event["type"]))


class ExporterProcess(Daemon):
    """`celery rlock exporter`, and the metrics that it serves."""

    def __init__(self, url, *options, broker=None):
        super().__init__("exporter", environment(url, broker=broker))
        self.port = free_port()
        self._options = ("--interval", "0.2", *options)

    def command(self):
        options = ("--port", str(self.port), *self._options)
        return [sys.executable, "-m", "celery", "-A", PROJ, "rlock", "exporter", *options]

    def is_ready(self):
        return "metrics of locks" in self.log

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return answer.read().decode()

    def samples(self):
        families = text_string_to_metric_families(self.get("/metrics"))
        return {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in families
            for sample in family.samples
        }

    def value(self, name, *labels):
        return self.samples().get((f"celery_rlock_{name}", *sorted(labels)))

    def await_value(self, expected, name, *labels):
        wait_until(
            lambda: self.value(name, *labels) == expected,
            timeout=30,
            what=f"{name}{labels} to be {expected}, not {self.value(name, *labels)}",
            every=0.1,
        )
