"""The doctor: checks of settings, tasks, the lock server, the broker and the workers, and its command.

Each module holds the checks of one subject. `output` is here because all commands write through it. This
room may import `worker` and the rooms below it, never `cli`.
"""
