"""Sets Django up in this process, as a worker does itself and a publisher does not."""

from __future__ import annotations

import django

django.setup()
