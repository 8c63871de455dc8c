"""A next step names flags of the command in use, or none: imported files and dumps side by side have no `abba` to go on
with.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import fuseproof
from fuseproof.cli.compare_perf import compare_perf
from fuseproof.harness.statistics.comparison import Block, Thresholds
from fuseproof.harness.statistics.next_steps import verdict_measured_elsewhere, without_campaign_flags
from fuseproof.harness.statistics.verdict import decide

FLAG = re.compile(r"--[a-z][a-z-]+")
ROOT = Path(fuseproof.__file__).resolve().parent.parent
ADVISING = ("harness/statistics", "harness/analysis")
OWN_OF_A_CAMPAIGN = {"harness/analysis/floor.py", "harness/analysis/campaign.py"}
"""Speak of `report`'s own flags, or of a floor that a campaign was given."""


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("Run two blocks, the second mirrored: --blocks 2.", "Measure two blocks, the second mirrored."),
        ("Mirror every second block: --order mirrored.", "Measure every second block in mirrored order."),
        ("quote a timer without tails, or run --blocks 4.", "quote a timer without tails, or measure 4 blocks in all."),
        ("same clocks, then run more blocks: --blocks 4.", "same clocks, then measure 4 blocks in all."),
        ("an effect of 2.00 % needs about 8 blocks: --blocks 8.", "an effect of 2.00 % needs about 8 blocks."),
        ("until two successive ones agree: warmup_slots = 2 in the plan.", "until two successive ones agree."),
        ("in both arms: --warmup --warmup-steps 2.", "in both arms."),
        ("Complete the pair: fuseproof abba --resume DIR.", "Complete the pair."),
        ("equally often: --order mirrored, --blocks 6.", "equally often: in mirrored order, 6 blocks."),
        ("that a smaller effect matters: --min-effect.", "that a smaller effect matters: --min-effect."),
    ],
)
def test_step_without_flags(told: str, expected: str) -> None:
    assert expected == without_campaign_flags(told)


def verdicts() -> list[list[Block]]:
    quiet, noisy = (10.0, 9.5, 9.51, 10.02), (10.0, 14.0, 7.0, 11.0)
    drifting, tailed = (10.0, 11.0, 12.0, 13.0), (10.0, 9.9, 40.0, 10.0)
    rows = [[quiet], [noisy], [noisy, noisy], [drifting, drifting], [tailed, quiet], [quiet, noisy, quiet, tailed]]
    return [[Block("ABBA", row, f"r{n}") for n, row in enumerate(found, start=1)] for found in rows]


@pytest.mark.parametrize("blocks", verdicts(), ids=str)
def test_compare_perf_advises_its_own_flags_only(blocks: list[Block]) -> None:
    own = {option for parameter in compare_perf.params for option in parameter.opts}
    for min_effect in (0.0, 0.01, 0.2):
        verdict = verdict_measured_elsewhere(decide(blocks, Thresholds(min_effect=min_effect, tick_s=0.5)))
        steps = [reason.next_step for reason in (*verdict.reasons, *verdict.warnings)]
        assert [] == [step for step in steps if not set(FLAG.findall(step)) <= own - {"--order", "--force"}]


def flagged_sentences() -> list[str]:
    """Every sentence with a flag in the rooms that give reasons, read off their source."""
    found = set()
    for folder in ADVISING:
        for path in sorted((ROOT / folder).glob("*.py")):
            if path.relative_to(ROOT).as_posix() in OWN_OF_A_CAMPAIGN or path.name == "next_steps.py":
                continue
            tree = ast.parse(path.read_text(encoding="utf-8"))
            docs = {id(node.body[0].value) for node in ast.walk(tree) if _has_doc(node)}
            for node in ast.walk(tree):
                if isinstance(node, ast.JoinedStr):
                    parts = (str(part.value) if isinstance(part, ast.Constant) else "7" for part in node.values)
                    found.add("".join(parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                    found.add(node.value)
    return sorted(text for text in found if re.search(r"--[a-z]", text) and " " in text and text.rstrip().endswith("."))


def _has_doc(node: ast.AST) -> bool:
    body = getattr(node, "body", None)
    return isinstance(body, list) and bool(body) and isinstance(body[0], ast.Expr)


@pytest.mark.parametrize("sentence", flagged_sentences(), ids=lambda text: text[:40])
def test_every_sentence_with_a_flag_has_a_form_without(sentence: str) -> None:
    """A new reason that names a flag of `abba` must be known here, or it reaches users who cannot follow it."""
    told = re.sub(r"nvidia-smi --\S+", "nvidia-smi", without_campaign_flags(sentence))
    assert {*FLAG.findall(told)} <= {"--min-effect"}
