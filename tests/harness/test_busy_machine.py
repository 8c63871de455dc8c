"""Two single runs on a machine that others used: no win is printed out of their noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fuseproof.harness.perf.abba import compare_blocks
from fuseproof.harness.perf.blocks import read_blocks
from fuseproof.harness.perf.comparison import compare_dumps
from fuseproof.harness.perf.dump import read_perf_dump
from fuseproof.harness.perf.text import render_comparison
from tests.harness.perf_dump_files import write_block, write_dump


def environment(load: Any, cores: Any = 2, threads: Any = 1) -> dict[str, Any]:
    return {"environment": {"processor": {"usable_cores": cores}, "load_average": load, "torch_threads": threads}}


BUSY = environment([5.93, 3.6, 2.3])


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        pytest.param(BUSY, "load average 5.93 on 2 cores", id="busy"),
        pytest.param(environment([1.2, 1.0, 1.0]), None, id="the run itself"),
        pytest.param(environment([2.1, 2.0, 2.0], threads=2), None, id="its two threads"),
        pytest.param(environment([5.0, 5.0, 5.0], cores=128), None, id="a twenty-fifth of the cores"),
        pytest.param(environment([]), None, id="no average"),
        pytest.param(environment("5", cores=None), None, id="no numbers"),
        pytest.param({}, None, id="nothing recorded"),
    ],
)
def test_a_busy_machine_takes_the_words_from_a_change(
    tmp_path: Path, candidate: dict[str, Any], said: str | None
) -> None:
    files = write_dump(tmp_path / "a.json"), write_dump(tmp_path / "b.json", total_duration_ms=507.1, **candidate)
    comparison = compare_dumps([read_perf_dump(path) for path in files])
    text = render_comparison(comparison)
    assert ([] if said is None else [f"b.json: {said}"]) == comparison.to_json()["busy"]
    assert (said is None) == ("faster" in text)
    assert (said is None) == ("Others used the machine, and may have made this difference" not in text)
    assert "**" not in text and "How far two runs of one program differ here is not known" in text


def test_blocks_warn_of_it_once(tmp_path: Path) -> None:
    comparison = compare_blocks(read_blocks(write_block(tmp_path, (1.0, 0.9, 0.91, 1.01), B=BUSY), "ABBA"))
    (warning,) = [warning for warning in comparison.warnings if warning.code == "BUSY_MACHINE"]
    assert 2 == warning.detail.count("load average 5.93 on 2 cores")
