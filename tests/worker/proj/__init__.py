"""The project of the worker tests: one app, and tasks such as users write them.

`proj.app` is the app; `proj.work` and all others are tasks, whichever module they stand in. The tasks of
`proj.waiting` have names that other tasks have too: tests send them with the fixture `send`.
"""

from __future__ import annotations

from tests.worker.proj import waiting
from tests.worker.proj.app import app
from tests.worker.proj.busy import *  # noqa: F403 - a list of 50 tasks would only repeat the modules
from tests.worker.proj.limited import *  # noqa: F403
from tests.worker.proj.pending import *  # noqa: F403
from tests.worker.proj.redelivered import *  # noqa: F403
from tests.worker.proj.republished import *  # noqa: F403
from tests.worker.proj.restarting import *  # noqa: F403
from tests.worker.proj.running import *  # noqa: F403
from tests.worker.proj.several_keys import *  # noqa: F403
from tests.worker.proj.shapes import *  # noqa: F403
from tests.worker.proj.trapped import *  # noqa: F403
from tests.worker.proj.unique import *  # noqa: F403

__all__ = ["app", "waiting"]
