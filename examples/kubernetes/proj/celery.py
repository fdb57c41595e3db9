"""The app. Its settings come from the environment: base/settings.yaml, and the passwords from a Secret."""

from __future__ import annotations

import os
from urllib.parse import quote

from celery import Celery

from proj import health


def url(name: str, password: str) -> str:
    """The URL with its password. The URL is in a ConfigMap, and the password in a Secret."""
    return os.environ[name].replace("{password}", quote(os.environ[password], safe=""))


VISIBILITY = {"visibility_timeout": int(os.environ["VISIBILITY_TIMEOUT"])}

app = Celery("proj", include=["proj.tasks"])
app.conf.update(
    broker_url=url("MESSAGES_URL", "BROKER_PASSWORD"),
    result_backend=url("MESSAGES_URL", "BROKER_PASSWORD"),
    broker_transport_options=VISIBILITY,
    result_backend_transport_options=VISIBILITY,
    broker_connection_retry_on_startup=True,
    # Apart, because Celery shows settings: it masks rlock_password, but not a password in rlock_url.
    rlock_url=os.environ["RLOCK_URL"].replace("{user}", os.environ["RLOCK_USER"]),
    rlock_password=os.environ["LOCKS_PASSWORD"],
    rlock_replicas=int(os.environ["RLOCK_REPLICAS"]),
    # A pod may be killed at any time. Then the broker delivers its message to another pod.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    # Shorter than terminationGracePeriodSeconds, so that runs end before the pod is killed; 0 means no limit.
    task_soft_time_limit=int(os.environ["TASK_SOFT_TIME_LIMIT"]) or None,
    task_time_limit=int(os.environ["TASK_TIME_LIMIT"]) or None,
    worker_soft_shutdown_timeout=float(os.environ["SOFT_SHUTDOWN_TIMEOUT"]),
    beat_scheduler="proj.health:Scheduler",
    beat_max_loop_interval=5,
    beat_schedule={"close-books": {"task": "proj.tasks.close_books", "schedule": 60}},
)
health.install(app)
