"""The fixtures that all fault tests share, and the tables that they measure for docs/."""

from __future__ import annotations

import pytest

from tests.faults.kubernetes.pod_fleet import EVENTS
from tests.faults.topology.costs import COSTS
from tests.faults.worker.endings import ENDINGS
from tests.support.fleet import Publisher
from tests.support.servers import DEFAULT_KIND, available_kinds

KINDS = [
    kind if kind == DEFAULT_KIND else pytest.param(kind, marks=pytest.mark.slow) for kind in available_kinds()
]


def pytest_terminal_summary(terminalreporter):
    """Show each table that has rows, and write it where `make` names a page for it."""
    for table in (ENDINGS, COSTS, EVENTS):
        table.tell(terminalreporter)


@pytest.fixture(scope="module", params=["redis", pytest.param("rabbitmq", marks=pytest.mark.slow)])
def broker(request, fleet_redis):
    """Each broker in turn, as a Celery app that publishes to it; `make test` uses only Redis."""
    node = fleet_redis if request.param == "redis" else request.getfixturevalue("rabbit")
    with Publisher(request.param, node.url, node.port) as publisher:
        yield publisher


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    """Valkey and Redis in turn; `make test` uses only one of them."""
    return request.param
