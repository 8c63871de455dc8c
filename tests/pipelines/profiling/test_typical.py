"""Times of a CPU that was shared: what an interrupted operation counts for, and what a reader is told."""

from __future__ import annotations

import pytest

from fuseproof.pipelines.profiling.chains import chains_table
from fuseproof.pipelines.profiling.disturbance import StepClock, disturbance_warnings
from fuseproof.pipelines.profiling.launches import Launch
from fuseproof.pipelines.profiling.tables import Step, rows_table, stages_table, unequal_steps
from fuseproof.pipelines.profiling.typical import outliers, typical_nanoseconds
from tests.pipelines.profiling.event_lists import tensor

MS = 1_000_000


def took(nanoseconds: int, module: str = "blocks.0", key: str = "128 float32", **more) -> Launch:
    settings = {"operation": "aten::mul", "line": "a/model.py:1"} | more
    return Launch("aten::mul", "elementwise", 0, 0, nanoseconds, module=module, key=key, **settings)


@pytest.mark.parametrize(
    "times, counts",
    [
        ([10_000, 26 * MS, 12_000], [10_000, 12_000, 12_000]),
        ([10_000, 12_000, 14_000], [10_000, 12_000, 14_000]),
        ([10_000, 90_000, 11_000], [10_000, 90_000, 11_000]),
        ([50 * MS, 80 * MS, 51 * MS], [50 * MS, 80 * MS, 51 * MS]),
    ],
    ids=["one was interrupted", "quiet", "five times, but nothing worth a word", "a product's own spread"],
)
def test_a_call_that_was_interrupted_counts_as_the_median_of_its_row(times, counts):
    launches = [took(time) for time in times]
    typical = typical_nanoseconds(launches)
    assert counts == [typical.get(id(one), one.nanoseconds) for one in launches]


def test_a_row_of_one_call_is_compared_with_the_same_operation_on_the_same_shapes_elsewhere():
    lone, other_shape = took(28 * MS, "blocks.1"), took(30 * MS, "blocks.1", key="9x9 float32")
    typical = typical_nanoseconds([*(took(10_000 + n, f"blocks.{n}") for n in range(2, 6)), lone, other_shape])
    assert {id(lone): 10_004} == typical


@pytest.mark.parametrize(
    "times, counts",
    [
        ([10_000, 26 * MS, 28 * MS], [10_000, 11_000, 11_000]),
        ([25 * MS, 26 * MS, 28 * MS], [25 * MS, 26 * MS, 28 * MS]),
    ],
    ids=["two of three were interrupted", "slow each time: no accident"],
)
def test_where_most_of_a_row_was_interrupted_elsewhere_decides(times, counts):
    own = [took(time) for time in times]
    elsewhere = [took(11_000, f"blocks.{n}") for n in (1, 2, 3, 4)]
    typical = typical_nanoseconds([*own, *elsewhere])
    assert counts == [typical.get(id(one), one.nanoseconds) for one in own]


def test_a_row_keeps_its_sum_says_each_step_and_is_ranked_by_what_is_typical():
    steady = [took(1 * MS, "blocks.1", operation="aten::gelu") for _ in range(3)]
    small = [took(time) for time in (10_000, 26 * MS, 10_000)]
    steps = [Step("DenoisingStage", n, 0, 9, (small[n], steady[n])) for n in range(3)]
    typical = typical_nanoseconds([one for step in steps for one in step.launches])
    first, second = rows_table(steps, typical)
    assert ("aten::gelu", 3000.0, 3000.0) == (first["operation"], first["device_us"], first["typical_us"])
    assert (26_020.0, 30.0, [1, 1, 1]) == (second["device_us"], second["typical_us"], second["calls_by_step"])
    assert [10.0, 26_000.0, 10.0] == second["device_us_by_step"]
    assert {"outlier_calls": 1, "outlier_us": 25_990.0} == outliers([*steady, *small], typical)


def test_on_a_device_nothing_counts_for_anything_else():
    (row,) = rows_table([Step("DenoisingStage", 0, 0, 9, tuple(took(time) for time in (10_000, 26 * MS, 10_000)))])
    assert (26_020.0, None) == (row["device_us"], row["typical_us"])


def test_chains_are_ranked_by_what_is_typical_and_say_both():
    def chain(operation: str, start: int, *times: int) -> tuple[Launch, ...]:
        uses = [(tensor(start + n, 8),) for n in range(3)]
        return tuple(
            Launch(
                f"{operation}{n}", "elementwise", start + n, start + n, time, inputs=uses[n], outputs=uses[n + 1],
                operation=f"{operation}{n}", call=start + n,
            )
            for n, time in enumerate(times)
        )  # fmt: skip

    steps = [
        Step("DenoisingStage", n, 0, 9, (*chain("small", 10, 10_000, time), *chain("large", 20, MS, MS)))
        for n, time in enumerate((10_000, 26 * MS, 10_000))
    ]
    typical = typical_nanoseconds([one for step in steps for one in step.launches])
    first, second = chains_table(steps, None, [], typical)
    assert (["large0", "large1"], 2000.0) == (first["operations"], first["typical_us_per_step"])
    assert (20.0, pytest.approx(26_050 / 3)) == (second["typical_us_per_step"], second["device_us_per_step"])
    assert (None, None) == (first["fused_floor_us_per_step"], first["saving_us_per_step"])


def test_steps_that_do_not_launch_equally_many_are_said_with_what_differs():
    copies = [tuple(took(1, operation="aten::copy_") for _ in range(n)) for n in (1, 2)]
    steps = [Step("DenoisingStage", n, 0, 9, (took(1), *own)) for n, own in enumerate(copies)]
    (told,) = unequal_steps(stages_table(steps, {}), rows_table(steps))
    assert told == (
        "the profiled steps of DenoisingStage do not launch equally many (2, 3): aten::copy_ at a/model.py:1 1, 2"
    )
    assert [] == unequal_steps(stages_table(steps[:1], {}), rows_table(steps[:1]))


class Machine:
    """A machine of which others took ``share``; ``looks`` are how often it was looked at."""

    def __init__(self, share: float | None) -> None:
        self.share = share
        self.looks = 0

    def begin(self) -> None:
        self.looks += 1

    def end(self) -> None:
        self.looks += 1

    def others_share(self) -> float | None:
        return self.share

    def is_busy(self) -> bool:
        return (self.share or 0.0) > 0.25


NOTHING = {"outlier_calls": 0, "outlier_us": 0.0}


@pytest.mark.parametrize(
    "share, thread_s, beyond_us, on_device, words",
    [
        (0.01, 1.0, 0.0, False, []),
        (None, 1.0, 9.0, False, []),
        (0.75, 1.0, 0.0, False, ["other processes used 75% of the cores"]),
        (0.75, 0.1, 0.0, True, ["wall times (kernels are timed by the device)"]),
        (0.01, 0.6, 0.0, False, ["for only 60% of the profiled steps' wall time"]),
        (0.01, 1.0, 30.0, False, ["3.0% of the profiled time in all"]),
    ],
    ids=["quiet", "too short to tell", "busy", "busy beside a GPU", "kept waiting", "interrupted"],
)
def test_a_disturbed_profile_says_so(share, thread_s, beyond_us, on_device, words):
    clock = StepClock(Machine(share), wall_s=1.0, thread_s=thread_s)
    found = clock.to_json(on_device=on_device, outliers={"outlier_calls": 2, "outlier_us": beyond_us})
    warnings = disturbance_warnings(found, 1000.0, on_device=on_device)
    assert len(words) == len(warnings)
    assert all(word in text for word, text in zip(words, warnings, strict=True))


def test_the_machine_is_looked_at_in_profiled_stretches_only():
    machine = Machine(0.5)
    clock = StepClock(machine)
    clock.end()
    assert 0 == machine.looks
    clock.begin()
    clock.end()
    assert (2, 0.5) == (machine.looks, clock.to_json(on_device=False, outliers=NOTHING)["other_cpu_share"])
    assert 0 < clock.wall_s
    assert StepClock().to_json(on_device=True, outliers=NOTHING) == {
        "thread_cpu_share": None, "other_cpu_share": None, "busy": False, **NOTHING,
    }  # fmt: skip
