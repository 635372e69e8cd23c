"""A value as one Data frame, for both sides of an endpoint."""

from __future__ import annotations

from typing import Any

from tunewire.endpoints.connection import Connection
from tunewire.errors import EncodeError, EndpointClosed, WireError
from tunewire.wire.codecs import Codec, decode_msgspec, decode_pickle, encode
from tunewire.wire.messages import Data, expect, pack_message


async def send_value(connection: Connection, value: Any, codec: Codec) -> int:
    """Send `value` and wait for the pipe to take it; the number of bytes. EndpointClosed if it is closed meanwhile."""
    used, buffers = encode(value, codec, what="value")
    parts, size = pack_message(Data(), codec=used, buffers=tuple(buffers))
    if size > connection.max_frame_bytes:
        reason = f"it makes a frame of {size} bytes, and the limit is {connection.max_frame_bytes}"
        raise EncodeError(what="value", reason=reason)
    connection.write(parts, size)
    await connection.drain()
    if not connection.is_writable:
        raise EndpointClosed()
    return size


async def receive_value(connection: Connection, codec: Codec) -> Any:
    """The next value. A frame in another codec than agreed is a WireError: a peer must not choose to be unpickled."""
    frame = await connection.read_frame()
    expect(frame, Data)
    if codec is Codec.MSGSPEC:
        if frame.codec != Codec.MSGSPEC:
            raise WireError(reason=f"a value in codec {frame.codec} came where msgspec was agreed")
        return decode_msgspec(frame.buffers, what="value")
    if frame.codec not in (Codec.PICKLE, Codec.CLOUDPICKLE):
        raise WireError(reason=f"a value in codec {frame.codec} came where pickle was agreed")
    return decode_pickle(frame.buffers, what="value")
