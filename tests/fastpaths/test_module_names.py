"""What a glob that names no module is answered with."""

from __future__ import annotations

import pytest

from fuseproof.fastpaths.module_names import matches, names_text, shapes_of
from tests.fastpaths.small_ernie import small_pipe


@pytest.fixture(scope="module")
def names():
    return [name for name, _ in small_pipe().transformer.named_modules()]


@pytest.mark.parametrize(
    ("expected", "pattern", "name"),
    [
        (True, "layers.*.mlp", "layers.11.mlp"),
        (False, "layers.*.mlp", "layers.0.mlp.up_proj"),
        (True, "layers.**", "layers.0.mlp.up_proj"),
        (True, "layers.?.mlp", "layers.1.mlp"),
        (False, "layers.?.mlp", "layers.11.mlp"),
        (False, "layers", "layersX"),
    ],
)
def test_a_star_stands_for_one_part_and_two_for_several(expected, pattern, name):
    assert expected == matches(pattern, name)


def test_numbers_become_stars_and_each_shape_is_named_once():
    names = ["", "conv1", "layers", "layers.0", "layers.0.to_out.0", "layers.1", "layers.1.to_out.0"]
    assert ["conv1", "layers", "layers.*", "layers.*.to_out.*"] == shapes_of(names)


def test_every_shape_names_a_module(names):
    assert all(any(matches(shape, name) for name in names) for shape in shapes_of(names))


@pytest.mark.parametrize("pattern", ["transformer_blocks.*.norm1", "nope", ""])
def test_the_blocks_are_named_whatever_was_asked_for(names, pattern):
    text = names_text(pattern, names)
    assert text.endswith(
        " Its blocks and their parts are layers.*, layers.*.adaLN_sa_ln, layers.*.self_attention, "
        "layers.*.adaLN_mlp_ln, layers.*.mlp."
    )


@pytest.mark.parametrize(
    ("expected", "pattern"),
    [
        ("layers.*.adaLN_sa_ln", "layer.*.adaLN_sa_ln"),
        ("layers.*.self_attention.norm_q", "layers.*.norm_q"),
        ("x_embedder", "x_embeder"),
        ("layers.*.mlp.up_proj", "transformer_blocks.*.ff.up_proj"),
    ],
)
def test_the_nearest_name_comes_first(names, expected, pattern):
    assert names_text(pattern, names).startswith(f"Nearest are {expected}, ")


def test_a_model_of_many_parts_is_cut_with_a_count():
    names = [f"blocks.0.part{letter}" for letter in "abcdefghijklmnop"]
    assert " and 5 more." in names_text("x", ["blocks.0", *names])
