"""What ``aa.json`` may hold: every key that is read later, with its type and range, so that no wrong number is printed.

A floor comes from elsewhere, and a signature over a file says nothing of what is in it. What is not read is not looked
at.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

FLOOR_SCHEMA = "fuseproof.floor/1"
LARGEST_LOSS = 1e6
"""Of a share: an arm that took a million times as long as the other one measured nothing."""
MOST_BLOCKS = 1_000_000
LONGEST_TEXT = 2000

Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Reduction = Annotated[float, Field(ge=-LARGEST_LOSS, le=1)]
"""1 − B/A: what takes no time at all has 1."""


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


class ReasonFacts(_Part):
    """Why the A/A itself had no word."""

    code: Text
    detail: Text = ""


class TimerFacts(_Part):
    """One timer; ``reasons`` is None in a file that did not keep them."""

    blocks: int = Field(ge=1, le=MOST_BLOCKS)
    apparent_reduction: Reduction
    interval: list[Reduction] = Field(min_length=2, max_length=2)
    level: float = Field(gt=0, lt=1)
    scatter_of_one_run: float = Field(ge=0, le=LARGEST_LOSS)
    word: Text | None = None
    reasons: list[ReasonFacts] | None = None

    @model_validator(mode="after")
    def _is_an_interval_around_its_effect(self) -> TimerFacts:
        lower, upper = self.interval
        if not lower <= self.apparent_reduction <= upper:
            raise ValueError(
                f"interval [{lower:g}, {upper:g}] is none around apparent_reduction {self.apparent_reduction:g}"
            )
        return self


class ConditionFacts(_Part):
    """What two campaigns must share."""

    model_config = ConfigDict(populate_by_name=True)

    cards: list[Text] = []
    card_models: list[Text] = Field(default=[], alias="card models")
    driver: list[Text] = []
    processor: Text | None = None
    versions: dict[Text, Text] = {}


class FloorFile(_Part):
    """``fuseproof.floor/1``."""

    schema_: Literal["fuseproof.floor/1"] = Field(alias="schema")
    campaign: Text
    created: Text
    conditions: ConditionFacts
    workloads: dict[Text, Text]
    arm: Text
    cells: dict[Text, dict[Text, TimerFacts]]
