"""Numbers and foreign text as people read them. Pure."""

from __future__ import annotations

import unicodedata

__all__ = ["duration", "percent", "printable", "rate", "seconds", "size"]

#: Categories of characters that a terminal may obey instead of showing: controls, format characters (which turn
#: the direction of writing), surrogates, private ones and line separators.
_OBEYED = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def printable(text: str, *, lines: bool = False) -> str:
    """`text` with every character escaped that a terminal would obey; line feeds and tabs are kept with `lines`.

    What a compiler or a kernel's process wrote is not ours, and may hold anything.

    >>> printable("a\\x1b[31mb\\n")
    'a\\\\x1b[31mb\\\\n'
    """
    kept = "\n\t" if lines else ""
    return "".join(
        character
        if character in kept or unicodedata.category(character) not in _OBEYED
        else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )


_DURATIONS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))


def duration(ns: float) -> str:
    """Nanoseconds with four digits, in the unit that fits.

    >>> duration(7_852_123.0), duration(98.7), duration(16.704e6)
    ('7.852 ms', '98.70 ns', '16.70 ms')
    """
    factor, unit = next((each for each in _DURATIONS if ns >= each[0]), _DURATIONS[-1])
    return f"{_four_digits(ns / factor)} {unit}"


def _four_digits(value: float) -> str:
    return f"{value:.{max(0, 4 - len(str(int(value))))}f}"


def rate(value: float) -> str:
    """A rate with four digits.

    >>> rate(31.987), rate(0.5), rate(12345.6)
    ('31.99', '0.500', '12346')
    """
    return _four_digits(value)


def percent(share: float) -> str:
    """A share in percent, with one decimal.

    >>> percent(0.0123)
    '1.2 %'
    """
    return f"{100 * share:.1f} %"


def seconds(value: float) -> str:
    """A time that people wait.

    >>> seconds(4.26), seconds(75), seconds(3700)
    ('4.3 s', '1 min 15 s', '1 h 1 min')
    """
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def size(count: int) -> str:
    """Bytes, in the binary unit that fits.

    >>> size(4_298_434_560)
    '4.0 GiB'
    """
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
