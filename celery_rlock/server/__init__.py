"""Everything that speaks Redis: scripts, clients, wake-ups and listings.

It knows no Celery and imports no other room.
"""
