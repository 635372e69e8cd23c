"""Log records of a service's process, forwarded to the logging of the process that connected.

In the child a handler on the root logger makes text of each record (nothing of it is ever unpickled, and `%s` is done
where the arguments live) and sends it as a Log. In the parent it is handled by the logger `tunewire.service.<Name>`, as a
record whose name has the child's logger name behind that. No logger is made for that name: loggers live for ever, and
the child could make up as many as it likes.

The level is settled once, when the connection is opened: the child does not send what the parent's logger would drop.

A flood holds nobody up. On the loop's thread, while the pipe takes it, a record is sent at once, so that it is there before
the reply of the call that made it. Otherwise it waits, among `MAX_WAITING` at most; what finds no room there is dropped and
counted, and the count travels with the next record that is sent. A record that is made while another one is being made
or sent on the same thread (logging about logging) is dropped and counted too, so there is no loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from tunewire.endpoints.connection import Connection
from tunewire.errors import encodable, printable
from tunewire.wire.messages import Log, pack_message

#: Characters of a record's text, and of its exception's, that are sent.
MAX_TEXT = 8192
#: Records that wait to be sent.
MAX_WAITING = 512
_MAX_LEVEL = 100
_MAX_CREATED = 1 << 33

_formatter = logging.Formatter()


def service_logger(service: str) -> logging.Logger:
    """Where the records of this service are handled.

    >>> service_logger("Scale").name
    'tunewire.service.Scale'
    """
    return logging.getLogger(f"tunewire.service.{service}")


def wanted_level(logger: logging.Logger) -> int | None:
    """The least level that this logger does not drop; None if it drops every record."""
    if logger.disabled:
        return None
    return max(logger.getEffectiveLevel(), logger.manager.disable + 1)


def handle(logger: logging.Logger, log: Log, pid: int | None) -> None:
    """Give a record that came to this process's logging. Its text is shown and not obeyed, as a child's is anywhere."""
    if log.dropped > 0:
        logger.warning("%d log records of the service's process were dropped", log.dropped)
    # A logger remembers each level that it was asked about, and a formatter fails where a clock cannot reach.
    level = min(max(log.level, 0), _MAX_LEVEL)
    created = log.created if 0 <= log.created < _MAX_CREATED else time.time()
    if not logger.isEnabledFor(level):
        return
    name = printable(log.logger)
    logger.handle(
        logging.makeLogRecord(
            {
                "name": f"{logger.name}.{name}" if name else logger.name,
                "msg": printable(log.text),
                "levelno": level,
                "levelname": logging.getLevelName(level),
                "created": created,
                "msecs": (created % 1) * 1000,
                "process": pid,
                "exc_text": None if log.exception is None else printable(log.exception),
            }
        )
    )


def log_of(record: logging.LogRecord, dropped: int = 0) -> Log:
    """A record as what is sent of it."""
    exception = record.exc_text
    if record.exc_info and not exception:
        exception = _formatter.formatException(record.exc_info)
    if record.stack_info:
        exception = "\n".join(filter(None, (exception, record.stack_info)))
    text = record.getMessage()
    if len(text) > MAX_TEXT:
        text = f"{text[:MAX_TEXT]}... ({len(text) - MAX_TEXT} characters more)"
    return Log(
        level=int(record.levelno),
        logger="" if record.name == "root" else encodable(record.name[:MAX_TEXT]),
        text=encodable(text),
        created=record.created,
        exception=None if exception is None else encodable(exception[-MAX_TEXT:]),
        dropped=dropped,
    )


@asynccontextmanager
async def forwarded_logs(connection: Connection, level: int) -> AsyncIterator[None]:
    """While this is open, what is logged in this process goes over the connection."""
    root = logging.getLogger()
    forwarder = LogForwarder(connection, level)
    root.addHandler(forwarder)
    root.setLevel(level)
    try:
        yield
    finally:
        root.removeHandler(forwarder)
        await forwarder.stop()


class LogForwarder(logging.Handler):
    """Sends the records of this process over a connection. Made on the loop's thread; records come from any."""

    def __init__(self, connection: Connection, level: int) -> None:
        super().__init__(level)
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._waiting: deque[Log] = deque()
        self._dropped = 0
        self._busy = threading.local()
        self._sending: asyncio.Task[None] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record, or keep it to be sent. Never waits."""
        if getattr(self._busy, "now", False):
            self._dropped += 1
            return
        self._busy.now = True
        try:
            self._take(log_of(record))
        except Exception:  # noqa: BLE001 — an argument whose __str__ fails: logging has its own way to tell of it
            self.handleError(record)
        finally:
            self._busy.now = False

    def _take(self, log: Log) -> None:
        here = threading.get_ident() == self._thread
        if here and not self._waiting and self._connection.has_room:
            self._send(log)
            return
        if len(self._waiting) >= MAX_WAITING:
            self._dropped += 1
            return
        self._waiting.append(log)
        if len(self._waiting) == 1 and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._begin_sending)

    def _begin_sending(self) -> None:
        if self._sending is None or self._sending.done():
            self._sending = self._loop.create_task(self._send_waiting())

    async def _send_waiting(self) -> None:
        while self._waiting:
            self._send(self._waiting.popleft())
            await self._connection.drain()

    def _send(self, log: Log) -> None:
        if self._dropped:
            log, self._dropped = msgspec.structs.replace(log, dropped=self._dropped), 0
        self._connection.write(*pack_message(log))

    async def stop(self) -> None:
        """Send what waits, as far as the pipe takes it at once, and no more."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait([self._sending])
        while self._waiting and self._connection.has_room:
            self._send(self._waiting.popleft())
