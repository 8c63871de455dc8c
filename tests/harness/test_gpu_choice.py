"""Which cards ``--gpus`` means, what its slots see of them, and whose processor time beside a slot is its own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fuseproof.errors import UsageError
from fuseproof.harness.campaign.gpu_choice import (
    chosen_gpus,
    device_environment,
    environment_of,
    refuse_arms_with_devices,
    thread_share,
    threads_of,
)
from fuseproof.harness.campaign.interrupts import Interrupts
from fuseproof.harness.campaign.own_use import OwnUse, trees_cpu_s
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.campaign.slots import Placement, ProcessExecutor
from fuseproof.harness.machine import usage
from fuseproof.harness.machine.gpus import Gpu, GpuSurvey
from fuseproof.schedules.order import timed_slots
from tests.harness.fake_commands import fake_plan
from tests.harness.test_runner import create

UNTOLD = (
    *("driver_version", "pci_bus_id", "memory_total_mib", "memory_used_mib", "utilization_percent", "temperature_c"),
    *("performance_state", "persistence_mode", "compute_mode", "power_limit_w", "power_default_limit_w"),
)
FIELDS = dict.fromkeys(UNTOLD)


def card(index: int, uuid: str | None, **facts: str) -> Gpu:
    return Gpu(index=index, uuid=uuid, name="NVIDIA H200", **{**FIELDS, **facts})  # type: ignore[arg-type]


FIRST, SECOND, SPLIT = card(0, "GPU-aaaa1111"), card(1, "GPU-bbbb2222"), card(2, "GPU-cccc3333", mig_mode="Enabled")
SURVEY = GpuSurvey((FIRST, SECOND, SPLIT))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("0", [0], id="one"),
        pytest.param("1,0", [1, 0], id="in-the-order-given"),
        pytest.param(" 0 , GPU-bbbb2222 ", [0, 1], id="index-and-uuid"),
        pytest.param("GPU-bb", [1], id="beginning-of-a-uuid"),
    ],
)
def test_gpus_are_named_by_index_or_uuid(text: str, expected: list[int]) -> None:
    assert expected == [gpu.index for gpu in chosen_gpus(text, SURVEY)]


PRESENT = r"there are 0 \(GPU-aaaa1111\), 1 \(GPU-bbbb2222\), 2 \(GPU-cccc3333\)\."


@pytest.mark.parametrize(
    ("text", "visible", "words"),
    [
        pytest.param("7", None, f"names '7', which is no GPU of this campaign; {PRESENT}", id="no-such-index"),
        pytest.param("0,GPU-dd", None, f"names 'GPU-dd'.*; {PRESENT}", id="no-such-uuid"),
        pytest.param("GPU-", None, "names 'GPU-'", id="ambiguous-uuid"),
        pytest.param("", None, "names ''", id="nothing"),
        pytest.param("0,,1", None, "names ''", id="gap"),
        pytest.param("-1", None, "names '-1'", id="negative"),
        pytest.param("²", None, "names '²'", id="not-ascii"),
        pytest.param("0,0", None, "names GPU 0 twice", id="twice"),
        pytest.param("0,GPU-aaaa1111", None, "names GPU 0 twice", id="twice-by-another-name"),
        pytest.param("2", None, "GPU 2, which is split into MIG", id="mig"),
        pytest.param("0", "1", r"CUDA_VISIBLE_DEVICES='1' hides 2 of 3 GPUs; there are 1 ", id="hidden"),
    ],
)
def test_gpus_that_cannot_be_had_are_refused(text: str, visible: str | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        chosen_gpus(text, SURVEY, visible)


def test_without_a_driver_the_error_says_so() -> None:
    with pytest.raises(UsageError, match=r"there is none \(nvidia-smi was not found\)"):
        chosen_gpus("0", GpuSurvey(reason="nvidia-smi was not found"))


def test_an_arm_may_not_choose_its_gpus_itself() -> None:
    plan = fake_plan({}, {"worker_ms": 900})
    refuse_arms_with_devices(plan)
    own = plan.arms.candidate.model_copy(update={"env": {"CUDA_VISIBLE_DEVICES": "3"}})
    arms = plan.arms.model_copy(update={"candidate": own})
    with pytest.raises(UsageError, match="environment of arm 'candidate' sets CUDA_VISIBLE_DEVICES=3, and --gpus"):
        refuse_arms_with_devices(plan.model_copy(update={"arms": arms}))


def test_a_card_is_shown_by_uuid_or_by_nvidia_smis_own_counting() -> None:
    assert {"CUDA_VISIBLE_DEVICES": "GPU-aaaa1111"} == device_environment(FIRST)
    unnamed = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert unnamed == device_environment(replace(SECOND, uuid=None))


def test_a_session_may_use_the_chosen_cards_alone() -> None:
    found = environment_of({"gpus": [{}, {}, {}], "visible_gpu_uuids": ["x"]}, [SECOND], "1")
    assert (["GPU-bbbb2222"], "--gpus 1 leaves out 2 of 3 GPUs") == (
        found["visible_gpu_uuids"],
        found["visible_gpus_reason"],
    )


def test_lanes_share_the_cores_and_a_resumed_campaign_keeps_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuseproof.harness.campaign.gpu_choice.usable_cores", lambda: list(range(17)))
    assert [16, 8, 1] == [thread_share(lanes) for lanes in (1, 2, 40)]
    campaign = create(tmp_path / "c")
    assert {"OMP_NUM_THREADS": "8"} == threads_of(campaign, thread_share(2))
    slot = timed_slots("cell", 1, 1, "ABBA")[0]
    campaign.save_slot(SlotRecord.planned(slot, "done", environment_overrides={"OMP_NUM_THREADS": "5"}))
    assert {"OMP_NUM_THREADS": "5"} == threads_of(campaign, 8)


def test_a_slot_runs_on_its_lanes_card_and_records_it(tmp_path: Path) -> None:
    from fuseproof.harness.campaign.gpu_choice import slot_device

    campaign = create(tmp_path / "c")
    placement = Placement({**device_environment(SECOND), "OMP_NUM_THREADS": "3"}, slot_device(SECOND))
    record = ProcessExecutor(placement=placement).execute(campaign, timed_slots("cell", 1, 1, "ABBA")[0], Interrupts())
    assert "done" == record.state
    expected = {"CUDA_VISIBLE_DEVICES": "GPU-bbbb2222", "OMP_NUM_THREADS": "3", "PYTHONHASHSEED": "0"}
    assert expected == dict(record.environment_overrides)
    kept = SlotRecord.from_json(record.to_json())
    assert ("GPU-bbbb2222", 1) == (kept.device and kept.device.card, kept.device and kept.device.index)


SPIN = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"


def test_a_slot_of_another_lane_is_no_stranger_while_it_runs_and_after_it_was_waited_for() -> None:
    use, own_s = OwnUse(), usage.own_cpu_s()
    other = subprocess.Popen([sys.executable, "-S", "-E", "-c", SPIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    running_s = use.seconds()
    assert running_s >= 0.28, "the kernel counts in ticks of 10 ms"
    assert usage.own_cpu_s() - own_s < running_s - 0.2, "what the sampler of a single lane knows of it"
    assert other.pid in use.pids()
    other.communicate(b"\n")
    assert 0.28 <= use.seconds() < running_s + 0.28, "counted once, although it moved to the waited-for children"


def test_a_process_that_is_gone_uses_nothing() -> None:
    ended = subprocess.Popen([sys.executable, "-S", "-E", "-c", ""])
    ended.wait()
    assert {ended.pid: 0.0} == trees_cpu_s([ended.pid])
