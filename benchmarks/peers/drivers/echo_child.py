"""Writes every frame back: a length of four bytes, and as many bytes. It blocks in both."""

import os

SIZE_BYTES = 4
AT_ONCE = 65536


def read_exactly(size):
    """That many bytes, or none at the end of the stream."""
    first = os.read(0, min(size, AT_ONCE))
    if len(first) == size or not first:
        return first
    body = bytearray(size)
    room = memoryview(body)
    room[: len(first)] = first
    room = room[len(first) :]
    while room:
        room = room[os.readv(0, [room]) :]
    return body


def main():
    """Until the parent closes its end."""
    while header := read_exactly(SIZE_BYTES):
        body = read_exactly(int.from_bytes(header, "little"))
        sent = os.writev(1, (header, body)) - SIZE_BYTES
        rest = memoryview(body)[sent:]
        while rest:
            rest = rest[os.write(1, rest) :]


main()
