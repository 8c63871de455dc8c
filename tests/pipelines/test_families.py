from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from fuseproof.errors import UsageError
from fuseproof.pipelines.families import (
    FAMILIES,
    NOT_SUPPORTED_YET,
    families_of_pipeline_class,
    family_named,
    family_of_model_id,
    family_of_pipeline_class,
)
from fuseproof.pipelines.family import Family


@pytest.mark.parametrize(
    ("expected", "name"),
    [
        (["longcat-image"], "LongCatImagePipeline"),
        (["longcat-image-edit", "longcat-image-edit-turbo"], "LongCatImageEditPipeline"),
        (["ernie-image", "ernie-image-turbo"], "ErnieImagePipeline"),
        (["wan2.2-ti2v-5b", "wan2.1-t2v-1.3b"], "WanPipeline"),
        (["longlive2"], "LongLive2Pipeline"),
    ],
)
def test_a_family_is_recognised_by_its_pipeline_class_and_the_first_is_meant(expected: list[str], name: str) -> None:
    assert expected == [family.name for family in families_of_pipeline_class(name)]
    assert FAMILIES[expected[0]] is family_of_pipeline_class(name)


@pytest.mark.parametrize(
    ("expected", "model_id"),
    [
        ("longcat-image-edit-turbo", "meituan-longcat/LongCat-Image-Edit-Turbo"),
        ("longcat-image-edit-turbo", "LongCat-Image-Edit-Turbo"),
        ("longcat-image-edit-turbo", "longcat-image-edit-turbo"),
        ("longcat-image-edit", "LongCat-Image-Edit"),
        ("ernie-image", "baidu/ERNIE-Image"),
        ("ernie-image-turbo", "baidu/ERNIE-Image-Turbo"),
        ("ernie-image-turbo", "ERNIE-Image-Turbo"),
        ("wan2.2-ti2v-5b", "Wan-AI/Wan2.2-TI2V-5B-Diffusers"),
        ("wan2.1-t2v-1.3b", "Wan2.1-T2V-1.3B-Diffusers"),
        ("longlive2", "Rabinovich/LongLive-2.0-5B-Diffusers"),
        (None, "Wan-AI/Wan2.1-T2V-14B-Diffusers"),
        (None, "LongCat"),
        (None, ""),
        (None, "someone/LongCat-Image-Edit"),
    ],
)
def test_a_published_model_is_known_by_its_id_its_name_and_ours(expected: str | None, model_id: str) -> None:
    family = family_of_model_id(model_id)
    assert expected == (family.name if family else None)


@pytest.mark.parametrize(("guidance", "name"), [(4.5, "longcat-image-edit"), (4.0, "ernie-image")])
def test_a_turbo_is_its_model_with_other_defaults(guidance: float, name: str) -> None:
    base, turbo = FAMILIES[name], FAMILIES[f"{name}-turbo"]
    assert ((50, guidance), (8, 1.0)) == tuple((one.default_steps, one.default_guidance_scale) for one in (base, turbo))
    changed = {"name", "title", "model_ids", "default_steps", "default_guidance_scale", "notes"}
    if base.embedded_guidance_scale is not None:
        changed.add("embedded_guidance_scale")
    for field in dataclasses.fields(base):
        assert (field.name in changed) == (getattr(base, field.name) != getattr(turbo, field.name)), field.name


def test_the_embedded_edit_alone_has_a_guidance_of_its_own() -> None:
    assert {"longcat-image-edit": (2.5, 4.5)} == {
        name: (embedded, family.guidance_scale(is_embedded=False))
        for name, family in FAMILIES.items()
        if (embedded := family.guidance_scale(is_embedded=True)) != family.default_guidance_scale
    }


def test_only_editing_families_have_a_canvas() -> None:
    assert {True: {1024 * 1024}, False: {None}} == {
        takes: {family.canvas_pixels for family in FAMILIES.values() if family.takes_image == takes}
        for takes in (True, False)
    }


@pytest.mark.parametrize("name", NOT_SUPPORTED_YET)
def test_a_known_pipeline_without_support_says_not_yet(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        family_of_pipeline_class(name)
    assert "is not supported yet" in caught.value.message
    assert "LongCatImagePipeline" in caught.value.message


@pytest.mark.parametrize("name", ["", "NoSuchPipeline", "longcatimagepipeline"])
def test_an_unknown_pipeline_class_lists_what_exists(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        family_of_pipeline_class(name)
    assert repr(name) in caught.value.message
    assert "LongCatImagePipeline" in caught.value.message


def test_an_unknown_family_lists_what_exists() -> None:
    with pytest.raises(UsageError, match=r"'flux'.*longcat-image"):
        family_named("flux")


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_family_can_make_its_own_defaults(family: Family) -> None:
    sides = (family.default_width, family.default_height, family.embedded_width, family.embedded_height)
    assert [side % family.size_multiple for side in sides] == [0, 0, 0, 0]
    assert family.default_width * family.default_height <= family.maximum_pixels
    assert family.minimum_side <= min(sides) <= max(sides) <= family.maximum_side


@pytest.mark.parametrize(
    "module", ["families", "requests", "checkpoints", "weight_files", "embedded", "model_cache", "hub", "descriptions"]
)
def test_the_module_loads_no_heavy_library(module: str) -> None:
    heavy = "{'torch', 'diffusers', 'transformers', 'triton', 'huggingface_hub', 'numpy'}"
    code = f"import sys, fuseproof.pipelines.{module}; print(sorted({heavy} & set(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"
