"""The result as JUnit XML, for a build server: one suite a cell, one test case a check.

Of several candidates each has a suite of its own; the time of the baseline's slots is the first one's.

A check is passed only where something was looked at and found good. SLOWER, INVALID, a broken contract, a lost block
and fast paths that did not run as asked are failures; what decides nothing (INCONCLUSIVE, a block that has not run,
outputs that were not compared, no fast path asked for) is skipped, and a skipped check is never a pass. The exit code
of the command stays the one of its text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from fuseproof.harness.analysis.campaign import CampaignAnalysis, CellAnalysis, failure_reason
from fuseproof.harness.analysis.runs import ARMS
from fuseproof.harness.analysis.sentences import UNFINISHED, outputs_line, reason_text, verdict_line
from fuseproof.harness.escape import visible_lines
from fuseproof.harness.number_format import count
from fuseproof.harness.report.privacy import Cleaner
from fuseproof.harness.statistics.verdict import Word

PASSING_WORDS = frozenset({Word.FASTER, Word.SAME})
FAILING_WORDS = frozenset({Word.SLOWER, Word.INVALID})
CAMPAIGN_SUITE = "campaign"
NOT_XML = str.maketrans({"\ufffe": "\\ufffe", "\uffff": "\\uffff"})
"""Two characters that no XML document may hold; all the others of that kind are spelled out by ``visible_lines``."""

Outcome = Literal["passed", "failure", "skipped"]


@dataclass(frozen=True)
class Check:
    """One test case. ``text`` is the sentence behind the outcome, ``code`` its kind in one word."""

    name: str
    outcome: Outcome
    code: str
    text: str


def render_junit(analysis: CampaignAnalysis) -> str:
    """The campaign as one XML document; the same folder always gives the same bytes."""
    cleaner = Cleaner()
    root = ElementTree.Element("testsuites", {"name": _text(analysis.campaign.name, cleaner)})
    suites = [(CAMPAIGN_SUITE, [_campaign_check(analysis)], 0.0)]
    for cell in analysis.cells:
        slots = [slot for slot in cell.runs.slots if slot.arm == cell.runs.candidate or cell.runs.candidate == ARMS[1]]
        spent_s = math.fsum(slot.wall_s or 0.0 for slot in slots)
        suites.append((f"cell {cell.name}", cell_checks(cell), spent_s))
    for name, checks, spent_s in suites:
        root.append(_suite(name, checks, spent_s, cleaner))
    root.attrib |= _counts([check for _, checks, _ in suites for check in checks])
    ElementTree.indent(root)
    body = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def cell_checks(cell: CellAnalysis) -> list[Check]:
    """Verdict, contract, slots and fast paths of one cell."""
    return [_verdict_check(cell), _contract_check(cell), _slots_check(cell), _fastpaths_check(cell)]


def _campaign_check(analysis: CampaignAnalysis) -> Check:
    status = analysis.campaign.status
    if status == "complete":
        return Check("complete", "passed", status, "the campaign ran to its end")
    said = UNFINISHED if status == "running" else status
    return Check("complete", "failure" if status == "failed" else "skipped", status, f"the campaign is {said}")


def _verdict_check(cell: CellAnalysis) -> Check:
    word = cell.word
    outcome: Outcome = "passed" if word in PASSING_WORDS else "failure" if word in FAILING_WORDS else "skipped"
    return Check("verdict", outcome, word.value, verdict_line(cell))


def _contract_check(cell: CellAnalysis) -> Check:
    outputs = cell.outputs
    if not outputs.keeps_contract:
        return Check("contract", "failure", "CONTRACT", outputs_line(outputs))
    if outputs.decided_by is None:
        return Check("contract", "skipped", "NOT_COMPARED", "no complete block with outputs: nothing to compare")
    return Check("contract", "passed", outputs.contract, outputs_line(outputs))


def _slots_check(cell: CellAnalysis) -> Check:
    """Whether every planned block has all its slots, each fit for use; a block that was measured again has."""
    failed = [failure_reason(lost) for lost in cell.runs.lost if lost.has_failed]
    if failed:
        return Check("slots valid", "failure", failed[0].code, "\n".join(reason_text(reason) for reason in failed))
    lost = [failure_reason(block).detail for block in cell.runs.lost]
    if lost:
        return Check("slots valid", "skipped", "NOT_RUN", "\n".join(lost))
    return Check("slots valid", "passed", "done", f"{count(len(cell.runs.runs), 'slot')} count")


def _fastpaths_check(cell: CellAnalysis) -> Check:
    proof = cell.fastpaths
    if not proof.is_as_asked:
        text = "\n".join(reason_text(reason) for reason in proof.warnings)
        return Check("fast paths", "failure", proof.warnings[0].code, text)
    calls = proof.fused_calls("B")
    if not calls:
        return Check("fast paths", "skipped", "NONE_ASKED", "the candidate reports no fast path that was asked for")
    sites = count(proof.fused_sites("B"), "site")
    return Check("fast paths", "passed", "fused", f"{calls:,} fused calls of the candidate at {sites}")


def _suite(name: str, checks: Sequence[Check], spent_s: float, cleaner: Cleaner) -> ElementTree.Element:
    attributes = {"name": _text(name, cleaner), **_counts(checks), "time": f"{spent_s:.3f}"}
    suite = ElementTree.Element("testsuite", attributes)
    for check in checks:
        case = ElementTree.SubElement(suite, "testcase", {"classname": attributes["name"], "name": check.name})
        said = _text(check.text, cleaner)
        if check.outcome == "passed":
            ElementTree.SubElement(case, "system-out").text = said
            continue
        message = said.partition("\n")[0]
        kind = {"type": check.code} if check.outcome == "failure" else {}
        ElementTree.SubElement(case, check.outcome, {"message": message, **kind}).text = said
    return suite


def _counts(checks: Sequence[Check]) -> dict[str, str]:
    outcomes = [check.outcome for check in checks]
    return {
        "tests": str(len(outcomes)),
        "failures": str(outcomes.count("failure")),
        "errors": "0",
        "skipped": str(outcomes.count("skipped")),
    }


def _text(text: str, cleaner: Cleaner) -> str:
    return visible_lines("\n".join(cleaner.text(line) for line in text.splitlines())).translate(NOT_XML)
