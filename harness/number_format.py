"""How the report writes its numbers: one spelling for seconds, shares, effects, memory and their signs.

The sign convention is fixed here. A *reduction* is positive when the candidate takes less time (the column that pull
requests know); a *latency change* is negative when it takes less time and always carries the speed factor, so that no
reader has to guess what "+2.25 %" means.
"""

from __future__ import annotations

import math

MISSING = "n/a"
MINUS = "−"
MIB_PER_GIB = 1024.0


def number(value: float | None, digits: int = 2, *, signed: bool = False) -> str:
    """``value`` with ``digits`` decimals and a true minus sign; a value that rounds to zero carries no sign."""
    if value is None or not math.isfinite(value):
        return MISSING
    text = f"{abs(value):.{digits}f}"
    if float(text) == 0.0:
        return text
    if value < 0:
        return MINUS + text
    return f"+{text}" if signed else text


def seconds(value: float | None) -> str:
    """Seconds with four decimals, as the tables of public evidence print them."""
    return number(value, 4)


def short_duration(value_s: float) -> str:
    """A short time with a unit that suits it: ``40 ns``, ``2.5 µs``, ``10 ms``."""
    factor, unit = next(
        ((factor, unit) for factor, unit in ((1e9, "ns"), (1e6, "µs"), (1e3, "ms")) if value_s * factor < 999.5),
        (1.0, "s"),
    )
    return f"{value_s * factor:.3g} {unit}"


def percent(share: float | None, digits: int = 2) -> str:
    """A share (0.0607) as ``6.07%``, the form of the per-block cells."""
    return MISSING if share is None or not math.isfinite(share) else f"{number(100.0 * share, digits)}%"


def interval(low: float | None, high: float | None, digits: int = 2) -> str:
    """Two shares as ``[5.29, 6.32]`` in percent."""
    if low is None or high is None:
        return MISSING
    return f"[{number(100.0 * low, digits)}, {number(100.0 * high, digits)}]"


def speed_factor(reduction: float) -> float:
    """How many times faster a reduction makes the candidate; below 1 when it is slower."""
    return 1.0 / (1.0 - reduction)


def latency_change(reduction: float, *, directional: bool = True) -> str:
    """``−5.80 % latency (1.062× faster)``, ``+2.04 % latency (0.980×, slower)``.

    Without a directional verdict the factor stands alone: words are for what was shown.
    """
    change = f"{number(-100.0 * reduction, 2, signed=True)} % latency"
    factor = f"{speed_factor(reduction):.3f}×"
    if not directional:
        return f"{change} ({factor})"
    return f"{change} ({factor} faster)" if reduction > 0 else f"{change} ({factor}, slower)"


def gib(mebibytes: float | None, digits: int = 4) -> str:
    """MiB as GiB; the report knows no other unit of memory."""
    return MISSING if mebibytes is None else number(mebibytes / MIB_PER_GIB, digits)


def gib_change(mebibytes: float) -> str:
    """A difference in MiB as ``+1.38 GiB``; three decimals below 0.1 GiB."""
    change_gib = mebibytes / MIB_PER_GIB
    return f"{number(change_gib, 2 if abs(change_gib) >= 0.0995 else 3, signed=True)} GiB"


def count(amount: int, noun: str, plural: str | None = None) -> str:
    """``1 block``, ``2 blocks``."""
    return f"{amount} {noun if amount == 1 else plural or noun + 's'}"


def shortened(text: str, limit: int) -> str:
    """``text`` on one line, cut to ``limit`` characters with its full length said."""
    line = " ".join(text.split())
    if len(line) <= limit:
        return line
    return f"{line[:limit].rstrip()}… ({len(text):,} characters)"
