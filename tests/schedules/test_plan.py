"""Plans: what they accept, and how they say no."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fuseproof.errors import UsageError
from fuseproof.schedules.plan import Plan, load_plan, plan_from

MINIMAL: dict[str, Any] = {
    "name": "tiny",
    "arms": {"baseline": {"name": "off", "flags": "--fastpaths=off"}, "candidate": {"name": "on"}},
    "cells": [{"name": "panda", "flags": "--seed 42"}],
}
MINIMAL_TOML = """
schema = 1
name = "tiny"
min_effect = "1.5%"
[arms.baseline]
name = "off"
[arms.candidate]
name = "on"
[[cells]]
name = "panda"
contract = "close: ssim>=0.95, psnr>=28"
"""


def with_value(path: str, value: Any) -> dict[str, Any]:
    """MINIMAL with the value at a dotted path replaced."""
    values = json.loads(json.dumps(MINIMAL))
    *parents, last = path.split(".")
    target: Any = values
    for key in parents:
        target = target[int(key) if isinstance(target, list) else key]
    target[last] = value
    return dict(values)


def test_default_plan_is_as_promised() -> None:
    plan = load_plan("embedded")
    assert (2, "mirrored", "worker", 0.01, 1) == (
        plan.blocks,
        plan.order,
        plan.primary,
        plan.min_effect,
        plan.warmup_slots,
    )
    assert ("--fastpaths=off", "--fastpaths=auto") == (plan.arms.baseline.flags, plan.arms.candidate.flags)
    assert ("shapes", "exact") == (plan.cells[0].name, plan.cells[0].contract)
    expected = (
        "--model-path embedded:longcat-image "
        '--prompt "a red circle above a blue square on a white background" --width 256 --height 256 '
        "--num-inference-steps 8 --guidance-scale 4.5 --seed 42 --warmup-mode request --warmup-steps 1"
    )
    assert expected == plan.cells[0].flags


def test_plan_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mein Plan é.toml"
    path.write_text(MINIMAL_TOML, encoding="utf-8-sig")
    plan = load_plan(path)
    assert 0.015 == pytest.approx(plan.min_effect)
    assert "close:ssim>=0.95,psnr>=28" == plan.cells[0].contract
    assert plan == load_plan(str(path))


def test_plan_survives_json() -> None:
    plan = load_plan("embedded")
    assert plan == plan_from(json.loads(json.dumps(plan.to_json(), allow_nan=False)), "test")
    assert [] == plan.differences(plan)


def test_a_cell_may_have_a_number_of_blocks_of_its_own() -> None:
    cells = [{"name": "two"}, {"name": "five", "blocks": 5}]
    plan = plan_from(MINIMAL | {"cells": cells}, "test")
    assert [2, 5] == [plan.blocks_of(name) for name in ("two", "five")]
    assert plan == plan_from(json.loads(json.dumps(plan.to_json())), "test")


def test_differences_name_dotted_keys() -> None:
    plan, other = plan_from(MINIMAL, "test"), plan_from(with_value("cells.0.flags", "--seed 1") | {"blocks": 4}, "test")
    assert ["cells.0.flags", "blocks"] == plan.differences(other)


@pytest.mark.parametrize(
    ("text", "fraction"),
    [
        pytest.param("1%", 0.01, id="percent"),
        pytest.param("0.5 %", 0.005, id="percent-with-space"),
        pytest.param(0.02, 0.02, id="fraction"),
        pytest.param("0.02", 0.02, id="fraction-as-text"),
        pytest.param("0%", 0.0, id="zero"),
    ],
)
def test_minimum_effect_forms(text: Any, fraction: float) -> None:
    assert fraction == pytest.approx(plan_from(MINIMAL | {"min_effect": text}, "test").min_effect)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        pytest.param(MINIMAL | {"blcks": 2}, "blcks is not known", id="unknown-key"),
        pytest.param(with_value("arms.candidate.flgs", "x"), "arms.candidate.flgs is not known", id="unknown-arm-key"),
        pytest.param({"name": "tiny", "cells": []}, "arms is missing", id="no-arms"),
        pytest.param(MINIMAL | {"cells": []}, "cells", id="no-cells"),
        pytest.param(MINIMAL | {"schema": 2}, "schema", id="later-schema"),
        pytest.param(MINIMAL | {"blocks": 0}, "blocks", id="no-blocks"),
        pytest.param(with_value("cells.0.blocks", 0), "cells.0.blocks", id="no-blocks-in-a-cell"),
        pytest.param(with_value("cells.0.blocks", "2"), "cells.0.blocks", id="blocks-as-text"),
        pytest.param(MINIMAL | {"order": "BABA"}, "BABA", id="unknown-order"),
        pytest.param(MINIMAL | {"primary": "gpu"}, "primary", id="unknown-primary"),
        pytest.param(MINIMAL | {"min_effect": "much"}, "min_effect", id="min-effect-word"),
        pytest.param(MINIMAL | {"min_effect": "x%"}, "no percentage", id="min-effect-bad-percent"),
        pytest.param(MINIMAL | {"min_effect": float("nan")}, "min_effect", id="min-effect-nan"),
        pytest.param(MINIMAL | {"min_effect": 1.0}, "min_effect", id="min-effect-all"),
        pytest.param(MINIMAL | {"timeout_s": float("inf")}, "timeout_s", id="endless-timeout"),
        pytest.param(MINIMAL | {"warmup_slots": 3}, "warmup_slots", id="three-warmups"),
        pytest.param(MINIMAL | {"name": "../../x"}, "name", id="name-is-a-path"),
        pytest.param(with_value("cells.0.name", "a/b"), "cells.0.name", id="cell-name-is-a-path"),
        pytest.param(MINIMAL | {"cells": [{"name": "x"}, {"name": "x"}]}, "two cells", id="cell-twice"),
        pytest.param(with_value("cells.0.contract", "nearly"), "nearly", id="unknown-contract"),
        pytest.param(
            with_value("cells.0.contract", "ssim>0.9"), '"close:ssim>=0.95,psnr>=28"', id="contract-without-an-example"
        ),
        pytest.param(with_value("cells.0.flags", "--prompt 'a"), "no closing quotation", id="open-quote"),
        pytest.param(with_value("arms.baseline.flags", "--output-path=x"), "--output-path", id="slot-flag"),
        pytest.param(with_value("cells.0.flags", "--perf-dump-path x"), "--perf-dump-path", id="slot-flag-in-cell"),
        pytest.param(with_value("arms.baseline.command", "run {perf_dump}"), "not both", id="flags-and-command"),
        pytest.param(with_value("arms.candidate.command", "  "), "empty", id="empty-command"),
        pytest.param(with_value("arms.candidate.env", {"A=B": "1"}), "A=B", id="bad-variable"),
    ],
)
def test_bad_plans_name_source_and_key(values: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan_from(values, "plan file x.toml")
    assert caught.value.message.startswith("plan file x.toml: ")
    assert named in caught.value.message
    assert "\n" not in caught.value.message


def test_a_misspelt_plan_is_told_the_name() -> None:
    with pytest.raises(UsageError) as caught:
        load_plan("ernie-image-trubo")
    assert str(caught.value.next_step).startswith("did you mean 'ernie-image-turbo'? Otherwise name")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        pytest.param(b"name = ", "not valid TOML", id="not-toml"),
        pytest.param(b"\xff\xfe\x00", "not UTF-8", id="not-text"),
        pytest.param(None, "cannot be read", id="missing"),
    ],
)
def test_unreadable_files_are_named(tmp_path: Path, content: bytes | None, named: str) -> None:
    path = tmp_path / "plan.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=named) as caught:
        load_plan(path)
    assert str(path) in caught.value.message


def test_unknown_name_lists_the_built_in_plans() -> None:
    with pytest.raises(UsageError, match="embedded"):
        load_plan("embeded")


def test_plans_are_frozen() -> None:
    plan: Any = load_plan("embedded")
    with pytest.raises(ValueError, match="frozen"):
        plan.blocks = 3
    assert isinstance(plan, Plan)


def test_with_aa_a_plan_runs_its_baseline_twice() -> None:
    plan = plan_from({**MINIMAL, "aa": True}, "plan")
    assert "--fastpaths=off" == plan.arm("B").flags
    assert plan.arms.baseline == plan.arms.candidate


def several(**more: Any) -> dict[str, Any]:
    arms = {"baseline": {"name": "old"}, "candidate": {"name": "new"}, "ablation": {"name": "half", "flags": "--x"}}
    return {"name": "three", "arms": arms, "cells": [{"name": "panda"}]} | more


def test_further_candidates_have_letters_in_the_order_of_the_file() -> None:
    plan = plan_from(several(), "test")
    assert ("A", "B", "C") == plan.letters
    assert ["old", "new", "half"] == [plan.arm(letter).name for letter in plan.letters]
    assert "ablation" == plan.key_of("C")
    assert (3, 6) == (plan.blocks, plan.slots_per_block)
    assert 2 == plan_from(several(blocks=2), "test").blocks
    again = plan_from(plan.to_json(), "test")
    assert plan == again
    assert [] == plan.differences(again)
    assert ["baseline", "candidate"] == list(plan.against("C").to_json()["arms"])
    assert "half" == plan.against("C").arms.candidate.name


@pytest.mark.parametrize(
    ("arms", "told"),
    [
        pytest.param({"third": {"name": "old"}}, "two arms are called 'old'", id="one name twice"),
        pytest.param({"third": {"name": "x", "flagz": ""}}, "key arms.third.flagz is not known", id="unknown key"),
        pytest.param({"a third": {"name": "x"}}, "a name is 1 to 64 letters", id="no name"),
        pytest.param({f"x{n}": {"name": f"x{n}"} for n in range(8)}, "has at most 8", id="too many"),
    ],
)
def test_further_candidates_that_are_none(arms: dict[str, Any], told: str) -> None:
    values = several()
    with pytest.raises(UsageError, match=told):
        plan_from(values | {"arms": values["arms"] | arms}, "test")


def test_aa_is_for_two_arms() -> None:
    with pytest.raises(UsageError, match="runs the baseline as both arms, and this plan has 3 arms"):
        plan_from(several(aa=True), "test")
