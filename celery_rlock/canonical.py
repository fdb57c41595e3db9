"""A stable form of argument values: equal in every process, different for different values."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import uuid
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from typing import Any

from celery_rlock.errors import ConfigurationError


def digest(value: Any) -> str:
    """32 hexadecimal digits that stand for the value.

    `1`, `True`, `1.0` and `"1"` differ; the order of a dict or a set does not matter; a tuple equals
    the list it becomes in a message.
    """
    try:
        return blake2b(_encode(value), digest_size=16).hexdigest()
    except RecursionError:
        raise ConfigurationError("an argument contains itself: it has no stable form; set lock_key") from None


def text(value: Any) -> str:
    """What a value looks like in a key that people read; what is not plain stands as its digest."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if value is None or isinstance(value, bool | int | float | decimal.Decimal | uuid.UUID):
        return format(value) if not isinstance(value, enum.Enum) else str(value.value)
    return digest(value)


def _encode(value: Any) -> bytes:  # noqa: PLR0911 - one line a type
    if value is None:
        return b"n"
    if isinstance(value, bool):
        return b"b1" if value else b"b0"
    if isinstance(value, str):
        return _sized(b"s", str.__str__(value).encode("utf-8", "surrogatepass"))
    if isinstance(value, int):
        return _sized(b"i", b"%x" % int(value))
    if isinstance(value, float):
        return _sized(b"f", float.__repr__(value).encode())
    if isinstance(value, bytes | bytearray | memoryview):
        return _sized(b"y", bytes(value))
    if isinstance(value, list | tuple):
        return _joined(b"l", map(_encode, value))
    if isinstance(value, Mapping):
        return _joined(b"m", sorted(_encode(k) + _encode(v) for k, v in value.items()))
    if isinstance(value, AbstractSet):
        return _joined(b"S", sorted(map(_encode, value)))
    return _encode_object(value)


def _encode_object(value: Any) -> bytes:
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return _joined(b"t", map(_encode, (type(value).__name__, value.isoformat())))
    if isinstance(value, datetime.timedelta):
        return _joined(b"T", map(_encode, (value.days, value.seconds, value.microseconds)))
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return _joined(b"v", map(_encode, (type(value).__name__, str(value))))
    if isinstance(value, enum.Enum):
        return _joined(b"e", map(_encode, (type(value).__qualname__, value.name)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        members = {name: getattr(value, name) for name in names}
        return _joined(b"d", map(_encode, (type(value).__qualname__, members)))
    raise ConfigurationError(
        f"an argument of type {type(value).__qualname__} has no stable form to make a lock's key of: "
        "pass an id instead of the object, or set lock_key"
    )


def _sized(tag: bytes, payload: bytes) -> bytes:
    return b"%b%d:%b" % (tag, len(payload), payload)


def _joined(tag: bytes, parts: Iterable[bytes]) -> bytes:
    return _sized(tag, b"".join(parts))
