"""Values of ``OMP_NUM_THREADS`` that the OpenMP library drops."""

from __future__ import annotations

import pytest

from fuseproof.cli.thread_count import thread_count_warning


@pytest.mark.parametrize(
    ("value", "is_fine"),
    [
        (None, True),
        ("1", True),
        (" 8 ", True),
        ("4,2", True),
        ("0", False),
        ("", False),
        ("-1", False),
        ("two", False),
        ("1.5", False),
        ("4,0", False),
        ("9" * 30, False),
    ],
)
def test_what_is_no_number_of_threads_is_told(value: str | None, is_fine: bool) -> None:
    warning = thread_count_warning({} if value is None else {"OMP_NUM_THREADS": value})
    assert is_fine == (warning is None)
    assert is_fine or repr(str(value)[:40]) in str(warning)
