"""The page that explains verdicts: every code of the program stands in it, and its worked example is right."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from fuseproof.harness.statistics.comparison import Block
from fuseproof.harness.statistics.verdict import decide

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8")
GLOSSARY = PAGE.partition("## Every code")[2]
ROOMS = ("statistics", "analysis", "campaign", "perf", "importing")
VARIABLES = re.compile(
    "(CONDA|CUBLAS|CUDA|DNNL|FUSEPROOF|GIT|HF|HUGGINGFACE|LC|LD|MKL|NVIDIA|OMP|ONEDNN|OPENBLAS|PCI|RAY|SGLANG|SIG|TORCH"
    "|TORCHINDUCTOR|TRITON|VIRTUAL|XDG)_.*|PYTHON.*|SIG[A-Z]+|PATH|HOME"
)
WORDS = frozenset(("ABBA", "BAAB", "FASTER", "SLOWER", "SAME", "INCONCLUSIVE", "INVALID", "HEAD", "ERROR"))
ASSEMBLED = ("OOM", "BASELINES_DIFFER", "CANDIDATES_DIFFER")
"""Codes that no constant of four letters or more spells."""


def codes() -> set[str]:
    """Every text in capitals that is neither a verdict's word, an order of slots nor an environment variable."""
    texts = {
        node.value
        for room in ROOMS
        for file in (ROOT / "harness" / room).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    capitals = {text for text in texts if re.fullmatch(r"[A-Z]{2,}(_[A-Z]+)*", text) and len(text) > 3}
    return {text for text in capitals if not VARIABLES.fullmatch(text)} - WORDS | set(ASSEMBLED)


def test_every_code_stands_in_the_glossary() -> None:
    assert [] == sorted(code for code in codes() if f"`{code}`" not in GLOSSARY)


def test_the_glossary_names_no_code_that_nothing_says() -> None:
    cells = re.findall(r"^\| ((?:`[A-Z_]+`(?:, )?)+) \|", GLOSSARY, re.MULTILINE)
    named = {code for cell in cells for code in re.findall(r"`([A-Z_]+)`", cell)}
    assert [] == sorted(named - codes())


@pytest.fixture
def klein() -> list[Block]:
    def seconds(name: str) -> float:
        file = ROOT / "tests" / "data" / "perf_dumps" / "klein" / f"{name}.json"
        return float(json.loads(file.read_text(encoding="utf-8"))["total_duration_ms"]) / 1000

    return [Block("ABBA", tuple(seconds(f"r{block}-{slot}") for slot in ("a1", "b1", "b2", "a2"))) for block in (1, 2)]


def test_the_worked_example_is_what_the_program_computes(klein: list[Block]) -> None:
    example = PAGE.partition("## Worked example")[2].partition("\n## ")[0]
    verdict = decide(klein)
    found = verdict.comparison
    assert found is not None and found.smallest_detectable_effect is not None
    lower, upper = found.interval_used
    for text in (
        *(f"{second:.6f}" for block in klein for second in block.seconds),
        *(f"{block.log_effect:.7f}".replace("-", "−") for block in found.blocks),
        *(f"{block.drift_per_slot:.7f}" for block in found.blocks),
        f"δ̄ = {found.log_effect:.7f}".replace("-", "−"),
        f"{100 * found.reduction:.3f} %",
        f"[{100 * lower:.3f} %, {100 * upper:.3f} %]",
        f"= {found.scatter:.8f}",
        f"= {found.half_width:.8f}",
        f"B̄ = {found.mean_drift_per_slot:.8f}",
        f"the guard is {4 * found.mean_drift_per_slot:.8f}",
        f"is {found.drift_alias:.8f}",
        f"Pair median {100 * found.pair_median_reduction:.3f} %",
        f"{100 * found.smallest_detectable_effect:.3f} %",
        f"**{verdict.word}**",
        *(f"`{warning.code}`" for warning in verdict.warnings),
    ):
        assert text in example, text
