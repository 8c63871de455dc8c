"""A claim: what one campaign uses of a cache root, as the root's ``.fuseproof`` folder keeps it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

from fuseproof.harness.campaign.model_files import ClaimedModel

CLAIM_SCHEMA = "fuseproof.model-claim/1"
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass
class Claim:
    """What one campaign uses of a cache root."""

    key: str
    campaign: str
    cleans: bool
    models: list[ClaimedModel] = field(default_factory=list)
    root: str = ""
    """The root that it was made in: of a copy of it the claim says nothing."""

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values; ``sha256`` is of all others, so that a claim that somebody edited removes nothing."""
        values = {"schema": CLAIM_SCHEMA, **dataclasses.asdict(self)}
        return {**values, "sha256": _digest(values)}


def claim_of(key: str, values: Any) -> Claim:
    """A claim as it was written; ValueError where a word of it was changed since."""
    if values["schema"] != CLAIM_SCHEMA or values["key"] != key:
        raise ValueError("it has another schema or key")
    if values["sha256"] != _digest({name: value for name, value in values.items() if name != "sha256"}):
        raise ValueError("it was changed after it was written")
    models = [
        ClaimedModel(**{**model, "before": tuple(model["before"]), "commits": tuple(model["commits"])})
        for model in values["models"]
    ]
    if not all(COMMIT.fullmatch(commit) for model in models for commit in model.commits):
        raise ValueError("a commit is no SHA-1")
    return Claim(key, str(values["campaign"]), bool(values["cleans"]), models, str(values["root"]))


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()
