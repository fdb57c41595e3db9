"""The exporter as a process, and what it shows."""

from __future__ import annotations

import sys
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tests.ops.observed import PROJ, environment
from tests.support.daemon import Daemon
from tests.support.processes import free_port, wait_until


class Exporter(Daemon):
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
