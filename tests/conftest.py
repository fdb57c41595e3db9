"""Loads the fixtures that all tests share."""

from __future__ import annotations

from tests.support.servers import DEFAULT_KIND

__all__ = ["DEFAULT_KIND"]

pytest_plugins = ["tests.support.fixtures", "tests.support.schedule"]
