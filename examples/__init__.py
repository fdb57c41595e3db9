"""Examples to run and to copy: README.md lists them."""

import os

# Celery prefers these variables to an app's own settings. Here they can only come from another project.
for _name in ("CELERY_BROKER_URL", "CELERY_RESULT_BACKEND", "CELERY_CONFIG_MODULE", "DJANGO_SETTINGS_MODULE"):
    os.environ.pop(_name, None)
