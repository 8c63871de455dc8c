"""The side process beside a slot, phases, what is kept of them, and the wait for free GPUs; all on fake NVML."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.gpu_records import CardsAtRest, SlotGpu
from fuseproof.harness.campaign.gpu_rest import CardsLook, GpuWatch, look_at_cards, read_look
from fuseproof.harness.campaign.gpu_telemetry import (
    GpuRecording,
    GpuSampler,
    conditions_of,
    hardware_slowdown,
    read_recording,
    slot_gpu,
    telemetry_lines,
)
from fuseproof.harness.campaign.interrupts import Interrupts
from fuseproof.harness.campaign.phases import PhaseTime, SlotPhases, dump_phases, log_phases, read_phases
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.campaign.runner import CampaignRunner
from fuseproof.harness.campaign.slots import ProcessExecutor
from fuseproof.schedules.order import timed_slots
from tests.harness.fake_commands import fake_plan
from tests.harness.fake_nvml import UUID, side_program

STARTED = datetime.fromisoformat("2026-11-30T10:00:00.5+00:00")
PHASES = SlotPhases((PhaseTime("load", 0, 10), PhaseTime("warm-up", 10, 14), PhaseTime("request", 15, 20)), "dump")


def sample(moment_s: float, **facts: Any) -> dict[str, Any]:
    usual = {"sm_clock_mhz": 1980.0, "power_w": 600.0, "utilization_percent": 99.0, "memory_used_mib": 1000.0}
    return {"monotonic_s": moment_s, "gpu": UUID, **usual, "temperature_c": 50.0, "event_reasons": 0, **facts}


# phases


@pytest.mark.parametrize(
    ("moment_s", "phase"),
    [(5.0, "load"), (12.0, "warm-up"), (14.5, "untagged"), (15.0, "request"), (20.0, "request"), (21.0, "untagged")],
)
def test_a_moment_has_the_phase_that_the_dump_gives_it(moment_s: float, phase: str) -> None:
    assert phase == PHASES.at(moment_s)


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param({"phase": "lunch", "started_monotonic_s": 1, "ended_monotonic_s": 2}, id="unknown-phase"),
        pytest.param({"phase": "request", "started_monotonic_s": 2, "ended_monotonic_s": 1}, id="backwards"),
        pytest.param({"phase": "request", "started_monotonic_s": "1", "ended_monotonic_s": 2}, id="text"),
        pytest.param({"phase": "request", "started_monotonic_s": float("nan"), "ended_monotonic_s": 2}, id="nan"),
        pytest.param({"phase": "request"}, id="no-times"),
        pytest.param("request", id="no-table"),
    ],
)
def test_phases_that_make_no_sense_are_left_out(entry: Any) -> None:
    assert () == dump_phases({"phases": [entry]})


def test_an_sglang_log_places_its_request_within_the_seconds_of_its_stamps() -> None:
    local = STARTED.astimezone().replace(microsecond=0).strftime("%m-%d %H:%M:")
    text = f"[{local}02] Warmed-up\n[{local}20] Pixel data generated successfully in 8.47 seconds\n"
    (found,) = log_phases(text, STARTED, 100.0)
    assert ("request", pytest.approx(112.03), pytest.approx(119.5)) == (found.phase, found.started_s, found.ended_s)


@pytest.mark.parametrize("stamp", ["", "[13-45 10:00:00] ", "[10:00:00] "], ids=["no-stamp", "no-such-day", "no-date"])
def test_a_log_without_stamps_tells_no_phase(stamp: str) -> None:
    assert () == log_phases(f"{stamp}Pixel data generated successfully in 8.47 seconds", STARTED, 100.0)


def test_phases_outside_the_slot_are_not_believed(tmp_path: Path) -> None:
    dump = tmp_path / "perf.json"
    entry = {"phase": "request", "started_monotonic_s": 50.0, "ended_monotonic_s": 60.0}
    dump.write_text(json.dumps({"phases": [entry]}), encoding="utf-8")
    assert SlotPhases() == read_phases(tmp_path, dump, STARTED, 55.0, 70.0)
    assert "dump" == read_phases(tmp_path, dump, STARTED, 40.0, 70.0).source


# what is kept


def test_a_recording_is_summed_up_by_phase_and_can_be_summed_up_again_from_its_lines() -> None:
    samples = (
        sample(5, sm_clock_mhz=345.0, utilization_percent=0.0),
        sample(16, event_reasons=4),
        sample(18, sm_clock_mhz=1900.0),
    )
    recording = GpuRecording(samples, cost={"cpu_s": 0.02, "wall_s": 10.0, "cores": 4})
    gpu = slot_gpu(recording, PHASES)
    (card,) = gpu.cards
    request = card.phases["request"]
    assert ["load", "request"] == list(card.phases)
    assert (2, 1940.0, {"SW power cap": 1}, 2) == (
        request.samples,
        request.sm_clock_mhz,
        request.event_counts,
        request.event_samples,
    )
    assert (11.0, 0.0005, "dump") == (gpu.longest_gap_s, gpu.cpu_share, gpu.phase_source)
    first, *lines = telemetry_lines(recording, PHASES, 1.0)
    assert {"phase": "request", "from_s": 14, "to_s": 19} == first["gpu_sampling"]["phases"][2]
    assert ["load", "request", "request"] == [line["phase"] for line in lines]
    assert gpu.cards == conditions_of(json.loads(json.dumps(line)) for line in (first, *lines))


def test_the_interval_is_measured_and_the_longest_gap_is_of_all_cards() -> None:
    other = {"gpu": "GPU-other"}
    moments = [(15, {}), (15.4, {}), (15.8, {}), (15, other), (15.4, other), (18.4, other)]
    gpu = slot_gpu(GpuRecording(tuple(sample(moment) | facts for moment, facts in moments)), PHASES)
    assert (0.4, 3.0) == (gpu.interval_s, gpu.longest_gap_s)
    alone = slot_gpu(GpuRecording((sample(15),)), PHASES)
    assert (None, None) == (alone.interval_s, alone.longest_gap_s)


def test_a_record_keeps_the_gpus() -> None:
    record = SlotRecord.planned(timed_slots("cell", 1, 1, "ABBA")[0])
    gpu = replace(
        slot_gpu(GpuRecording((sample(16),)), PHASES), at_rest=CardsAtRest(1.5, True, {UUID: 4.0}, {UUID: 3.0})
    )
    record = record.with_facts(gpu=gpu)
    assert record == SlotRecord.from_json(json.loads(json.dumps(record.to_json())))


def test_a_card_that_tells_nothing_leaves_nulls() -> None:
    nothing = {"monotonic_s": 16.0, "gpu": UUID, "sm_clock_mhz": None, "event_reasons": None}
    phase = slot_gpu(GpuRecording((nothing,)), PHASES).cards[0].phases["request"]
    assert (1, None, None, 0) == (phase.samples, phase.sm_clock_mhz, phase.memory_used_peak_mib, phase.event_samples)


@pytest.mark.parametrize(
    ("bits", "name"),
    [
        (0x8, "HW slowdown"),
        (0x40, "HW thermal slowdown"),
        (0x80, "HW power brake"),
        (0x4, None),
        (0x20, None),
        (0x3, None),
    ],
)
def test_only_the_hardwares_slowdowns_spoil_a_slot(bits: int, name: str | None) -> None:
    reason = hardware_slowdown(slot_gpu(GpuRecording((sample(16), sample(17, event_reasons=bits))), PHASES))
    expected = None if name is None else f"{UUID} was slowed down by its hardware ({name}) in 1 of 2 samples"
    assert expected == reason


def test_a_slowdown_of_an_idle_card_or_while_loading_spoils_nothing() -> None:
    idle = {"gpu": "GPU-idle", "utilization_percent": 0}
    loading, requesting = sample(11, event_reasons=0x80), sample(16)
    recording = GpuRecording((loading, requesting, sample(16, event_reasons=0x80) | idle, sample(17) | idle))
    assert None is hardware_slowdown(slot_gpu(recording, PHASES))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the GPU sampler wrote no sample"),
        ('{"monotonic_s": 1, "gpu": "x", "sm_', "the GPU sampler wrote no sample"),
        ('{"reason": "no driver"}\n', "no driver"),
        ("[1]\n7\n", "the GPU sampler wrote no sample"),
    ],
    ids=["empty", "cut-off", "reason", "no-tables"],
)
def test_a_recording_without_samples_says_why(text: str, reason: str) -> None:
    assert GpuRecording(reason=reason) == read_recording(text)


# the side process


def test_a_side_process_samples_until_it_is_stopped() -> None:
    sampler = GpuSampler((UUID,), side_program("nvml.answers['reasons'] = 0x40"))
    sampler.start()
    recording = sampler.stop()
    assert recording is not None
    assert (None, 0x40) == (recording.reason, recording.samples[0]["event_reasons"])
    assert recording.cpu_share is not None


def test_a_side_process_that_hangs_is_left_behind() -> None:
    sampler = GpuSampler((UUID,), (sys.executable, "-c", "import time; time.sleep(60)"), stop_limit_s=0.1)
    sampler.start()
    began_s = time.monotonic()
    recording = sampler.stop()
    assert time.monotonic() - began_s < 5.0
    assert recording == GpuRecording(reason="the GPU sampler did not end within 0.1 s: the driver may be hanging")


def test_a_side_process_that_cannot_start_is_a_reason() -> None:
    sampler = GpuSampler((UUID,), ("/nonexistent/python",))
    sampler.start()
    recording = sampler.stop()
    assert recording is not None and "could not be started" in (recording.reason or "")


def test_without_cards_nothing_is_started() -> None:
    sampler = GpuSampler((), ("/nonexistent/python",))
    sampler.start()
    assert None is sampler.stop()
    assert None is GpuWatch().wait_for_rest()


def test_one_look_within_a_limit() -> None:
    look = look_at_cards((UUID,), side_program("nvml.answers.update(pids=(7,), used_bytes=5 * 2**20)"))
    assert CardsLook({UUID: 5.0}, {UUID: (7,)}) == look
    hung = look_at_cards((UUID,), (sys.executable, "-c", "import time; time.sleep(60)"), limit_s=0.1)
    assert "NVML did not answer within 0.1 s: the driver may be hanging" == hung.reason
    assert "NVML does not tell how much memory is in use" == read_look("").reason


def test_the_server_of_cudas_multi_process_service_is_no_neighbour() -> None:
    """It stays on the card when its clients, our slots, have gone."""
    body = "nvml.answers.update(pids=(7, 8), names={8: b'/usr/bin/nvidia-cuda-mps-server'}, used_bytes=5 * 2**20)"
    look = look_at_cards((UUID,), side_program(body))
    assert ({UUID: (7,)}, (f"MPS server 8 on {UUID}",)) == (look.processes, look.mps)
    watch = Looks(used(4), replace(used(4), mps=look.mps)).watch()
    watch.note_baseline()
    found = watch.wait_for_rest()
    assert found is not None
    assert (0.0, True, (), look.mps) == (found.waited_s, found.is_at_rest, found.foreign, found.mps)


# waiting until the cards are free


class Looks:
    """Cards whose memory and processes follow a script, one entry a look; time passes with every sleep."""

    def __init__(self, *looks: CardsLook) -> None:
        self.looks = list(looks)
        self.now = 0.0

    def look(self, uuids: Sequence[str]) -> CardsLook:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def watch(self) -> GpuWatch:
        return GpuWatch((UUID,), look=self.look, sleep=self.sleep, now_s=lambda: self.now)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def used(mib: float, *pids: int) -> CardsLook:
    return CardsLook({UUID: mib}, {UUID: pids})


@pytest.mark.parametrize(
    ("looks", "waited_s", "is_at_rest", "foreign"),
    [
        pytest.param([used(4), used(4)], 0.0, True, (), id="free-at-once"),
        pytest.param([used(4), used(9000), used(5000), used(30)], 1.0, True, (), id="free-after-a-while"),
        pytest.param([used(4), used(9400)], 30.0, False, (), id="left-over"),
        pytest.param([used(4), used(4, 77)], 30.0, False, (f"process 77 on {UUID}",), id="a-neighbour-came"),
        pytest.param([used(900, 7), used(900, 7)], 0.0, True, (f"process 7 on {UUID}",), id="a-neighbour-from-before"),
        pytest.param([used(4), CardsLook(reason="hung")], 0.0, None, (), id="nobody-can-tell"),
    ],
)
def test_cards_are_waited_for_within_a_limit(
    looks: list[CardsLook], waited_s: float, is_at_rest: bool | None, foreign: tuple[str, ...]
) -> None:
    watch = Looks(*looks).watch()
    watch.note_baseline()
    found = watch.wait_for_rest()
    assert found is not None
    assert (waited_s, is_at_rest, foreign) == (found.waited_s, found.is_at_rest, found.foreign)


def test_an_interrupt_ends_the_wait_and_decides_nothing() -> None:
    """What is still there may be the slot's own processes, ending."""
    watch = Looks(used(4), used(9400)).watch()
    watch.note_baseline()
    found = watch.wait_for_rest(lambda: True)
    assert found is not None and (0.0, None, ()) == (found.waited_s, found.is_at_rest, found.foreign)


# a whole slot


class Watch(GpuWatch):
    """Cards at rest, sampled by a side process on fake NVML."""

    program: tuple[str, ...] = ()

    def sampler(self) -> GpuSampler:
        return GpuSampler(self.uuids, self.program)


def campaign_of(directory: Path, **keys: Any) -> Campaign:
    plan = fake_plan({}, {"worker_ms": 900}, **keys)
    return Campaign.create(directory, plan, command=["x"], environment={}, created="2026-01-01T00:00:00+00:00")


def watch_of(body: str = "") -> Watch:
    watch = Watch((UUID,), look=Looks(used(4)).look)
    watch.program = side_program(body)
    return watch


def test_a_slot_keeps_its_gpu_telemetry(tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path / "c")
    slot = timed_slots("cell", 1, 1, "ABBA")[0]
    record = ProcessExecutor(gpus=watch_of()).execute(campaign, slot, Interrupts())
    assert "done" == record.state
    assert record.gpu is not None and record.gpu.at_rest is not None and record.gpu.at_rest.is_at_rest
    lines = [
        json.loads(line) for line in (campaign.slot_directory(slot.id) / "telemetry.jsonl").read_text().splitlines()
    ]
    assert record.gpu.cards == conditions_of(lines)
    assert {"untagged"} == {line["phase"] for line in lines if "phase" in line}


def test_a_hardware_slowdown_costs_the_whole_block_and_both_attempts_are_kept(tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path / "c")
    once = tmp_path / "braked"
    body = (
        f"import pathlib\nonce = pathlib.Path({str(once)!r})\n"
        "if not once.exists(): nvml.answers['reasons'] = 0x40\nonce.touch()"
    )
    outcome = CampaignRunner(campaign, ProcessExecutor(gpus=watch_of(body))).run()
    assert "complete" == outcome.status
    first = SlotRecord.from_json(json.loads((campaign.slot_directory("cell/01-1-A") / "result.json").read_text()))
    assert ("invalid", "HW_SLOWDOWN") == (first.state, first.reason_code)
    assert first.times.worker_s is not None, "what it measured is kept"
    assert ["cell/01.2-1-A"] == [block.slots[0].id for block in campaign.complete_blocks("cell")]
    assert isinstance(first.gpu, SlotGpu)


def test_means_are_the_same_on_every_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """``sum`` of floats is compensated from Python 3.12 on: a campaign is verified where another Python measured it."""
    powers = [677.0925 + 0.001 * (-1) ** index * (index % 7) for index in range(28)]
    assert round(plain_sum(powers) / len(powers), 3) != round(math.fsum(powers) / len(powers), 3)
    recording = GpuRecording(tuple(sample(15.0 + 0.01 * index, power_w=power) for index, power in enumerate(powers)))
    means = []
    for adds in (plain_sum, compensated_sum):
        monkeypatch.setattr("builtins.sum", adds)
        means.append(slot_gpu(recording, PHASES))
    assert means[0] == means[1]


def plain_sum(values: Any, start: Any = 0) -> Any:
    for value in values:
        start = start + value
    return start


def compensated_sum(values: Any, start: Any = 0) -> Any:
    terms = list(values)
    return math.fsum(terms) if any(isinstance(term, float) for term in terms) else plain_sum(terms, start)
