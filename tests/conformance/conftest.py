"""The table of what the suite compared, for docs/conformance.md."""

from __future__ import annotations

from tests.conformance.comparison import CONFORMANCE


def pytest_terminal_summary(terminalreporter):
    CONFORMANCE.tell(terminalreporter)
