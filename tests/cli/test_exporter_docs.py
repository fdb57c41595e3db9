"""The metrics page, the dashboard and the alerts agree with the code."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from celery import Celery

from celery_rlock import signals
from celery_rlock.cli.metrics import LockMetrics
from celery_rlock.telemetry.events import FIELDS
from tests.support.daemon import ROOT

PAGE = (ROOT / "docs/metrics.md").read_text()
DASHBOARD = json.loads((ROOT / "docs/grafana-dashboard.json").read_text())
ALERTS = yaml.safe_load((ROOT / "docs/alerts.yml").read_text())
METRIC = re.compile(r"\bcelery_rlock_\w+")
SUFFIXES = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"], "gauge": [""]}


@pytest.fixture(scope="module")
def metrics():
    """Type and labels of each metric of the exporter, by its name in Prometheus."""
    app = Celery("documented", broker="memory://", set_as_current=False)
    collected = LockMetrics(app, max_tasks=1).registry._collector_to_names
    families = {family.name: family for collector in collected for family in collector.describe()}
    labels = {
        collector._name: collector._labelnames for collector in collected if hasattr(collector, "_name")
    }
    return {
        f"{name}_total" if family.type == "counter" else name: (
            family.type,
            set(labels.get(name, getattr(family, "_labelnames", ()))),
        )
        for name, family in families.items()
    }


def rows(section, columns):
    """The rows of the tables with this number of columns, in this section of the page."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if len(row) == columns and row[0].startswith("`")]


def quoted(cell):
    return re.findall(r"`([^`]+)`", cell)


def test_the_page_documents_every_metric_with_its_type_and_labels(metrics):
    documented = {
        quoted(name)[0]: (kind, set(quoted(labels))) for name, kind, labels, _ in rows("Metrics", 4)
    }
    assert documented == metrics


def test_the_page_documents_every_event_with_its_fields():
    documented = {quoted(name)[0]: tuple(quoted(fields)) for name, _, fields in rows("Events", 3)}
    assert documented == FIELDS
    explained = {name for names, _ in rows("Events", 2) for name in quoted(names)}
    assert explained == {name for fields in FIELDS.values() for name in fields}


def test_the_page_documents_every_signal_with_its_fields():
    documented = {quoted(name)[0]: set(quoted(fields)) for name, fields in rows("Signals", 2)}
    sent = {name: getattr(signals, name) for name in dir(signals) if name.startswith("lock_")}
    assert documented == {name: set(signal.providing_args) for name, signal in sent.items()}


def test_the_page_documents_every_alert():
    documented = {quoted(name)[0] for name, _ in rows("Metrics", 2)}
    assert documented == {rule["alert"] for group in ALERTS["groups"] for rule in group["rules"]}


def expressions(part):
    if isinstance(part, dict):
        yield from (part[name] for name in ("expr", "definition") if name in part)
        for value in part.values():
            yield from expressions(value)
    elif isinstance(part, list):
        for value in part:
            yield from expressions(value)


@pytest.mark.parametrize("source", [DASHBOARD, ALERTS], ids=["dashboard", "alerts"])
def test_every_expression_uses_existing_metrics_and_labels(source, metrics):
    known = {
        name.removesuffix("_total") + suffix
        for name, (kind, _) in metrics.items()
        for suffix in SUFFIXES[kind]
    }
    labels = {label for _, names in metrics.values() for label in names} | {"le"}
    found = list(expressions(source))
    assert found
    for expression in found:
        assert set(METRIC.findall(expression)) <= known, expression
        used = re.findall(r"(\w+)=~?\"", expression) + re.findall(
            r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", expression))
        )
        assert set(used) <= labels, expression


def test_the_dashboard_shows_every_metric(metrics):
    shown = set(METRIC.findall(" ".join(expressions(DASHBOARD))))
    assert {name.removesuffix("_bucket") for name in shown} == set(metrics)


def test_every_alert_has_a_severity_a_summary_and_a_description():
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in {"warning", "critical"}
            assert rule["annotations"]["summary"]
            assert rule["annotations"]["description"]


def test_panels_have_their_own_ids_and_places():
    places = [tuple(panel["gridPos"][side] for side in "xy") for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)
