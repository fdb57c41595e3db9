"""How many random examples the fuzz tests try."""

from __future__ import annotations

import os

#: Few in CI, where time is short. CELERY_RLOCK_FUZZ=100000 searches for longer.
EXAMPLES = int(os.environ.get("CELERY_RLOCK_FUZZ", "200"))
