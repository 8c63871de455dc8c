"""``--fastpaths NAME``: a name that the model has no site of is refused before a weight is read, without torch."""

from __future__ import annotations

import importlib

import pytest

from fuseproof.cli.fastpath_sites import refuse_unknown_sites, sites_of
from fuseproof.cli.generate_options import GenerateOptions
from fuseproof.errors import UsageError
from fuseproof.fastpaths import families as fastpath_families
from fuseproof.pipelines.families import ERNIE_IMAGE, FAMILIES, LONGCAT_IMAGE
from fuseproof.pipelines.family import Family
from tests.cli.desk import Desk


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_names_are_those_that_mounting_knows(family: Family) -> None:
    classes = [name for component in family.components.values() for name in component.classes]
    modules = {fastpath_families.FAMILIES[name] for name in classes if name in fastpath_families.FAMILIES}
    mounted = {site for name in modules for site in importlib.import_module(name).SITES}
    assert mounted == set(sites_of(family))


@pytest.mark.parametrize(
    ("expected", "next_step", "family", "fastpaths"),
    [
        ("names 'qk_norm_rop', which LongCat-Image does not have", "Did you mean qk_norm_rope?", LONGCAT_IMAGE,
         "packed_blocks,qk_norm_rop"),
        ("names 'packed_blocks', which ERNIE-Image does not have; it has fp8_linear, ", "", ERNIE_IMAGE,
         "packed_blocks"),
    ],
    ids=["misspelt", "of-another-model"],
)  # fmt: skip
def test_a_name_that_no_component_has_is_refused(expected: str, next_step: str, family: Family, fastpaths: str) -> None:
    with pytest.raises(UsageError) as caught:
        refuse_unknown_sites(GenerateOptions(prompt=("a",), fastpaths=fastpaths), family)
    assert expected in caught.value.message
    assert next_step in str(caught.value.next_step)


@pytest.mark.parametrize(
    "flags", [{}, {"fastpaths": "off"}, {"fastpaths": "my_norm", "fastpaths_from": "k.py"}, {"fastpaths": "geglu"}],
    ids=["auto", "off", "ones-own", "known"],
)  # fmt: skip
def test_a_name_that_may_be_there_passes(flags: dict[str, str]) -> None:
    refuse_unknown_sites(GenerateOptions(prompt=("a",), **flags), ERNIE_IMAGE)


def test_generate_refuses_it_before_loading(real_models: Desk) -> None:
    assert 2 == real_models.run("--prompt=a", "--model-path=embedded:ernie-image", "--fastpaths=rms")
    assert "--fastpaths names 'rms', which ERNIE-Image does not have" in real_models.err
    assert real_models.session.opened_with is None
