"""nvidia-smi as it answers on real machines, and as it fails. The H200 row is a real answer of driver 580.159.04."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuseproof.harness.machine.gpus import (
    ComputeProcess,
    Gpu,
    parse_gpus,
    parse_mig_devices,
    parse_processes,
    survey_gpus,
    visible_gpus,
)

UUID = "GPU-44390328-4f64-373b-2809-94bb45e03e0a"
H200 = (
    f"0, {UUID}, NVIDIA H200, 580.159.04, 00000000:00:06.0, 143771, 0, 0, 32, P0, Enabled, Default, 700.00, 700.00, "
    "9.0, 96.00.A5.00.1A, Disabled, Enabled, 5, 16, 16, 1980, 1980\n"
)
UNTOLD = (
    f"0, {UUID}, NVIDIA GB10, 580.95, [N/A], [Not Supported], [N/A], [N/A], [Unknown Error], [N/A], [N/A], "
    "[Not Supported], [N/A], [N/A], 12.1, [N/A], [N/A], N/A, [N/A], [N/A], [N/A], [Deprecated], [N/A]\n"
)


def fake_smi(folder: Path, script: str) -> str:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    return str(program)


def card(index: int, uuid: str, mig_devices: tuple[str, ...] = ()) -> Gpu:
    nothing = [None] * 12
    return Gpu(index, uuid, *nothing, mig_devices=mig_devices)  # type: ignore[arg-type]


def test_a_real_answer_is_read_with_its_units() -> None:
    (gpu,) = parse_gpus(H200)
    assert (0, UUID, "NVIDIA H200", "580.159.04") == (gpu.index, gpu.uuid, gpu.name, gpu.driver_version)
    assert (143771.0, 0.0, 0.0, 32.0) == (
        gpu.memory_total_mib,
        gpu.memory_used_mib,
        gpu.utilization_percent,
        gpu.temperature_c,
    )
    assert ("9.0", "Disabled", 700.0, 16.0, 1980.0) == (
        gpu.compute_capability,
        gpu.mig_mode,
        gpu.power_limit_w,
        gpu.pcie_width_max,
        gpu.sm_clock_max_mhz,
    )


def test_what_a_card_does_not_tell_is_none() -> None:
    (gpu,) = parse_gpus(UNTOLD)
    told = {name: value for name, value in vars(gpu).items() if value not in (None, ())}
    assert {
        "index": 0,
        "uuid": UUID,
        "name": "NVIDIA GB10",
        "driver_version": "580.95",
        "compute_capability": "12.1",
    } == told


@pytest.mark.parametrize(
    ("expected", "script"),
    [
        pytest.param("nvidia-smi failed with exit code 9", "echo 'No devices were found'; exit 9", id="fails"),
        pytest.param("something unexpected", "echo '<html>'", id="answers nonsense"),
        pytest.param("lists no GPU", "exit 0", id="answers nothing"),
        pytest.param("did not answer within 0.2 s", "exec sleep 30", id="hangs"),
    ],
)
def test_a_bad_nvidia_smi_is_an_empty_survey_with_a_reason(tmp_path: Path, expected: str, script: str) -> None:
    survey = survey_gpus(time_limit_s=0.2 if "sleep" in script else 10.0, program=fake_smi(tmp_path, script))
    assert () == survey.gpus
    assert expected in (survey.reason or "")


def test_a_missing_nvidia_smi_is_no_error() -> None:
    survey = survey_gpus(program="nvidia-smi-that-is-not-there")
    assert ((), ()) == (survey.gpus, survey.processes)
    assert "was not found" in (survey.reason or "")


def test_a_program_that_cannot_start_is_a_reason(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_bytes(b"\x7fELF not really")
    program.chmod(0o755)
    assert "could not be started" in (survey_gpus(program=str(program)).reason or "")


def test_an_old_driver_is_asked_for_the_fields_that_it_knows(tmp_path: Path) -> None:
    core = ", ".join(H200.split(", ")[:14])
    script = f"""case "$*" in
*compute_cap*) echo 'Field "compute_cap" is not a valid field to query.'; exit 2;;
*query-gpu*) echo '{core}';;
*query-compute*) echo '{UUID}, 4711, python, 5120';;
*) echo 'Invalid option'; exit 2;;
esac"""
    survey = survey_gpus(program=fake_smi(tmp_path, script))
    assert (None, None, None) == (survey.reason, survey.cuda_version, survey.gpus[0].compute_capability)
    assert (ComputeProcess(UUID, 4711, "python", 5120.0),) == survey.processes


def test_a_full_survey_with_mig(tmp_path: Path) -> None:
    row = H200.replace("Disabled, Enabled", "Enabled, Enabled").strip()
    script = f"""case "$*" in
*query-gpu*) echo '{row}';;
*query-compute*) ;;
-L) echo 'GPU 0: NVIDIA H200 (UUID: {UUID})'; echo '  MIG 1g.18gb     Device  0: (UUID: MIG-aaaa)';;
--version) echo 'CUDA Version        : 13.0';;
esac"""
    survey = survey_gpus(program=fake_smi(tmp_path, script))
    assert (("MIG-aaaa",), "13.0", None) == (survey.gpus[0].mig_devices, survey.cuda_version, survey.reason)


def test_processes_without_an_id_or_a_number_are_harmless() -> None:
    text = f"{UUID}, 12, /usr/bin/python3, [N/A]\n{UUID}, [N/A], [N/A], [N/A]\n\n"
    assert (ComputeProcess(UUID, 12, "/usr/bin/python3", None),) == parse_processes(text)


def test_mig_devices_belong_to_the_card_above_them() -> None:
    text = "GPU 0: A (UUID: GPU-1)\n  MIG x (UUID: MIG-a)\n  MIG y (UUID: MIG-b)\nGPU 1: B (UUID: GPU-2)\n"
    assert {"GPU-1": ("MIG-a", "MIG-b")} == parse_mig_devices(text)


GPUS = (card(0, "GPU-aa11", ("MIG-77",)), card(1, "GPU-aa22"), card(2, "GPU-bb33"))


@pytest.mark.parametrize(
    ("expected", "value"),
    [
        pytest.param((0, 1, 2), None, id="unset shows all"),
        pytest.param((), "", id="empty hides all"),
        pytest.param((), "-1", id="minus one hides all"),
        pytest.param((1,), "1", id="one index"),
        pytest.param((2, 0), "2,0", id="order is kept"),
        pytest.param((2, 0), " 2 , 0 ", id="spaces"),
        pytest.param((1,), "1,7,0", id="stops at the first bad entry"),
        pytest.param((2,), "GPU-bb33", id="uuid"),
        pytest.param((2,), "GPU-b", id="start of a uuid"),
        pytest.param((), "GPU-aa", id="ambiguous start"),
        pytest.param((0,), "MIG-77", id="mig device"),
        pytest.param((), "MIG-99", id="unknown mig device"),
        pytest.param((), "all", id="a word"),
    ],
)
def test_visible_gpus_follow_cuda_visible_devices(expected: tuple[int, ...], value: str | None) -> None:
    visible, reason = visible_gpus(GPUS, value)
    assert expected == tuple(gpu.index for gpu in visible)
    assert (len(expected) < 3) is (reason is not None)
    assert reason is None or repr(value) in reason
