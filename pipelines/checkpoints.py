"""Checks of a Diffusers model folder before any weight is read. Torch-free.

The libraries find most of these faults too, but late, one at a time, and sometimes only in a warning. Here every file
that loading will need is looked at first: it exists, it is what its name says, and it is whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fuseproof.errors import FuseproofError
from fuseproof.pipelines import component_weights
from fuseproof.pipelines.checkpoint_marker import (
    MARKER,
    UNMARKED,
    Marker,
    WeightsKind,
    family_of_checkpoint,
    parse_marker,
)
from fuseproof.pipelines.config_numbers import number_faults
from fuseproof.pipelines.families import PROMPT_ENHANCER
from fuseproof.pipelines.family import Component, Family
from fuseproof.pipelines.folder_files import read_json_object, refuse_foreign_contents, shown_path, unreadable
from fuseproof.pipelines.wan_configs import refuse_unfit_configs
from fuseproof.pipelines.weight_files import WeightFile

MODEL_INDEX = "model_index.json"
CONFIG_NAMES = {
    "model": "config.json",
    "scheduler": "scheduler_config.json",
    "tokenizer": "tokenizer_config.json",
}
TOKENIZER_FILES: tuple[tuple[str, ...], ...] = (("tokenizer.json",), ("vocab.json", "merges.txt"))
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


@dataclass(frozen=True)
class Checkpoint:
    """A model folder that passed every check.

    ``components`` maps a name to its ``(library, class)``, without empty slots. ``weight_files`` maps the name of
    each model component to the files that loading will read. ``marker`` is what the folder's own ``fuseproof.json``
    says, empty without one.
    """

    folder: Path
    family: Family
    components: Mapping[str, tuple[str, str]]
    weight_files: Mapping[str, tuple[WeightFile, ...]]
    marker: Marker = UNMARKED

    @property
    def canvas_pixels(self) -> int | None:
        """Area of the canvas that an input image is fitted to; None where the family takes none."""
        return self.marker.canvas_pixels or self.family.canvas_pixels if self.family.takes_image else None

    @property
    def weights(self) -> WeightsKind:
        """Whether the weights are random or trained, as the folder says; ``given`` where it does not."""
        return self.marker.weights or "given"

    @property
    def has_text_processor(self) -> bool:
        """True when prompts can be rewritten with what the folder holds."""
        return "text_processor" in self.components

    @property
    def absent_enhancer_parts(self) -> tuple[str, ...]:
        """What the folder lacks of a prompt enhancer, by component; empty where prompts can be enhanced."""
        return tuple(name for name in PROMPT_ENHANCER if name not in self.components)

    @property
    def weight_bytes(self) -> int:
        """Size of all weight files."""
        return sum(file.size_bytes for files in self.weight_files.values() for file in files)

    def parameters(self, component: str) -> int:
        """How many values the weight files of ``component`` hold."""
        return sum(file.parameters for file in self.weight_files[component])

    def config(self, component: str) -> dict[str, Any]:
        """The component's ``config.json`` (or ``scheduler_config.json``, ``tokenizer_config.json``)."""
        kind = self.family.components[component].kind
        return read_json_object(self.folder / component / CONFIG_NAMES[kind], self.folder)


def check_checkpoint(folder: Path, expected: Family | None = None) -> Checkpoint:
    """Check a model folder in the Diffusers layout; a FuseproofError names the file and the key at fault.

    ``expected`` is the family that the request names; it decides where several share the folder's pipeline class.
    """
    index = read_model_index(folder)
    marker = _read_marker(folder)
    family = family_of_checkpoint(index["_class_name"], index, marker, expected, str(folder))
    components = listed_components(index, family, folder)
    weight_files: dict[str, tuple[WeightFile, ...]] = {}
    for name in components:
        component = family.components[name]
        _check_component_folder(folder, name, component, components[name][1])
        if component.kind == "model":
            weight_files[name] = tuple(component_weights.weight_files(folder, name, component.library))
    checkpoint = Checkpoint(folder, family, MappingProxyType(components), MappingProxyType(weight_files), marker)
    if family.makes_video:
        refuse_unfit_configs(checkpoint)
    return checkpoint


def read_model_index(folder: Path) -> dict[str, Any]:
    """The parsed ``model_index.json``, with a ``_class_name`` that is text."""
    path = folder / MODEL_INDEX
    if not path.is_file():
        raise _no_model_index(folder)
    index = read_json_object(path, folder)
    if "_class_name" not in index:
        raise unreadable(f"{MODEL_INDEX} in {folder} has no key '_class_name', so its pipeline is unknown.")
    if not isinstance(index["_class_name"], str) or not index["_class_name"]:
        raise unreadable(
            f"{MODEL_INDEX} in {folder} has _class_name {json.dumps(index['_class_name'])}; "
            "a pipeline's class name was expected."
        )
    return index


def _read_marker(folder: Path) -> Marker:
    path = folder / MARKER
    return parse_marker(read_json_object(path, folder), f"{MARKER} in {folder}") if path.exists() else UNMARKED


def listed_components(index: Mapping[str, Any], family: Family, folder: Path) -> dict[str, tuple[str, str]]:
    """The components that ``model_index.json`` fills, checked against what the family's pipeline takes."""
    for name, entry in index.items():
        if name in family.empty_components and entry == [None, None]:
            continue
        if isinstance(entry, list) and name not in family.components:
            known = ", ".join(family.components)
            raise unreadable(
                f"{MODEL_INDEX} in {folder} lists a component {name!r} that {family.pipeline_class} does not have; "
                f"it has {known}."
            )
    filled: dict[str, tuple[str, str]] = {}
    for name, component in family.components.items():
        entry = _component_entry(index, name, component, folder)
        if entry is not None:
            filled[name] = entry
    return filled


def _component_entry(index: Mapping[str, Any], name: str, component: Component, folder: Path) -> tuple[str, str] | None:
    expected = json.dumps([component.library, component.classes[0]])
    if name not in index or index[name] == [None, None]:
        if not component.required:
            return None
        seen = "has no entry" if name not in index else "has [null, null]"
        raise unreadable(f"{MODEL_INDEX} in {folder} {seen} for {name!r}; {expected} was expected.")
    entry = index[name]
    is_pair = isinstance(entry, list) and len(entry) == 2 and all(isinstance(part, str) for part in entry)
    if not is_pair or entry[0] != component.library or entry[1] not in component.classes:
        raise unreadable(
            f"{MODEL_INDEX} in {folder} has {name!r}: {json.dumps(entry)}; {expected} was expected.",
        )
    return entry[0], entry[1]


def _check_component_folder(folder: Path, name: str, component: Component, class_name: str) -> None:
    if not (folder / name).is_dir():
        raise unreadable(f"{MODEL_INDEX} in {folder} lists {name!r}, but there is no folder {name}/.")
    for path in sorted((folder / name).glob("*.json")):
        refuse_foreign_contents(path, folder)
    config_name = CONFIG_NAMES.get(component.kind)
    if config_name is not None:
        path = folder / name / config_name
        if not path.is_file():
            raise unreadable(f"{name}/{config_name} is missing in {folder}.")
        config = read_json_object(path, folder)
        _check_own_class(config, class_name, shown_path(path, folder), folder)
        for fault in number_faults(config, class_name, component.kind):
            raise unreadable(f"{shown_path(path, folder)} in {folder} {fault}.")
    if component.kind == "tokenizer":
        _check_tokenizer_files(folder, name)
    if component.kind == "processor" and component.required:
        _check_processor_files(folder, name)


def class_by_config(config: Mapping[str, Any], class_name: str) -> str:
    """The class that a component's config means: some folders call UMT5's encoder that of T5, whose weights differ."""
    is_umt5 = class_name == "T5EncoderModel" and config.get("model_type") == "umt5"
    return "UMT5EncoderModel" if is_umt5 else class_name


def _check_own_class(config: Mapping[str, Any], class_name: str, shown: str, folder: Path) -> None:
    """A component's config often names its class too; the libraries load another one without a word."""
    accepted = {class_name, class_by_config(config, class_name)}
    for key in ("_class_name", "architectures"):
        named = config.get(key) or class_name
        if accepted.isdisjoint(named if isinstance(named, list) else [named]):
            raise unreadable(f"{shown} in {folder} has {key} {json.dumps(named)}, but {MODEL_INDEX} says {class_name}.")


def _check_tokenizer_files(folder: Path, name: str) -> None:
    for alternative in TOKENIZER_FILES:
        if all((folder / name / file).is_file() for file in alternative):
            return
    alternatives = " or ".join(" with ".join(f"{name}/{file}" for file in names) for names in TOKENIZER_FILES)
    raise unreadable(f"The tokenizer in {folder} has no vocabulary: {alternatives} was expected.")


def _check_processor_files(folder: Path, name: str) -> None:
    if not any((folder / name / file).is_file() for file in PROCESSOR_FILES):
        expected = " or ".join(f"{name}/{file}" for file in PROCESSOR_FILES)
        raise unreadable(f"{expected} is missing in {folder}, so its image processor is unknown.")


def _no_model_index(folder: Path) -> FuseproofError:
    if folder.is_file():
        return unreadable(f"{folder} is a file; a model folder in the Diffusers layout was expected.")
    if not folder.is_dir():
        return unreadable(f"There is no model folder {folder}.")
    if (folder / "config.json").is_file():
        config = read_json_object(folder / "config.json", folder)
        named = config.get("_class_name") or config.get("architectures")
        named = named[0] if isinstance(named, list) and named else named
        kind = named if isinstance(named, str) and named else "one component"
        return FuseproofError(
            f"{folder} holds a single component ({kind}), not a pipeline: it has no {MODEL_INDEX}.",
            next_step="Pass the folder above it, the one with model_index.json.",
        )
    return unreadable(f"{folder} has no {MODEL_INDEX}, so it is not a model folder in the Diffusers layout.")
