"""``OMP_NUM_THREADS`` as torch's OpenMP library reads it: a value that is no count is dropped with at most a murmur."""

from __future__ import annotations

import re
from collections.abc import Mapping

VARIABLE = "OMP_NUM_THREADS"


def thread_count_warning(environment: Mapping[str, str]) -> str | None:
    """Why the number of threads is not the one that was asked for; None when it is, or when none was."""
    value = environment.get(VARIABLE)
    if value is None or re.fullmatch(r"\s*0*[1-9][0-9]{0,8}\s*(,\s*0*[1-9][0-9]{0,8}\s*)*", value):
        return None
    return (
        f"{VARIABLE} is {value[:40]!r}, which is no number of threads (1 or more): the library chose its own, and "
        "times and the last bits of sums may follow it."
    )
