"""A client of one server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakSet

import redis
from redis.cluster import RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_rlock.server.failures import FAILURES
from celery_rlock.server.forks import in_forked_child

#: redis-py before 5.3 wants the name of the command.
_WANTED_BY_THE_POOL = ("EVALSHA",) if redis.VERSION < (5, 3) else ()


class StandaloneRedis(redis.Redis):
    """redis-py's client and pool. After a lost connection it trusts none of its idle ones."""

    def __init__(self, make_pool: Callable[[], redis.ConnectionPool]) -> None:
        super().__init__(connection_pool=make_pool())
        self.make_pool = make_pool
        _clients.add(self)

    def start_anew(self) -> None:
        """Use a new pool.

        A forked child must: redis-py notices a fork by itself, but its reset takes the pool's mutex, which
        another thread of the parent may have held during the fork (8.1).
        """
        self.connection_pool = self.make_pool()

    def execute_command(self, *args: Any, **options: Any) -> Any:
        return self.guarded(super().execute_command, *args, **options)

    def send_plainly(self, *command: object) -> Any:
        """Like `execute_command`, for commands whose replies need no conversion."""
        return self.guarded(send_directly, self, *command)

    def guarded(self, send: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Send, and drop the connections that an error makes suspect."""
        try:
            return send(*args, **options)
        except (RedisConnectionError, RedisTimeoutError, ReadOnlyError):
            # The idle connections lead to the same place: a dead server, one that became a replica, or a
            # firewall that has forgotten them.
            self.connection_pool.disconnect(inuse_connections=False)
            raise
        except RedisError:
            raise
        except BaseException:
            # A signal handler has raised at an unknown point inside redis-py. A connection may have an unread
            # reply, or may not have gone back to the pool, so none of them is used again.
            self.start_anew()
            raise


def send_directly(client: redis.Redis, *command: object) -> Any:
    """Run one command over a connection of the client's own pool.

    `execute_command` adds retries, metrics and the conversion of replies, which no request of ours needs. To
    leave them out saves about a fifth of the CPU time of a command (redis-py 8.1).
    """
    pool = client.connection_pool
    connection = pool.get_connection(*_WANTED_BY_THE_POOL)
    try:
        connection.send_command(*command)
        return connection.read_response()
    except RedisError:
        raise  # redis-py has closed the connection if its state is unknown
    except BaseException:
        connection.disconnect()  # a signal handler has raised: the reply may be unread
        raise
    finally:
        pool.release(connection)


def sender_of(client: Any) -> Callable[..., Any]:
    """How to send requests with this client: directly, unless the client has a way of its own."""
    if isinstance(client, StandaloneRedis):
        return client.send_plainly
    is_plain = isinstance(client, redis.Redis) and type(client).execute_command is redis.Redis.execute_command
    if is_plain and client.connection is None:
        return partial(send_directly, client)
    return partial(_send_in_its_own_way, client)


def _send_in_its_own_way(client: Any, *command: object) -> Any:
    with careful(client):
        return client.execute_command(*command)


@contextmanager
def careful(client: Any) -> Iterator[None]:
    """Inside the block a signal handler may raise, at an unknown point inside redis-py.

    Then a connection that has gone back to its pool may have an unread reply, which the next request would
    take for its own.
    """
    try:
        yield
    except FAILURES:
        raise
    except BaseException:
        _use_new_connections(client)
        raise


def _use_new_connections(client: Any) -> None:
    if hasattr(type(client), "start_anew"):
        client.start_anew()
        return
    servers = client.get_nodes() if isinstance(client, RedisCluster) else ()
    for one in (*(node.redis_connection for node in servers), client):
        connection, pool = getattr(one, "connection", None), getattr(one, "connection_pool", None)
        if connection is not None:
            connection.disconnect()
        if pool is not None:
            _disconnect_idle(pool)


def _disconnect_idle(pool: Any) -> None:
    try:
        pool.disconnect(inuse_connections=False)
    except TypeError:  # a BlockingConnectionPool of redis-py 5 and 6 disconnects all or none
        pool.disconnect()


def _after_fork() -> None:
    for client in list(_clients):
        client.start_anew()


_clients: WeakSet[StandaloneRedis] = WeakSet()
in_forked_child(_after_fork)
