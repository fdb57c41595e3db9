"""Framing of the Redis protocol (RESP2 and RESP3): where a message ends, and what a request says."""

from __future__ import annotations

from collections.abc import Iterator

NEWLINE = b"\r\n"
BULK = b"$=!"  # a length, then as many bytes
ATTRIBUTE = ord("|")  # goes before the message it belongs to
NESTED = {ord("*"): 1, ord("~"): 1, ord(">"): 1, ord("%"): 2, ATTRIBUTE: 2}  # messages a counted element


class Frames:
    """Cuts a stream, fed in chunks of any size, into whole messages."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The messages that `data` completes, in order and byte for byte."""
        self._buffer += data
        while (end := _end_of_message(self._buffer)) is not None:
            frame, self._buffer = self._buffer[:end], self._buffer[end:]
            yield frame


def _end_of_message(buffer: bytes) -> int | None:
    position, missing = 0, 1
    while missing:
        line_end = buffer.find(NEWLINE, position)
        if line_end < 0:
            return None
        kind, line = buffer[position], buffer[position + 1 : line_end]
        position = line_end + len(NEWLINE)
        if kind in BULK and int(line) >= 0:
            position += int(line) + len(NEWLINE)
        if kind in NESTED:
            missing += NESTED[kind] * max(int(line), 0)
        if kind != ATTRIBUTE:
            missing -= 1
    return position if position <= len(buffer) else None


def arguments(request: bytes) -> list[bytes]:
    """The command's name and arguments, from a whole request frame."""
    if not request.startswith(b"*"):
        return request.split()
    found, position = [], request.find(NEWLINE) + len(NEWLINE)
    while position < len(request):
        start = request.find(NEWLINE, position) + len(NEWLINE)
        size = int(request[position + 1 : start])
        found.append(request[start : start + size])
        position = start + size + len(NEWLINE)
    return found


def is_push(reply: bytes) -> bool:
    """Whether a frame from the server answers no request."""
    return reply.startswith(b">")
