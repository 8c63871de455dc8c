"""Nsight Compute's tables as numbers, what a chain of kernels adds up to, and why there may be no counters."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fuseproof.harness.counters import ncu
from fuseproof.harness.counters.chains import markdown_table, summed, to_document
from fuseproof.harness.counters.launches import number, parse_raw_page, split_at
from fuseproof.harness.counters.ncu import NoCounters

STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
COLUMNS = {
    "dram__bytes_read.sum": "byte",
    "dram__bytes_write.sum": "byte",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "%",
    "gpu__time_duration.sum": "ns",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum": "sector",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum": "sector",
    "launch__registers_per_thread": "register/thread",
    "sm__maximum_warps_per_active_cycle_pct": "%",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "%",
    "sm__warps_active.avg.per_cycle_active": "warp",
    STALL.format("long_scoreboard"): "inst",
    STALL.format("mio_throttle"): "inst",
    STALL.format("selected"): "inst",
}
FIRST = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
    "Device", "CC",
)  # fmt: skip
MUL = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::BinaryFunctor<float, float>>(int, T2, T3)"
MARK = "void at::cuda::<unnamed>::spin_kernel(long)"
FUSED = ("206,129,664", "385,019,392", "38.99", "315,104", "0", "0", "30", "75", "70.62", "45.2", "6.0", "2.5", "1.0")
SLOW = ("409,600,000", "409,600,000", "60.0", "300,000", "0", "0", "16", "100", "90.0", "57.6", "9.00", "0.00", "1.00")
QUICK = ("204,800,000", "0", "30.0", "100,000", "8", "4", "40", "50", "30.0", "19.2", "3.00", "0.00", "1.00")
NOTHING = ("0", "0", "0.1", "2,000", "0", "0", "16", "100", "1.0", "1.0", "n/a", "n/a", "n/a")


def quoted(cells: tuple[str, ...]) -> str:
    return ",".join(f'"{cell}"' for cell in cells)


def raw_page(*launches: tuple[str, tuple[str, ...]], units: dict[str, str] | None = None) -> str:
    """What ``ncu --import FILE --csv --page raw --print-units base`` prints."""
    named = COLUMNS | (units or {})
    lines = ["==PROF== Connected to process 4711 (/usr/bin/python3.11)", quoted((*FIRST, *named))]
    lines.append(quoted((*("",) * len(FIRST), *named.values())))
    for index, (name, values) in enumerate(launches):
        place = (
            str(index),
            "4711",
            "python3.11",
            "127.0.0.1",
            name,
            "1",
            "7",
            "(256, 1, 1)",
            "(1056, 1, 1)",
            "0",
            "9.0",
        )
        lines.append(quoted((*place, *values)))
    return "\n".join([*lines, "==WARNING== Some metrics were not collected", ""])


def test_a_launch_has_its_numbers() -> None:
    (launch,) = parse_raw_page(raw_page(("_wan_norm_silu_kernel", FUSED)))
    assert ("_wan_norm_silu_kernel", "(1056, 1, 1)", "(256, 1, 1)") == (launch.name, launch.grid, launch.block)
    assert (315_104.0, 206_129_664.0, 385_019_392.0) == (launch.duration_ns, launch.read_bytes, launch.written_bytes)
    assert (30.0, 38.99, 70.62, 75.0) == (
        launch.registers, launch.dram_percent, launch.occupancy_percent, launch.theoretical_percent,
    )  # fmt: skip
    assert {"long_scoreboard": 6.0, "mio_throttle": 2.5, "selected": 1.0} == launch.stalls


@pytest.mark.parametrize(
    ("nanoseconds", "size", "units"),
    [
        (315_104.0, 206_129_664.0, {"gpu__time_duration.sum": "nsecond"}),
        (315_104_000.0, 206_129_664.0, {"gpu__time_duration.sum": "us"}),
        (315_104.0, 206_129_664e6, {"dram__bytes_read.sum": "Mbyte"}),
    ],
)
def test_units_are_those_of_the_second_row(nanoseconds: float, size: float, units: dict[str, str]) -> None:
    (launch,) = parse_raw_page(raw_page(("k", FUSED), units=units))
    assert (pytest.approx(nanoseconds), pytest.approx(size)) == (launch.duration_ns, launch.read_bytes)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("no table", "==PROF== Disconnected\n"),
        ("no table", ""),
        ("no column gpu__time_duration.sum", '"ID","Process ID","x"\n"","",""\n'),
        ("has no duration", raw_page(("k", (*FUSED[:3], "n/a", *FUSED[4:])))),
        ("is in 'parsec'", raw_page(("k", FUSED), units={"gpu__time_duration.sum": "parsec"})),
    ],
)
def test_what_is_no_table_is_said(words: str, text: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_raw_page(text)


@pytest.mark.parametrize(
    ("expected", "text"),
    [(1_842_186_240.0, "1,842,186,240"), (0.5, "0.5"), (None, "n/a"), (None, "nan"), (None, ""), (None, None)],
)
def test_numbers_as_ncu_prints_them(expected: float | None, text: str | None) -> None:
    assert expected == number(text)


def test_ranges_begin_at_their_marks() -> None:
    launches = parse_raw_page(raw_page((MARK, NOTHING), (MUL, SLOW), (MUL, QUICK), (MARK, NOTHING), ("k", FUSED)))
    assert [[MUL, MUL], ["k"]] == [[one.name for one in part] for part in split_at(launches, "spin_kernel")]
    with pytest.raises(ValueError, match="before the first mark"):
        split_at(launches[1:], "spin_kernel")


def test_a_chain_is_summed_and_weighted_by_duration() -> None:
    chain = summed(parse_raw_page(raw_page((MUL, SLOW), (MUL, QUICK))))
    assert (2, 400.0) == (chain.kernels, chain.duration_us)
    assert (614_400_000.0, 409_600_000.0) == (chain.dram_read_bytes, chain.dram_written_bytes)
    assert pytest.approx(1_024_000_000 / 400_000) == chain.bandwidth_gb_s
    assert pytest.approx((60 * 3 + 30) / 4) == chain.dram_percent_of_peak
    assert pytest.approx((90 * 3 + 30) / 4) == chain.achieved_occupancy_percent
    assert (40.0, 8.0, 4.0) == (chain.registers_per_thread, chain.local_load_sectors, chain.local_store_sectors)
    assert (("long_scoreboard", pytest.approx(0.9 * 0.75 + 0.75 * 0.25)),) == chain.stalls


def test_a_sum_of_some_is_no_sum() -> None:
    chain = summed(parse_raw_page(raw_page((MUL, SLOW), (MUL, ("n/a", *QUICK[1:])))))
    assert (None, None) == (chain.dram_read_bytes, chain.bandwidth_gb_s)
    assert 409_600_000.0 == chain.dram_written_bytes
    with pytest.raises(ValueError, match="without a kernel"):
        summed([])


def test_the_table_of_a_pull_request() -> None:
    eager = summed(parse_raw_page(raw_page((MUL, SLOW), (MUL, QUICK))))
    fused = summed(parse_raw_page(raw_page(("_wan_norm_silu_kernel", FUSED))))
    lines = list(markdown_table(eager, fused))
    assert "| counter | eager, 2 kernels | fused, 1 kernel | eager / fused |" == lines[0]
    assert "| kernel time, summed (us) | 400.000 | 315.104 | 1.27 |" in lines
    assert "| DRAM reads (bytes) | 614,400,000 | 206,129,664 | 2.98 |" in lines
    assert "| registers a thread (most) | 40 | 30 |  |" in lines
    assert "| local load sectors (spills) | 8 | 0 |  |" in lines
    assert "| main stalls | long scoreboard 86% | long scoreboard 63%, mio throttle 26% |  |" in lines
    assert {5} == {line.count("|") for line in lines}
    assert [0.6316, 0.2632] == [round(one["share"], 4) for one in to_document(fused)["stalls"]]


def test_ncu_is_found_on_the_path_and_where_installers_put_it(tmp_path: Path) -> None:
    for version in ("2024.1.0", "2025.3.0", "2025.10.1"):
        program = tmp_path / version / "ncu"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n", encoding="utf-8")
        program.chmod(0o755)
    places = [f"{tmp_path}/*/ncu"]
    assert tmp_path / "2025.10.1" / "ncu" == ncu.find_ncu("/nowhere", places)
    assert tmp_path / "2024.1.0" / "ncu" == ncu.find_ncu(str(tmp_path / "2024.1.0"), places)
    with pytest.raises(NoCounters, match="was not found on this machine"):
        ncu.find_ncu("/nowhere", [f"{tmp_path}/none/*/ncu"])


def test_only_marked_ranges_are_profiled_at_the_cards_own_clocks() -> None:
    command = ncu.profile_command(Path("/opt/ncu"), Path("k.ncu-rep"), ["python", "-m", "x"])
    text = " ".join(command)
    assert "--clock-control none --profile-from-start off" in text
    assert ["python", "-m", "x"] == command[-3:]
    assert "dram__bytes_read.sum" in text


@pytest.mark.parametrize(
    ("words", "next_words", "text"),
    [
        (
            "may not read the card's counters (ERR_NVGPUCTRPERM)",
            "NVreg_RestrictProfilingToAdminUsers=0",
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters",
        ),
        (
            "ended with 1 and said: The application returned an error code (1)",
            "without --ncu",
            "==PROF== x\n==ERROR== The application returned an error code (1).\n",
        ),
        ("said: nothing", "without --ncu", ""),
    ],
)  # fmt: skip
def test_a_refusal_is_one_sentence_and_what_to_do(words: str, next_words: str, text: str) -> None:
    found = ncu.refusal(text, 1)
    assert words in found.reason
    assert next_words in found.next_step
    assert "\n" not in str(found)


def test_a_program_that_fails_hangs_or_is_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(NoCounters, match="could not be started: No such file"):
        ncu.run([str(tmp_path / "ncu")], 1.0)
    with pytest.raises(NoCounters, match="ended with 3 and said: no device"):
        ncu.run([sys.executable, "-c", "import sys; print('==ERROR== no device'); sys.exit(3)"], 30.0)
    with pytest.raises(NoCounters, match="had not finished after 0 s"):
        ncu.run([sys.executable, "-c", "__import__('time').sleep(60)"], 0.2)


@pytest.mark.parametrize(
    ("words", "place", "value"),
    [
        ("dram__bytes_read.sum is -1", 0, "-1"),
        ("dram__bytes_read.sum is 1e+308", 0, "1e308"),
        ("gpu__time_duration.sum is 1e+308", 3, "1e308"),
        ("has no duration", 3, "1e-308"),
        ("launch__registers_per_thread is -2", 6, "-2"),
        ("its table cannot be read: field larger than field limit", 6, "9" * 140_000),
    ],
)
def test_what_no_counter_can_be_is_said(words: str, place: int, value: str) -> None:
    numbers = tuple(value if index == place else one for index, one in enumerate(FUSED))
    with pytest.raises(ValueError, match=words.replace("+", r"\+")):
        parse_raw_page(raw_page((MUL, numbers)))
