import os

SECRET_KEY = "only for this example"
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "bank.urls"
INSTALLED_APPS = ["bank"]
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("BANK_DB", "bank.sqlite"),
        "OPTIONS": {"timeout": 30},
    }
}

CELERY_BROKER_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
CELERY_RESULT_BACKEND = CELERY_BROKER_URL  # the locks are kept here, unless CELERY_RLOCK_URL says otherwise
CELERY_RLOCK_TTL = 10  # rlock_ttl: the lease of every lock, in views and in tasks
