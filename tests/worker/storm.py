"""Publishes one task at random moments, and prints each call as JSON: `python -m tests.worker.storm …`."""

from __future__ import annotations

import json
import random
import sys
import time

from tests.worker import proj


def main(task: str, name: str, queue: str, seconds: str, seed: str) -> None:
    chosen, numbers, end = getattr(proj, task), random.Random(seed), time.time() + float(seconds)
    while time.time() < end:
        made = time.time()
        args = (name, made) if task.startswith("save") else (name,)
        options = {"countdown": numbers.uniform(0, 0.1)} if numbers.random() < 0.3 else {}
        result = chosen.apply_async(
            args, queue=queue, kwargs={"seconds": numbers.uniform(0, 0.05)}, **options
        )
        print(json.dumps({"made": made, "returned": time.time(), "id": result.id}))
        time.sleep(numbers.expovariate(20))


if __name__ == "__main__":
    main(*sys.argv[1:])
