"""A certificate holds every file that decides a site: of all families that have it, and what they share."""

from fuseproof.fastpaths.certificate_sources import WHOLE_ROOM, built_in_names


def test_a_site_of_two_families_has_the_kernels_and_the_folders_of_both():
    names = built_in_names("gated_residual")
    assert names is not None
    assert {
        "kernels/gated_residual.py",
        "kernels/gated_residual_layernorm_modulate.py",
        "kernels/gated_residual_rmsnorm_modulate.py",
        "sites/longcat_image/blocks.py",
        "sites/ernie_image/blocks.py",
        "sites/packing.py",
    } <= set(names)


def test_a_site_of_one_family_has_that_familys_alone():
    names = built_in_names("geglu")
    assert names is not None
    assert "sites/packing.py" in names
    assert not [name for name in names if "longcat" in name]


def test_a_site_without_a_kernel_has_the_whole_room_and_another_name_none():
    assert (WHOLE_ROOM,) == built_in_names("stream_blocks")
    assert built_in_names("nobody_s") is None
