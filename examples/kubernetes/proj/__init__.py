"""`celery -A proj …` finds the app here."""

from proj.celery import app

__all__ = ["app"]
