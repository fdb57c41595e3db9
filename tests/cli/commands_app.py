"""The Celery app of the tests of commands; RLOCK_TEST_URL is its broker, RLOCK_TEST_CONF adds settings."""

from __future__ import annotations

import json
import os
import time

from celery import Celery

from celery_rlock import LockedTask
from tests.support.clients import bare_client


def run_until_told(self):
    """Run until the Redis key `told:<task id>` exists."""
    with bare_client(self.app.conf.result_backend) as client:
        while not client.exists(f"told:{self.request.id}"):
            time.sleep(0.02)


def charge(self, account_id, amount=1):
    run_until_told(self)


def transfer(self, source, target):
    run_until_told(self)


def of_name(self, name):
    run_until_told(self)


def plain():
    pass


def always_skip(task, error):
    return "skip"


NAMED = {
    "skipping": {"lock_busy": "skip"},
    "failing": {"lock_busy": "fail", "lock_wait": 3},
    "rejecting": {"lock_busy": "reject"},
    "replacing": {"lock_busy": "replace"},
    "asking": {"lock_busy": always_skip},
    "counting": {"lock_max_attempts": 4},
    "unique": {"lock_from": "publish"},
    "unique_or_error": {"lock_from": "publish", "lock_duplicate": "raise"},
    "pending": {"lock_from": "publish", "lock_pending": 1},
    "newest": {"lock_from": "publish", "lock_pending": 1, "lock_duplicate": "replace"},
    "started": {"lock_from": "publish", "lock_until": "start"},
    "limited": {"lock_limit": 3, "lock_busy": "skip"},
    "limited_by_nothing": {"lock_limit": lambda name: {}[name]},
    "short": {"lock_ttl": 3},
    "long": {"lock_ttl": 600},
}


def make_app(url, **conf):
    app = Celery("commands", broker=url, backend=url, set_as_current=False)
    app.conf.update(worker_prefetch_multiplier=1, broker_connection_retry_on_startup=True, **conf)

    def add(function, name, **options):
        app.task(base=LockedTask, bind=True, shared=False, name=f"proj.{name}", **options)(function)

    add(charge, "charge", lock_key="account:{account_id}")
    add(transfer, "transfer", lock_key=["account:{source}", "account:{target}"])
    add(of_name, "by_default")
    for name, options in NAMED.items():
        add(of_name, name, lock_key="{name}", **options)
    app.task(shared=False, name="proj.plain")(plain)
    return app


app = make_app(os.environ.get("RLOCK_TEST_URL"), **json.loads(os.environ.get("RLOCK_TEST_CONF", "{}")))
