"""Starts OpenTelemetry's instrumentation of Celery in this process, with notes of its spans."""

from __future__ import annotations

from typing import Any

from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from tests.conformance.notes import cell_of, note


class Notes(SpanExporter):
    def export(self, spans: Any) -> Any:
        for span in spans:
            _note_span(span)
        return SpanExportResult.SUCCESS


#: Attributes with the values of this one message or process.
_CHANGING = {"messaging.message.id", "messaging.message_id", "messaging.conversation_id"}
_CHANGING |= {"celery.hostname", "celery.eta"}


def _note_span(span: Any) -> None:
    attributes = {
        name: str(value)
        for name, value in span.attributes.items()
        if not name.startswith("celery_rlock.") and name not in _CHANGING
    }
    task_id = span.attributes.get("messaging.message.id") or span.attributes.get("messaging.message_id")
    note(
        cell_of(span.name.partition("/")[2]),
        f"span {span.kind.name}",
        task_id,
        at="otel",
        name=span.name,
        status=span.status.status_code.name,
        attributes=attributes,
        events=[event.name for event in span.events if not event.name.startswith("lock ")],
    )


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(Notes()))
CeleryInstrumentor().instrument(tracer_provider=provider)
