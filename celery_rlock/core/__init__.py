"""The lock itself, with leases, renewal and waiting.

It knows neither Celery nor redis-py, and may import only `server`.
"""
