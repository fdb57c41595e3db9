"""Starts Sentry in this process, with notes of what it would send."""

from __future__ import annotations

from typing import Any

import sentry_sdk
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport

from tests.conformance.notes import cell_of, note


class Notes(Transport):
    def capture_envelope(self, envelope: Any) -> None:
        for item in envelope.items:
            event = item.get_event() or item.get_transaction_event()
            if event:
                _note_event(event)


def _note_event(event: dict[str, Any]) -> None:
    trace = event.get("contexts", {}).get("trace", {})
    errors = event.get("exception", {}).get("values", [])
    fields = {
        "transaction": event.get("transaction"),
        "op": trace.get("op"),
        "status": trace.get("status"),
        "errors": [(error["type"], error["value"], error["mechanism"]["handled"]) for error in errors],
        "spans": [(span.get("op"), span.get("description")) for span in event.get("spans", [])],
        "job": {k: v for k, v in event.get("extra", {}).get("celery-job", {}).items() if k != "args"},
    }
    task = event.get("transaction") or fields["job"].get("task_name", "")
    task_id = event.get("tags", {}).get("celery_task_id")
    note(cell_of(task), f"sentry {event.get('type') or 'event'}", task_id, at="sentry", **fields)


sentry_sdk.init(
    dsn="http://key@localhost/1",
    transport=Notes,
    traces_sample_rate=1.0,
    default_integrations=False,
    auto_enabling_integrations=False,
    integrations=[CeleryIntegration(propagate_traces=True)],
)
