"""Django with the tables of django-celery-results and django-celery-beat."""

from __future__ import annotations

import os

SECRET_KEY = "conformance"
INSTALLED_APPS = ["django_celery_results", "django_celery_beat"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["RLOCK_CONFORMANCE_DATABASE"],
        # SQLite locks no rows. Without this, two members of a chord may both read the same count.
        "OPTIONS": {"timeout": 60, "transaction_mode": "IMMEDIATE"},
    }
}
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
