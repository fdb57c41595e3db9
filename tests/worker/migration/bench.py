"""A place to run the code of docs/coming-from.md in, and a register of which check proves which line."""

from __future__ import annotations

import json
import time
from uuid import UUID

from celery import Celery

from celery_rlock import DuplicateTask, LockedTask
from tests.support.clients import bare_client
from tests.support.workers import Worker

EXAMPLE_URL = "redis://localhost:6379/1"
BODY = "def sync(a, b=0):\n    time.sleep(b)\n    return a\n"
MODULE = """
import time
from celery import Celery
from celery_rlock import LockedTask
app = Celery("migrated", broker={url!r}, backend={url!r}, set_as_current=False)
app.conf.update({conf!r})
{decorator}
{body}
"""


#: By what the page has under *theirs*: the check of the line.
CHECKS = {}


def proves(*theirs):
    """Registers a check for these lines."""

    def register(check):
        CHECKS.update(dict.fromkeys(theirs, check))
        return check

    return register


class Bench:
    """An app of the user's, with a queue of its own, on a server where nothing else happens."""

    def __init__(self, server, directory):
        self.url, self.directory = server.url, directory
        self.app = Celery("migrated", broker=server.url, backend=server.url, set_as_current=False)
        self.client = bare_client(server.url, decode_responses=True)

    def names(self, **more):
        known = {"__name__": "migrated", "app": self.app, "LockedTask": LockedTask, "UUID": UUID}
        return {**known, "time": time, "client": self.client, "DuplicateTask": DuplicateTask, **more}

    def define(self, decorator='@app.task(base=LockedTask, lock_from="publish")'):
        names = self.names()
        alone = decorator.replace("@app.task(", "@app.task(shared=False, ")  # not in the next row's app too
        exec(f"{alone}\n{BODY}", names)
        return names["sync"]

    def execute(self, ours, **names):
        """A statement of the page; its URL is the server's, with the page's database."""
        exec(ours.replace(EXAMPLE_URL, self.other_url), self.names(**names))

    def evaluate(self, ours, **names):
        return eval(ours, self.names(**names))

    @property
    def other_url(self):
        return self.url.removesuffix("/0") + "/1"

    def worker(self, decorator='@app.task(base=LockedTask, lock_from="publish")', **conf):
        """A real worker whose module is the same app and task."""
        conf = json.loads(json.dumps(conf))
        text = MODULE.format(url=self.url, conf=conf, decorator=decorator, body=BODY)
        (self.directory / "migrated.py").write_text(text)
        env = {"PYTHONPATH": str(self.directory)}
        return Worker.start("migrated:app", concurrency=2, env=env)

    def published(self):
        return self.client.llen("celery")

    def locks(self, pattern="rlock:*"):
        return [name for name in self.client.keys(pattern) if self.client.type(name) == "hash"]

    @staticmethod
    def locks_at(url):
        return bare_client(url).keys("rlock:*")

    def lease(self):
        (only,) = self.locks()
        return self.client.pttl(only) / 1000

    def holder(self):
        """Of the only lock there is."""
        fields = [field for name in self.locks() for field in self.client.hkeys(name)]
        return next((field for field in fields if not field.startswith("@")), None)
