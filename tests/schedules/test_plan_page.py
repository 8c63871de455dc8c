"""docs/plan.md: its example is a plan, and its tables name every key with its default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from fuseproof.cli.abba_arms import check_plan
from fuseproof.schedules.plan import Arm, Arms, Cell, Plan, load_plan

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "plan.md").read_text(encoding="utf-8")


def example() -> str:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    return str(text)


def documented() -> list[dict[str, str]]:
    """One mapping a table, from each key to the text of its default."""
    tables: list[dict[str, str]] = []
    for line in PAGE.splitlines():
        if line.startswith("| key |"):
            tables.append({})
        elif line.startswith("| `"):
            keys, _, default, meaning = (part.strip() for part in line.strip("|").split(" | "))
            assert meaning
            tables[-1] |= dict.fromkeys(re.findall(r"`(\w+)`", keys), default)
    return tables


def keys(model: type[BaseModel]) -> dict[str, bool]:
    """A model's keys as TOML spells them, and whether each is required."""
    return {field.alias or name: field.is_required() for name, field in model.model_fields.items()}


@pytest.mark.parametrize(
    ("model", "table"),
    [pytest.param(model, index, id=model.__name__) for index, model in enumerate((Plan, Arms, Arm, Cell))],
)
def test_a_table_names_every_key_and_whether_it_is_required(model: type[BaseModel], table: int) -> None:
    assert keys(model) == {key: default.startswith("required") for key, default in documented()[table].items()}


def test_the_defaults_are_the_models_own() -> None:
    shown = {key: default for key, default in documented()[0].items() if not default.startswith("required")}
    actual = {field.alias or name: field.default for name, field in Plan.model_fields.items()}
    words = {False: "false", "": "empty", (): "empty", None: "none"}
    for key, default in shown.items():
        value = actual[key]
        written = f"{value:g}" if isinstance(value, float) else str(words.get(value, value))
        assert written == default.strip("`").strip('"'), key


def test_the_example_is_a_plan_that_could_start(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(example(), encoding="utf-8")
    plan = load_plan(path)
    check_plan(plan)
    assert ["small", "small-high"] == [cell.name for cell in plan.cells]


def test_the_example_uses_every_key(tmp_path: Path) -> None:
    used = set(re.findall(r"^(?:# )?(\w+) = ", example(), re.MULTILINE))
    every = {key for model in (Plan, Arm, Cell) for key in keys(model)} - {"arms", "cells", "ablation"}
    assert set() == every - used


def test_help_names_the_page() -> None:
    from fuseproof.cli.abba import abba

    assert "docs/plan.md" in (abba.help or "")
