"""What the user chose: options, their validation, and how a call's keys are made.

It may import `core` and `server`.
"""
