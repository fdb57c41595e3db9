"""The reentrant lock for coroutines, on `redis.asyncio`.

It knows no Celery, never blocks the event loop, and may import only `core` and `server`.
"""
