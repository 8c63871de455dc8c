"""Which stored campaign a campaign's plan was taken from: ``from`` of ``campaign.json``."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fuseproof.errors import FuseproofError
from fuseproof.harness.campaign.records import DAMAGED_STEP


@dataclasses.dataclass(frozen=True)
class PlanSource:
    """``campaign`` is its name, ``created`` UTC; ``overrides`` are keys of the plan that were changed on purpose."""

    campaign: str
    created: str
    campaign_json_sha256: str
    overrides: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """What a report says of it."""
        changed = f", with other {', '.join(self.overrides)}" if self.overrides else ""
        return (
            f"Plan of campaign {self.campaign} of {self.created}{changed} "
            f"(its campaign.json: SHA-256 {self.campaign_json_sha256})."
        )

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Any, source: str) -> PlanSource:
        """Read ``from`` back; :class:`FuseproofError` names ``source`` and the key."""
        try:
            return _adapter().validate_python(values)
        except ValidationError as error:
            problem = error.errors()[0]
            key = ".".join(("from", *(str(part) for part in problem["loc"])))
            raise FuseproofError(f"{source}: key {key}: {problem['msg']}.", next_step=DAMAGED_STEP) from error


@cache
def _adapter() -> TypeAdapter[PlanSource]:
    return TypeAdapter(PlanSource)
