"""``fuseproof.json``: what a model folder says of itself that the Diffusers layout has no place for. Torch-free.

Three things: which ``family`` it belongs to where several share a pipeline class (LongCat-Image-Edit and its Turbo),
the area of the ``canvas_pixels`` that input images are fitted to where it is not the family's, and whether its
``weights`` are ``random`` or ``trained``. The embedded checkpoints have one; anybody may put one into a folder. The
libraries ignore it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines.families import families_of_pipeline_class
from fuseproof.pipelines.family import Family

MARKER = "fuseproof.json"
SCHEMA = "fuseproof.checkpoint/1"
KEYS = ("schema", "family", "canvas_pixels", "weights")
RANDOM: Final = "random"
TRAINED: Final = "trained"
RANDOM_WARNING = "random weights: seeded, not a trained model; speed is real, pictures are not"
SMALLEST_CANVAS_PIXELS = 64 * 64
MARKER_STEP = f"Correct {MARKER}, or remove it."

WeightsKind = Literal["dummy", "random", "trained", "given"]
"""What a run's weights are: ``dummy``, made by ``--load-format dummy``; ``random`` or ``trained``, as a checkpoint's
marker calls them; ``given``, those of a checkpoint that does not say, as no published one does."""


@dataclass(frozen=True)
class Marker:
    """The contents of a folder's marker; None where it does not say."""

    family: str | None = None
    canvas_pixels: int | None = None
    weights: Literal["random", "trained"] | None = None

    def to_json(self) -> str:
        """The file's text."""
        values = {
            "schema": SCHEMA,
            "family": self.family,
            "canvas_pixels": self.canvas_pixels,
            "weights": self.weights,
        }
        return json.dumps({key: value for key, value in values.items() if value is not None}, indent=2) + "\n"


UNMARKED = Marker()


def parse_marker(values: Mapping[str, Any], where: str) -> Marker:
    """The marker that a JSON object stands for; a FuseproofError names ``where`` it was found and the key."""
    unknown = sorted(set(values) - set(KEYS))
    if unknown:
        raise FuseproofError(f"{where} has a key {unknown[0]!r}; it may hold {', '.join(KEYS)}.", next_step=MARKER_STEP)
    if values.get("schema") != SCHEMA:
        raise FuseproofError(
            f"{where} has schema {json.dumps(values.get('schema'))}; {json.dumps(SCHEMA)} was expected.",
            next_step=MARKER_STEP,
        )
    family, canvas_pixels = values.get("family"), values.get("canvas_pixels")
    if family is not None and not isinstance(family, str):
        raise FuseproofError(
            f"{where} has family {json.dumps(family)[:40]}; a name was expected.", next_step=MARKER_STEP
        )
    is_whole = isinstance(canvas_pixels, int) and not isinstance(canvas_pixels, bool)
    if canvas_pixels is not None and not (is_whole and canvas_pixels >= SMALLEST_CANVAS_PIXELS):
        raise FuseproofError(
            f"{where} has canvas_pixels {json.dumps(canvas_pixels)[:40]}; a whole number from "
            f"{SMALLEST_CANVAS_PIXELS} on was expected.",
            next_step=MARKER_STEP,
        )
    weights = values.get("weights")
    if weights not in (None, RANDOM, TRAINED):
        raise FuseproofError(
            f"{where} has weights {json.dumps(weights)[:40]}; {RANDOM} or {TRAINED} was expected.",
            next_step=MARKER_STEP,
        )
    return Marker(family, canvas_pixels, weights)


def family_of_checkpoint(
    pipeline_class: str, index: Mapping[str, Any], marker: Marker, expected: Family | None, where: str
) -> Family:
    """The family of a folder with this ``pipeline_class``: ``expected`` by the request, else what the marker says.

    Families of one class are told apart by the options in the folder's ``index`` where it says any. A UsageError says
    where the two, or one of them and the class, contradict each other.
    """
    possible = families_with_options(pipeline_class, index, where)
    marked = next((family for family in possible if family.name == marker.family), None)
    names = " or ".join(family.name for family in possible)
    if marker.family is not None and marked is None:
        raise FuseproofError(
            f"{MARKER} in {where} has family {marker.family!r}, but {pipeline_class} is {names}.", next_step=MARKER_STEP
        )
    if expected is None:
        return marked or possible[0]
    if expected not in possible:
        raise UsageError(
            f"{where} holds a {pipeline_class}, which is {names}; {expected.name} was expected.",
            next_step="Check --model-path and --model-id.",
        )
    if marked not in (None, expected):
        raise UsageError(
            f"{MARKER} in {where} has family {marker.family!r}; {expected.name} was expected.",
            next_step="Leave --model-id out, or correct the file.",
        )
    return expected


def families_with_options(pipeline_class: str, index: Mapping[str, Any], where: str) -> tuple[Family, ...]:
    """The families of ``pipeline_class`` whose ``pipeline_options`` are the folder's; a UsageError where none has them.

    An option that ``index`` lacks is false or null, as diffusers' constructors have it.
    """
    families = families_of_pipeline_class(pipeline_class)
    possible = tuple(
        family
        for family in families
        if all((index.get(name) or None) == (value or None) for name, value in family.pipeline_options.items())
    )
    if not possible:
        seen = {name: index.get(name) for family in families for name in family.pipeline_options}
        listed = ", ".join(f"{name} {json.dumps(value)}" for name, value in seen.items())
        names = ", ".join(family.name for family in families)
        raise UsageError(
            f"{where} holds a {pipeline_class} with {listed}, which is none of {names}.",
            next_step="`fuseproof models list` shows the families that run today.",
        )
    return possible
