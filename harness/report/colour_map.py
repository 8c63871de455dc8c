"""The colours of difference pictures: dark to light like magma, every step as much lighter as the one before.

17 colours whose CIE lightness rises evenly from 1 to 97, and whole-number interpolation between them, so that every
machine draws the same bytes. Lightness alone carries the order: it reads the same in grey and without colour vision.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

STOPS = (
    "02030d", "101330", "24184e", "421c5e", "621c6a", "831972", "a31774", "bf206f", "d93069",
    "ee4460", "ff5c56", "ff7d57", "ff9965", "ffb37c", "ffcb96", "ffe1b6", "fff6de",
)  # fmt: skip
LEVELS = 256


@cache
def palette() -> npt.NDArray[np.uint8]:
    """uint8 256 x 3: the colour of each level, 0 (dark) to 255 (light)."""
    stops = np.array([[int(stop[start : start + 2], 16) for start in (0, 2, 4)] for stop in STOPS], dtype=np.int64)
    last = LEVELS - 1
    position = np.arange(LEVELS) * (len(STOPS) - 1)
    low = np.minimum(position // last, len(STOPS) - 2)
    part = (position - low * last)[:, None]
    mixed = (stops[low] * (last - part) + stops[low + 1] * part + last // 2) // last
    found: npt.NDArray[np.uint8] = mixed.astype(np.uint8)
    found.flags.writeable = False
    return found


def coloured(levels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """``levels``, uint8 H x W, as colours, uint8 H x W x 3."""
    return palette()[levels]
