"""Examples to run and to copy: README.md lists them."""

import os

# Celery lets these win over what an app says of itself; here they can only be another project's.
for _name in ("CELERY_BROKER_URL", "CELERY_RESULT_BACKEND", "CELERY_CONFIG_MODULE", "DJANGO_SETTINGS_MODULE"):
    os.environ.pop(_name, None)
