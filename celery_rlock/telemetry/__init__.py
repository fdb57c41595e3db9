"""Logs, Celery events and traces of locks, made from our signals.

It may import `running` and the rooms below.
"""
