"""How the GPUs ran, summed up again from the samples of ``telemetry.jsonl``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fuseproof.harness.campaign.folder import RESULT_FILE, Campaign
from fuseproof.harness.campaign.gpu_records import CardConditions
from fuseproof.harness.campaign.gpu_telemetry import conditions_of
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.verification.findings import Finding, Tally

TELEMETRY_FILE = "telemetry.jsonl"


def gpu_findings(campaign: Campaign, record: SlotRecord, changed: frozenset[str], tally: Tally) -> Iterator[Finding]:
    """What ``result.json`` says of each card and phase, against the samples; ``changed`` files are not as signed.

    Where only the samples are not as signed, they are what is named.
    """
    if record.gpu is None or not record.gpu.cards:
        return
    name = f"{record.directory}/{TELEMETRY_FILE}"
    try:
        lines = _lines(campaign.directory / name)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "a line is no JSON object"
        yield Finding(name, f"cannot be read ({reason}), so what the GPUs did cannot be recomputed")
        return
    stated, expected = _leaves(record.gpu.cards), _leaves(conditions_of(lines))
    tally.count("GPU conditions", len(stated))
    for place in {**stated, **expected}:
        result, samples = stated.get(place), expected.get(place)
        if result == samples:
            continue
        if name in changed and f"{record.directory}/{RESULT_FILE}" not in changed:
            what = f"what its samples give for {place}"
            yield Finding(name, None, what, samples, result, f"{RESULT_FILE} gpu.{place}")
        else:
            yield Finding(f"{record.directory}/{RESULT_FILE}", None, f"gpu.{place}", result, samples, name)
        return


def _lines(path: Path) -> list[Mapping[str, Any]]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not all(isinstance(line, dict) for line in lines):
        raise ValueError(path)
    return lines


def _leaves(cards: tuple[CardConditions, ...]) -> dict[str, Any]:
    """Every number by its place: ``cards[UUID].request.sm_clock_mhz``."""
    return {
        f"cards[{card.uuid}].{phase}.{field}": dict(value) if isinstance(value, Mapping) else value
        for card in cards
        for phase, conditions in card.phases.items()
        for field, value in dataclasses.asdict(conditions).items()
    }
