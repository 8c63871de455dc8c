from __future__ import annotations

import subprocess
import sys

import pytest

from fuseproof.errors import UsageError
from fuseproof.pipelines.families import FAMILIES, NOT_SUPPORTED_YET, Family, family_named, family_of_pipeline_class


def test_longcat_image_is_recognised_by_its_pipeline_class() -> None:
    assert family_of_pipeline_class("LongCatImagePipeline") is FAMILIES["longcat-image"]


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
