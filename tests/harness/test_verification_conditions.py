"""What result.json says of the GPUs is held to the samples beside it."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fuseproof.harness.campaign.gpu_records import SlotGpu
from fuseproof.harness.campaign.gpu_telemetry import conditions_of
from fuseproof.harness.verification.conditions import gpu_findings
from fuseproof.harness.verification.findings import Tally

FOLDER = "slots/panda/01-2-B"
SAMPLES = [
    {"gpu": "GPU-1", "phase": "request", "sm_clock_mhz": 1500.0 + 15 * step, "power_w": 690.0, "event_reasons": 4}
    for step in range(4)
]


@pytest.fixture
def slot(tmp_path):
    (tmp_path / FOLDER).mkdir(parents=True)
    (tmp_path / FOLDER / "telemetry.jsonl").write_text("".join(json.dumps(line) + "\n" for line in SAMPLES))
    return SimpleNamespace(directory=FOLDER, gpu=SlotGpu(conditions_of(SAMPLES)))


def findings(tmp_path, slot, changed=()):
    tally = Tally()
    found = list(gpu_findings(SimpleNamespace(directory=tmp_path), slot, frozenset(changed), tally))
    return found, tally.counts


def test_true_conditions_agree_and_are_counted(tmp_path, slot):
    found, counts = findings(tmp_path, slot)
    assert [] == found
    assert 10 < counts["GPU conditions"]


def test_a_changed_clock_in_the_result_is_named_with_both_values(tmp_path, slot):
    (card,) = slot.gpu.cards
    phases = {"request": replace(card.phases["request"], sm_clock_mhz=1900.0)}
    slot.gpu = SlotGpu((replace(card, phases=phases),))
    (finding,), _ = findings(tmp_path, slot)
    assert f"{FOLDER}/result.json" == finding.file
    assert ("gpu.cards[GPU-1].request.sm_clock_mhz", 1900.0, 1522.5) == (
        finding.place,
        finding.stated,
        finding.expected,
    )


def test_a_changed_sample_is_named_where_only_the_samples_are_not_as_signed(tmp_path, slot):
    name = f"{FOLDER}/telemetry.jsonl"
    text = (tmp_path / name).read_text()
    (tmp_path / name).write_text(text.replace("1500.0", "1900.0"))
    (finding,), _ = findings(tmp_path, slot, changed=[name])
    assert (name, 1622.5, 1522.5) == (finding.file, finding.stated, finding.expected)


@pytest.mark.parametrize(("text", "why"), [(None, "No such file"), ("[1]\n", "no JSON object"), ("{\n", "no JSON")])
def test_samples_that_cannot_be_read_are_a_finding(tmp_path, slot, text, why):
    path = tmp_path / FOLDER / "telemetry.jsonl"
    path.unlink() if text is None else path.write_text(text)
    (finding,), _ = findings(tmp_path, slot)
    assert why in finding.text


def test_a_slot_without_cards_needs_no_samples(tmp_path):
    assert ([], {}) == findings(tmp_path, SimpleNamespace(directory=FOLDER, gpu=SlotGpu()))
