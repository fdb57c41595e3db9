"""The commands of `celery -A proj rlock`, one module each, and what they share.

This room may import every other room; no other room imports it.
"""
