"""Which tests show what docs/migration.md says of the changes, by how each line begins."""

from __future__ import annotations

FREED, TAKEOVER, KEYS = "unique/test_freed.py", "unique/test_takeover.py", "unique/test_crossed_keys.py"

PROOFS = {
    "A pool child": [(FREED, "test_when_its_child_is_killed")],
    "When a whole worker dies": [(FREED, "test_a_run_that_died_with_its_worker_runs_again")],
    "A run may be longer": [("unique/test_several_keys.py", "test_all_keys_are_renewed")],
    "`self.retry()`": [
        (TAKEOVER, "test_its_own_retry_keeps_the_key"),
        (TAKEOVER, "test_while_it_waits_for_its_retry_nobody_else_runs"),
    ],
    "A task that is revoked": [
        (FREED, "test_when_it_is_revoked_while_it_waits_for_its_eta"),
        (FREED, "test_when_it_expires_in_the_worker"),
    ],
    "A publish that fails": [
        ("unique/test_queue_lease.py", "test_a_broker_that_is_away_leaves_no_lock"),
        ("unique/test_queue_lease.py", "test_an_argument_that_cannot_be_serialized_leaves_no_lock"),
    ],
    "What `send_task`": [(TAKEOVER, "test_what_is_sent_by_its_name_takes_the_lock_when_it_runs")],
    "A task that ends": [
        ("unique/test_until_start.py", "test_a_run_that_ends_never_frees_the_next_ones_key")
    ],
    "A message that": [(KEYS, "test_copies_of_a_message_with_several_keys_run_once")],
    "In a chain": [
        ("unique/test_canvas.py", "test_a_duplicate_in_a_chain_takes_its_turn"),
        ("unique/test_canvas.py", "test_duplicates_in_a_group_take_their_turns"),
        (
            "unique/test_canvas.py",
            "test_duplicates_in_a_chords_header_take_their_turns_and_the_body_runs",
        ),
    ],
    "`sync(1)`": [
        ("unit/test_key.py", "test_every_way_to_pass_an_argument_is_one_key"),
        ("unit/test_key.py", "test_one_and_true_and_text_are_different"),
    ],
    "A duplicate is": [
        ("unique/test_duplicates.py", "test_a_key_that_an_rlock_holds_makes_no_duplicate"),
        ("unique/test_duplicates.py", "test_a_key_that_another_task_holds_makes_no_duplicate"),
    ],
    "`lock_busy`": [("integration/test_busy.py", "test_retry_runs_the_task_when_the_lock_is_free")],
}
