"""An end to waiting for those who never answer."""

from __future__ import annotations

import threading
from collections.abc import Callable


def within(seconds: float, do: Callable[[], object]) -> Exception | None:
    """What `do` raised, if anything; a TimeoutError if it takes longer.

    Then it is left alone, on a thread that ends with the process.
    """
    outcome: list[Exception | None] = []

    def run() -> None:
        try:
            do()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            outcome.append(error)
        else:
            outcome.append(None)

    thread = threading.Thread(target=run, name="rlock-doctor", daemon=True)
    thread.start()
    thread.join(seconds)
    return outcome[0] if outcome else TimeoutError(f"no answer within {seconds:g} s")
