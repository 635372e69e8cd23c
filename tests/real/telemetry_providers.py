"""Providers of the telemetry tests. Each is made in the process that samples."""

import builtins
import os
import time
from asyncio import CancelledError  # noqa: F401 — found by its name
from pathlib import Path


class Counting:
    def __init__(self):
        self.readings = 0

    def read(self):
        self.readings += 1
        return {"readings": self.readings, "nothing": None}

    def close(self):
        if path := os.environ.get("TELEMETRY_TEST_CLOSED"):
            Path(path).write_text(f"closed after {self.readings > 0}")


class Failing:
    def read(self):
        raise ZeroDivisionError("no readings here")

    def close(self):
        pass


class Unmakeable:
    def __init__(self):
        raise LookupError("this cannot be made")


class Hanging:
    """Hangs while the file that TELEMETRY_TEST_HANGS names is there."""

    def read(self):
        while Path(os.environ["TELEMETRY_TEST_HANGS"]).exists():
            time.sleep(0.005)
        return {"back": 1.0}

    def close(self):
        pass


class Ill:
    """Raises what TELEMETRY_TEST_RAISES names: of builtins, or of this module."""

    def read(self):
        name = os.environ["TELEMETRY_TEST_RAISES"]
        raise {**vars(builtins), **globals()}[name]("as told")

    def close(self):
        self.read()


class Unspeakable(Exception):
    def __str__(self):
        raise LookupError("this error has no words")


class Undecodable(Exception):
    def __str__(self):
        return os.fsdecode(b"\xff")


class Odd:
    """Gives what JSON has no words for."""

    def read(self):
        return {os.fsdecode(b"\xff"): 1, "nan": float("nan"), "more": float("inf"), "flag": True}

    def close(self):
        pass
