"""What a lock writes on the current OpenTelemetry span."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from celery import Celery
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from celery_rlock import LockBusy, LockedTask, RLock
from celery_rlock.telemetry import tracing
from tests.support.daemon import ROOT
from tests.support.processes import free_port, wait_until


@pytest.fixture
def app(server):
    app = Celery("traced", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(rlock_url=server.url)
    return app


@pytest.fixture
def spans():
    """Records spans: `with spans.span(): …`, then `spans.events()`."""
    return Spans(TracerProvider())


class Spans:
    def __init__(self, provider):
        self._exporter = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._tracer = provider.get_tracer("tests")

    def span(self):
        return self._tracer.start_as_current_span("task")

    @property
    def finished(self):
        [span] = self._exporter.get_finished_spans()
        return span

    def events(self):
        return {event.name: dict(event.attributes) for event in self.finished.events}


def test_a_run_shows_its_lock_and_how_long_it_held_it(app, spans):
    @app.task(base=LockedTask, bind=True, shared=False, lock_key="k")
    def work(self):
        return self.lock.owner, self.lock.token

    with spans.span():
        owner, token = work.apply().get()
    attributes = spans.finished.attributes
    assert (attributes["celery_rlock.key"], attributes["celery_rlock.owner"]) == ("k", owner)
    assert (attributes["celery_rlock.token"], attributes["celery_rlock.waited"]) == (token, 0)
    assert attributes["celery_rlock.held"] >= 0
    assert list(spans.events()) == ["lock acquired", "lock released"]


def test_waiting_shows_from_busy_to_acquired(app, spans, server):
    @app.task(base=LockedTask, shared=False, lock_key="k", lock_wait=20)
    def work():
        return 5

    with HeldElsewhere(server, "k", seconds=0.3), spans.span():
        assert work.apply().get() == 5
    assert list(spans.events()) == ["lock busy", "lock acquired", "lock released"]
    assert spans.events()["lock busy"]["celery_rlock.action"] == "wait"
    assert spans.finished.attributes["celery_rlock.waited"] > 0


def test_a_busy_attempt_shows_the_holder(app, spans, server):
    @app.task(base=LockedTask, shared=False, lock_key="k", lock_busy="fail")
    def work():
        return 5

    with HeldElsewhere(server, "k"), spans.span(), pytest.raises(LockBusy):
        work()
    [(name, attributes)] = spans.events().items()
    assert (name, attributes["celery_rlock.action"]) == ("lock busy", "fail")
    assert "thread-" in attributes["celery_rlock.holder"]


def test_a_lost_lock_shows_on_the_span_of_the_run(app, spans, client):
    """Semantics 8: another thread notices the loss."""

    @app.task(base=LockedTask, bind=True, shared=False, lock_key="k", lock_ttl=0.6)
    def work(self):
        client.delete("rlock:{k}")
        span = tracing._spans[self.lock]
        wait_until(lambda: any(event.name == "lock lost" for event in span.events), what="the loss")

    with spans.span():
        work.apply().get()
    assert spans.events()["lock lost"]["celery_rlock.key"] == "k"


def test_a_lock_server_that_is_down_shows(app, spans):
    app.conf.rlock_url = f"redis://127.0.0.1:{free_port()}/0"

    @app.task(base=LockedTask, shared=False, lock_key="k", lock_unavailable="run")
    def work():
        return 5

    with spans.span():
        assert work.apply().get() == 5
    assert spans.events()["lock unavailable"]["celery_rlock.action"] == "run"


def test_nothing_is_kept_for_a_span_that_is_not_recorded(app):
    @app.task(base=LockedTask, shared=False, lock_key="k")
    def work():
        return len(tracing._spans)

    spans = Spans(TracerProvider(sampler=ALWAYS_OFF))
    with spans.span():
        assert work.apply().get() == 0
    assert work.apply().get() == 0


WITHOUT = """
import sys
sys.modules["opentelemetry"] = None
from celery import Celery
from celery_rlock import LockedTask
app = Celery("bare", broker="memory://", backend="cache+memory://")
app.conf.rlock_url = sys.argv[1]
@app.task(base=LockedTask, lock_key="k")
def work():
    return 5

assert work.apply().get() == 5
assert "opentelemetry.trace" not in sys.modules
"""


def test_a_locked_task_runs_without_opentelemetry(server):
    command = [sys.executable, "-c", WITHOUT, server.url]
    ended = subprocess.run(command, cwd=ROOT, timeout=60, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


class HeldElsewhere:
    """Inside, another thread holds the key, for at most so many seconds."""

    def __init__(self, server, key, seconds=20):
        self._lock, self._over = RLock(key, client=server.client()), threading.Event()
        self._thread = threading.Thread(target=self._hold, args=(seconds,))
        self._taken = threading.Event()

    def _hold(self, seconds):
        with self._lock:
            self._taken.set()
            self._over.wait(seconds)

    def __enter__(self):
        self._thread.start()
        assert self._taken.wait(10)

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()
