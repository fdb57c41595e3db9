"""The worker's parent process: parked waiters, wake-ups, dead children and remote control.

It may import `running` and the rooms below.
"""
