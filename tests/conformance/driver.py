"""`python -m tests.conformance.driver RUN …` publishes every cell to the queue of each run.

The test process does not import the project, because shared tasks would become tasks of all its other apps.
"""

from __future__ import annotations

import json
import os
import sys
import traceback

from celery.result import ResultBase

from tests.conformance import notes
from tests.conformance.proj import CELLS, app


def main(runs: list[str]) -> int:
    children = []
    for run in runs:
        pid = os.fork()
        if pid == 0:
            os._exit(_publish_all(run))
        children.append(pid)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children)


def _publish_all(run: str) -> int:
    os.environ[notes.RUN] = run
    app.conf.update(task_default_queue=run, rlock_prefix=run)
    try:
        for cell, publish in CELLS.items():
            notes.note(cell, "published", None, at="driver", result=_publish(publish))
        _close_channel()
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _close_channel() -> None:
    """Return when the broker has taken all messages. RabbitMQ drops those of a process that just exits."""
    with app.producer_pool.acquire(block=True) as producer:
        producer.channel.close()


def _publish(publish) -> object:
    """The result of publishing as JSON: a tuple of ids, what an eager task returned, or an error."""
    if isinstance(publish, Exception):
        return {"error": f"it cannot be defined: {publish!r}"}
    try:
        result = publish()
    except Exception as error:
        return {"error": repr(error)}
    if isinstance(result, ResultBase):
        return {"ids": json.loads(json.dumps(result.as_tuple()))}
    return {"returned": repr(result)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
