"""What a forked child does first."""

from __future__ import annotations

import os
from collections.abc import Callable


def in_forked_child(reset: Callable[[], object]) -> None:
    """Call `reset` in every child that this process forks. Windows, where producers may run, has no fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=reset)
