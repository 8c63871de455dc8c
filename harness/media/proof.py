"""Why two equal media may prove nothing, and the numbers of a comparison in words."""

from __future__ import annotations

from typing import Protocol

_WHOLE_DISTANCES = 1000.0
"""From here on a distance is told in whole units."""


_SMALLEST_USED_SHARE_OF_RANGE = 0.02


class Compared(Protocol):
    """One of the two pictures or videos of a comparison."""

    @property
    def nonfinite(self) -> int: ...

    @property
    def degenerate(self) -> str | None: ...

    @property
    def lossy(self) -> str | None: ...


def proof_gaps(a: Compared, b: Compared) -> tuple[str, ...]:
    """One sentence a side whose values prove nothing."""
    sentences = []
    for label, side in (("A", a), ("B", b)):
        if side.degenerate == "non-finite":
            plural = "" if side.nonfinite == 1 else "s"
            sentences.append(f"{label} has {side.nonfinite:,} non-finite value{plural}, so it proves nothing")
        elif side.degenerate:
            sentences.append(f"{label} is {side.degenerate} (one value everywhere), so it proves nothing")
    return tuple(sentences)


def proof_losses(a: Compared, b: Compared) -> tuple[str, ...]:
    """One sentence a side whose container may hide or make differences."""
    return tuple(
        f"{label}: {side.lossy}, so exactness cannot be shown" for label, side in (("A", a), ("B", b)) if side.lossy
    )


def span_warnings(low: float, high: float, data_range: float) -> tuple[str, ...]:
    """That float values, which span ``low`` to ``high``, do not suit the data range that they are measured with."""
    if high - low > data_range:
        return (f"the values span {low:g}..{high:g}, more than the data range {data_range:g}",)
    if high - low < _SMALLEST_USED_SHARE_OF_RANGE * data_range:
        return (f"the values span only {low:g}..{high:g} of the data range {data_range:g}: SSIM and PSNR flatter",)
    return ()


def share_text(share: float) -> str:
    """A share as a percentage that reads 0 % or 100 % only when it is."""
    text = f"{100 * share:.3g}"
    return f"just under {text} %" if share < 1 and float(text) >= 100 else f"{text} %"


def distance_text(distance: float | None) -> str:
    """The largest distance of two values as digits that read 0 only when it is 0: of floats it may be tiny."""
    if distance is None:
        return "n/a"
    return f"{distance:.0f}" if distance.is_integer() or distance >= _WHOLE_DISTANCES else f"{distance:.4g}"
