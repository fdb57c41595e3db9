"""docs/coming-from.md: its tables, its list of changes, and the tests that show each change."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "coming-from.md").read_text()


class Row(NamedTuple):
    section: str
    theirs: str
    ours: str


def rows():
    found = []
    for section in ("celery-once", "celery-singleton"):
        text = PAGE.partition(f"## Coming from {section}\n")[2].partition("\n## ")[0]
        lines = [line for line in text.splitlines() if line.startswith("| `")]
        for theirs, ours, _ in (line.strip("| ").split(" | ") for line in lines):
            found.append(Row(section, theirs.replace("`", ""), ours.strip("`")))
    return found


def changes():
    return re.findall(r"^- (.*)$", PAGE.partition("## What changes for you")[2], re.MULTILINE)


FREED = "worker/test_unique_tasks_that_do_not_run.py"
RUNS = "worker/test_runs_of_unique_tasks.py"

#: By how a change begins: the tests that show it.
PROOFS = {
    "A pool child": [(FREED, "test_when_the_child_of_the_run_is_killed")],
    "When a whole worker dies": [(FREED, "test_a_run_that_died_with_its_worker_runs_again")],
    "A run may be longer": [("worker/test_several_keys.py", "test_all_keys_are_renewed")],
    "`self.retry()`": [
        (RUNS, "test_the_tasks_own_retry_keeps_the_key"),
        (RUNS, "test_no_other_task_runs_while_a_task_waits_for_its_retry"),
    ],
    "A task that is revoked": [
        (FREED, "test_when_the_task_is_revoked_while_it_waits_for_its_eta"),
        (FREED, "test_when_the_task_expires_in_the_worker"),
    ],
    "A publish that fails": [
        ("worker/test_queue_lease.py", "test_a_broker_that_is_away_leaves_no_lock"),
        ("worker/test_queue_lease.py", "test_an_argument_that_cannot_be_serialized_leaves_no_lock"),
    ],
    "What `send_task`": [(RUNS, "test_a_task_that_is_sent_by_name_takes_the_lock_when_it_runs")],
    "A task that ends": [
        ("worker/test_until_start.py", "test_the_end_of_a_run_does_not_free_the_key_of_the_next_call")
    ],
    "A message that": [
        ("worker/test_crossed_keys.py", "test_a_redelivered_message_with_several_keys_runs_once")
    ],
    "In a chain": [
        ("worker/test_canvas_of_unique_tasks.py", "test_a_duplicate_in_a_chain_takes_its_turn"),
        ("worker/test_canvas_of_unique_tasks.py", "test_duplicates_in_a_group_take_their_turns"),
        (
            "worker/test_canvas_of_unique_tasks.py",
            "test_duplicates_in_a_chords_header_take_their_turns_and_the_body_runs",
        ),
    ],
    "`sync(1)`": [
        ("unit/test_keys.py", "test_every_way_to_pass_an_argument_is_one_key"),
        ("unit/test_keys.py", "test_one_and_true_and_text_are_different"),
    ],
    "A duplicate is": [
        ("worker/test_duplicates.py", "test_a_key_that_an_rlock_holds_makes_no_duplicate"),
        ("worker/test_duplicates.py", "test_a_key_that_another_task_holds_makes_no_duplicate"),
    ],
    "`lock_busy`": [("worker/test_busy_lock.py", "test_retry_runs_the_task_when_the_lock_is_free")],
}
