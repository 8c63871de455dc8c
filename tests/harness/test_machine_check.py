"""Findings from made-up machines: each trouble once, the right weight, and always a next step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fuseproof.harness.machine.activity import ActiveProcess, Activity
from fuseproof.harness.machine.capabilities import (
    COMMAND_LIBRARIES,
    command_capabilities,
    gpu_reason,
    measurement_capabilities,
)
from fuseproof.harness.machine.check import check_machine
from fuseproof.harness.machine.facts import Finding, Folder, MachineFacts
from fuseproof.harness.machine.gpus import ComputeProcess, Gpu, GpuSurvey
from fuseproof.harness.machine.host import Host, Memory, OperatingSystem, Processor
from fuseproof.harness.machine.libraries import Library, TorchBuild

NAMES = sorted({name for names in COMMAND_LIBRARIES.values() for name in names} | {"triton"})
LIBRARIES = tuple(Library(name, "2.0", ">=1.0", True) for name in NAMES)
CARD = Gpu(0, "GPU-1", "NVIDIA H200", "580", "0:6", 143771, 0, 0, 32, "P0", "Enabled", "Default", 700, 700, "9.0")
GOOD = MachineFacts(
    python_version=(3, 11),
    host=Host(
        processor=Processor("Some CPU", "x86_64", 8, 16, 16, None, ("avx2",), ("performance",), "tsc", False),
        memory=Memory(64000, 60000, None, 0, 0),
        operating_system=OperatingSystem("Linux", "6.1", "Debian", False),
        load_average=(0.1, 0.1, 0.1),
        timer_tick_s=4e-8,
    ),
    activity=Activity(0.5, 16, 0.05, 0.0, ()),
    gpus=GpuSurvey((CARD,), (), "13.0", None),
    libraries=LIBRARIES,
    torch=TorchBuild("2.13.0", "13.0", None, "abc"),
    variables={},
    folders=(Folder("current folder", "/data", 100_000, True),),
    own_process_ids=frozenset({10, 11}),
)


def with_processor(**changes: Any) -> MachineFacts:
    return replace(GOOD, host=replace(GOOD.host, processor=replace(GOOD.host.processor, **changes)))


def with_host(**changes: Any) -> MachineFacts:
    return replace(GOOD, host=replace(GOOD.host, **changes))


def with_memory(**changes: Any) -> MachineFacts:
    return with_host(memory=replace(GOOD.host.memory, **changes))


def with_activity(**changes: Any) -> MachineFacts:
    return replace(GOOD, activity=replace(GOOD.activity, **changes))


def with_folder(**changes: Any) -> MachineFacts:
    return replace(GOOD, folders=(replace(GOOD.folders[0], **changes),))


def with_card(processes: tuple[ComputeProcess, ...] = (), **changes: Any) -> MachineFacts:
    return replace(GOOD, gpus=GpuSurvey((replace(CARD, **changes),), processes, "13.0", None))


def with_library(name: str, version: str | None, is_accepted: bool | None) -> MachineFacts:
    changed = replace(LIBRARIES[NAMES.index(name)], version=version, is_accepted=is_accepted)
    return replace(GOOD, libraries=tuple(changed if library.name == name else library for library in LIBRARIES))


def troubles(facts: MachineFacts) -> list[Finding]:
    return [finding for finding in check_machine(facts) if finding.level != "ok"]


def test_a_good_machine_has_only_ok_findings_and_says_what_was_looked_at() -> None:
    assert [] == troubles(GOOD)
    topics = [finding.topic for finding in check_machine(GOOD)]
    assert ["python", "libraries", "cores", "busy CPU", "memory", "disk", "timer", "GPU"] == topics


CASES = [
    ("problem", "python", "3.10", replace(GOOD, python_version=(3, 10))),
    ("problem", "libraries", "scipy is not installed", with_library("scipy", None, None)),
    ("warn", "libraries", "torch 0.9", with_library("torch", "0.9", False)),
    ("warn", "libraries", "not installed as a package", replace(GOOD, libraries=())),
    ("warn", "cores", "1 of 16 cores", with_processor(usable_cores=1)),
    ("warn", "cpu quota", "1.5 cores", with_processor(quota_cores=1.5)),
    ("warn", "busy CPU", "1.0 of 16", with_activity(other_cpu_cores=1.0)),
    (
        "problem",
        "busy CPU",
        "chrome 1.5",
        with_activity(other_cpu_cores=1.7, worst=(ActiveProcess("chrome", 7, 1.5), ActiveProcess("idle", 8, 0.01))),
    ),
    ("warn", "stolen time", "5%", with_activity(steal_share=0.05)),
    ("warn", "load average", "17.0 on 16", with_host(load_average=(17.0, 1.0, 1.0))),
    ("warn", "CPU governor", "powersave", with_processor(governors=("performance", "powersave"))),
    ("warn", "virtual machine", "neighbours", with_processor(is_virtual=True)),
    ("warn", "threads", "OMP_NUM_THREADS=64", replace(GOOD, variables={"OMP_NUM_THREADS": "64"})),
    ("problem", "threads", "OMP_NUM_THREADS='many'", replace(GOOD, variables={"OMP_NUM_THREADS": "many"})),
    ("problem", "threads", "MKL_NUM_THREADS='0'", replace(GOOD, variables={"MKL_NUM_THREADS": "0"})),
    ("warn", "threads", "spin", replace(GOOD, variables={"OMP_WAIT_POLICY": "active"})),
    ("warn", "memory", "2,000 MiB", with_memory(available_mib=2000)),
    ("problem", "memory", "900 MiB", with_memory(available_mib=900)),
    ("problem", "memory", "1,024 MiB", with_memory(limit_mib=1024)),
    ("warn", "swap", "500 MiB", with_memory(swap_total_mib=2000, swap_used_mib=500)),
    ("warn", "disk", "1,000 MiB", with_folder(free_mib=1000)),
    ("problem", "disk", "100 MiB", with_folder(free_mib=100)),
    ("warn", "disk", "cannot be written", with_folder(is_writable=False)),
    ("warn", "disk", "unknown", with_folder(free_mib=None)),
    ("problem", "timer", "15.6 ms", with_host(timer_tick_s=0.0156)),
    ("warn", "timer", "hpet", with_processor(clock_source="hpet")),
    ("warn", "GPU", "no NVIDIA GPU", replace(GOOD, gpus=GpuSurvey(reason="nvidia-smi was not found"))),
    ("warn", "GPU", "hides 1 of 1", replace(GOOD, variables={"CUDA_VISIBLE_DEVICES": ""})),
    ("problem", "GPU", "without CUDA", replace(GOOD, torch=TorchBuild("2.13.0+cpu", None, None, None))),
    ("problem", "GPU", "used by 1 other", with_card((ComputeProcess("GPU-1", 99, "python", 5000.0),))),
    ("problem", "GPU", "5,120 MiB in use though no process", with_card(memory_used_mib=5120.0)),
    ("problem", "GPU", "40 % busy", with_card(utilization_percent=40.0)),
    ("warn", "GPU", "MIG", with_card(mig_mode="Enabled")),
    ("warn", "GPU", "450 W of 700 W", with_card(power_limit_w=450.0)),
    ("warn", "GPU", "persistence", with_card(persistence_mode="Disabled")),
    ("problem", "GPU", "Prohibited", with_card(compute_mode="Prohibited")),
    ("warn", "GPU", "may be hanging", replace(GOOD, gpus=GpuSurvey((CARD,), (), None, "the driver may be hanging"))),
]


@pytest.mark.parametrize(("level", "topic", "part", "facts"), CASES, ids=[f"{case[1]}: {case[2]}" for case in CASES])
def test_each_trouble_is_found_alone_and_has_a_next_step(
    level: str, topic: str, part: str, facts: MachineFacts
) -> None:
    (finding,) = troubles(facts)
    assert (level, topic) == (finding.level, finding.topic)
    assert part in finding.message
    assert finding.next_step


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(with_card((ComputeProcess("GPU-1", 11, "python", 5000.0),)), id="our own process on the GPU"),
        pytest.param(with_card((ComputeProcess("GPU-2", 99, "python", 5000.0),)), id="a process on another GPU"),
        pytest.param(with_card(memory_used_mib=32.0), id="idle memory at the limit"),
        pytest.param(with_card(memory_used_mib=None, utilization_percent=None, power_limit_w=None), id="untold"),
        pytest.param(replace(GOOD, variables={"CUDA_VISIBLE_DEVICES": "GPU-1"}), id="a GPU by its uuid"),
        pytest.param(replace(GOOD, variables={"OMP_NUM_THREADS": "15"}), id="fewer threads than cores"),
        pytest.param(with_host(load_average=None), id="no load average"),
        pytest.param(with_processor(quota_cores=16.0), id="a quota that does not bind"),
    ],
)
def test_what_is_no_trouble(facts: MachineFacts) -> None:
    assert [] == troubles(facts)


def test_a_busy_card_that_is_hidden_does_not_matter() -> None:
    second = replace(CARD, index=1, uuid="GPU-2", memory_used_mib=9000.0)
    facts = replace(GOOD, gpus=GpuSurvey((CARD, second), (), None, None), variables={"CUDA_VISIBLE_DEVICES": "0"})
    assert [] == troubles(facts)


def test_unlike_cards_are_numbered_in_two_ways() -> None:
    second = replace(CARD, index=1, uuid="GPU-2", name="NVIDIA L4")
    facts = replace(GOOD, gpus=GpuSurvey((CARD, second), (), None, None))
    (finding,) = troubles(facts)
    assert "numbers them otherwise" in finding.message
    assert [] == troubles(replace(facts, variables={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}))


@pytest.mark.parametrize(
    ("expected", "facts"),
    [
        pytest.param(None, GOOD, id="usable"),
        pytest.param("no NVIDIA GPU", replace(GOOD, gpus=GpuSurvey(reason="none")), id="none"),
        pytest.param("hides", replace(GOOD, variables={"CUDA_VISIBLE_DEVICES": "-1"}), id="hidden"),
        pytest.param("without CUDA", replace(GOOD, torch=TorchBuild("2.13.0+cpu", None, None, None)), id="CPU build"),
        pytest.param("torch is not installed", replace(GOOD, torch=None), id="no torch"),
    ],
)
def test_gpu_reason(expected: str | None, facts: MachineFacts) -> None:
    reason = gpu_reason(facts)
    assert reason is None if expected is None else expected in (reason or "")


def test_without_torch_only_what_needs_it_is_refused() -> None:
    commands = {
        command.name: command.is_available for command in command_capabilities(with_library("torch", None, None))
    }
    assert ["generate", "diverge"] == [name for name, is_available in commands.items() if not is_available]


def test_conditions_are_told_beside_the_yes() -> None:
    commands = {
        command.name: command.reason or "" for command in command_capabilities(with_library("torch", None, None))
    }
    assert "--baseline-command" in commands["abba"]
    assert "list and show only" in commands["models"]
    assert "only profiles that exist already" in commands["profile"]
    assert "not installed: torch" == commands["generate"]


@pytest.mark.parametrize(
    ("refused", "facts"),
    [
        pytest.param([], GOOD, id="all"),
        pytest.param(
            ["GPU time of a request", "peak GPU memory", "Triton kernels"],
            replace(GOOD, gpus=GpuSurvey(reason="none")),
            id="no GPU",
        ),
        pytest.param(
            ["peak host memory of an arm", "Triton kernels"],
            with_host(operating_system=OperatingSystem("Darwin", "25", None, False)),
            id="not Linux",
        ),
        pytest.param(["Triton kernels"], with_library("triton", None, None), id="no triton"),
        pytest.param(
            ["equal bits (files, pixels, raw arrays)"], with_library("diffusers", None, None), id="no diffusers"
        ),
    ],
)
def test_measurements(refused: list[str], facts: MachineFacts) -> None:
    assert refused == [entry.name for entry in measurement_capabilities(facts) if not entry.is_available]
