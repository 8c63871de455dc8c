"""The numbers of a profile's tables, and how they are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fuseproof.harness.profiles.build import MARKDOWN, TERMINAL, build_document
from fuseproof.harness.profiles.costs import by_class, by_line, by_place, folded, split_block
from fuseproof.harness.profiles.flame import flame
from fuseproof.harness.profiles.html import render_html
from fuseproof.harness.profiles.profile import Profile
from fuseproof.harness.profiles.reading import profile_of
from fuseproof.harness.profiles.text import render_text
from fuseproof.harness.profiles.writing import render_markdown, write_profile
from tests.harness.profiles import samples

EVIL = "<script>alert(1)</script>\x1b[31m|`**\u202e&lt;"


@pytest.fixture(scope="module")
def eager() -> Profile:
    return profile_of(samples.profile(), Path("eager.json"))


@pytest.fixture(scope="module")
def fused() -> Profile:
    return profile_of(samples.profile(is_fused=True), Path("fused.json"))


def test_every_launch_is_in_one_class_and_in_one_place(eager: Profile) -> None:
    stage = eager.main_stage
    classes = by_class(eager.rows_of(stage), stage.steps)
    assert [("gemm", 5, 1800.0), ("attention", 4, 1200.0), ("elementwise", 8, 160.0), ("norm", 4, 120.0)] == [
        (cost.name, cost.kernels, cost.device_us) for cost in classes
    ]
    for costs in (by_place(eager, stage), by_line(eager, stage), classes):
        assert stage.kernels / stage.steps == sum(cost.kernels for cost in costs)
        assert stage.device_us / stage.steps == pytest.approx(sum(cost.device_us for cost in costs))


def test_repeated_blocks_are_one_place_and_bytes_become_bandwidth(fused: Profile) -> None:
    costs = {cost.name: cost for cost in by_place(fused, fused.main_stage)}
    norm = costs["norm_modulation"]
    assert (True, "fused", 4, ("transformer_blocks.*.norm1",)) == (
        norm.is_site,
        norm.state,
        norm.kernels,
        norm.modules,
    )
    moved = 4 * 2 * 4096 * 3072 * 2
    assert (112.0, moved, moved / 4000 / 1e3) == (norm.device_us, norm.bytes, norm.floor_us)
    assert norm.bandwidth_gb_s == pytest.approx(moved / 112.0 / 1e3)
    assert norm.distance == pytest.approx(112.0 / (moved / 4000 / 1e3))


def test_half_known_bytes_are_no_bandwidth(eager: Profile) -> None:
    norm = next(cost for cost in by_place(eager, eager.main_stage) if "norm1" in cost.name)
    assert (12, None, None, None) == (norm.kernels, norm.bytes, norm.bandwidth_gb_s, norm.distance)


@pytest.mark.parametrize(
    ("expected", "module"),
    [
        (("transformer_blocks.3", "attn.to_q"), "transformer_blocks.3.attn.to_q"),
        (("decoder.up_blocks.0", "resnets.1.conv1"), "decoder.up_blocks.0.resnets.1.conv1"),
        (("norm_out", "linear"), "norm_out.linear"),
        (("proj_out", ""), "proj_out"),
        (("", ""), ""),
    ],
)
def test_blocks(expected: tuple[str, str], module: str) -> None:
    assert expected == split_block(module)


def test_folding() -> None:
    assert "decoder.up_blocks.*.resnets.*.conv1" == folded("decoder.up_blocks.0.resnets.1.conv1")
    assert "norm1.x2" == folded("norm1.x2")


def test_the_flame_view_is_the_request_by_stage_component_block_module_operation(eager: Profile) -> None:
    whole = {level: [f for f in flame(eager, is_folded=True).frames if f.level == level] for level in range(5)}
    assert ["DenoisingStage", "DecodingStage"] == [frame.label for frame in whole[0]]
    assert 1.0 == pytest.approx(sum(frame.width for frame in whole[0]))
    assert 50 * 3280.0 / (50 * 3280.0 + 9000.0) == pytest.approx(whole[0][0].width)
    assert {"transformer_blocks.*", "proj_out", "decoder.up_blocks.*"} == {frame.label for frame in whole[2]}
    assert {"aten::linear", "aten::mul"} < {frame.label for frame in whole[4]}
    assert {"gemm", "elementwise"} < {frame.kernel_class for frame in whole[4]}
    single = [frame.label for frame in flame(eager, is_folded=False).frames if frame.level == 2]
    assert {f"transformer_blocks.{block}" for block in range(samples.BLOCKS)} < set(single)


def test_the_text_names_the_largest_costs_with_module_and_line(eager: Profile, fused: Profile) -> None:
    text = render_text(build_document(eager, TERMINAL))
    assert "DenoisingStage, 3 of 50 steps: 21 kernels a step, device time 3.280 ms a step" in text
    costs = text.split("Largest costs\n")[1].split("\n\n")[0].splitlines()
    assert (
        "  transformer_blocks.*.attn.to_q: GEMM, 1.600 ms a step, 48.8%, transformer_longcat_image.py:130" == costs[0]
    )
    assert costs[3].startswith(
        "  besides GEMM, attention and convolution: transformer_blocks.*.norm1: elementwise, 0.160"
    )
    assert "site norm_modulation in transformer_blocks.*.norm1: norm, 0.112 ms" in render_text(
        build_document(fused, TERMINAL)
    )


def test_chains_are_ranked_by_what_they_save_and_name_the_fast_path(eager: Profile) -> None:
    text = render_text(build_document(eager, TERMINAL))
    first, second = text.split("Fusable chains\n")[1].splitlines()[1:3]
    assert first.split()[0] == "64.0"
    assert first.endswith("none exists")
    assert second.endswith("norm_modulation: --fastpaths=off")


def test_rows_that_are_not_shown_are_summed(eager: Profile) -> None:
    from fuseproof.harness.profiles.tables import place_table

    stage = eager.main_stage
    table = place_table(eager, stage, by_place(eager, stage), most=1)
    assert ("3 more", "17", "1.680") == (table.rows[-1][0], table.rows[-1][3], table.rows[-1][4])


@pytest.mark.parametrize(
    "path",
    ["request.model", "rows.0.module", "rows.0.operation", "rows.0.kernel", "rows.0.line", "chains.0.fast_path_reason",
     "sites.0.reason", "warnings.0", "environment.versions.torch", "trace.file", "attribution.unattributed.0.kernel",
     "device.name", "sites.0.state"],
)  # fmt: skip
def test_nothing_in_a_profile_becomes_markup_or_a_control_code(path: str) -> None:
    profile = profile_of(samples.changed(samples.profile(), path, EVIL), Path("evil.json"))
    text, markdown, page = (
        render_text(build_document(profile, TERMINAL)),
        render_markdown(profile),
        render_html(profile),
    )
    for rendered in (text, markdown, page):
        assert "\x1b" not in rendered
        assert "\u202e" not in rendered
    assert "<script>alert" not in markdown
    assert "<script>alert" not in page


def test_the_page_is_whole_by_itself(eager: Profile) -> None:
    page = render_html(eager)
    assert not re.search(r"(?:src|href)=", page)
    assert "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" in page
    assert 2 == page.count('<div class="flame"')
    assert page == render_html(eager)


def test_what_was_written_reads_again(tmp_path: Path) -> None:
    written = write_profile(tmp_path, samples.profile())
    assert written == profile_of(samples.profile(), tmp_path / "profile.json")
    assert ["profile.html", "profile.json", "profile.md"] == sorted(path.name for path in tmp_path.iterdir())
    assert build_document(written, MARKDOWN).title in (tmp_path / "profile.md").read_text()
