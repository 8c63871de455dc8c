"""``fastpaths explain`` and the guide: every site is explained from its own docstring, without loading torch."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fuseproof.cli import fastpaths_bench, fastpaths_explain, fastpaths_names, fastpaths_verify, generation, hash_seed
from fuseproof.cli.fastpaths_explain import missing_labels
from fuseproof.cli.fastpaths_guide import markdown, plain_text, read_guide
from fuseproof.cli.fastpaths_page import page
from fuseproof.cli.main import main
from fuseproof.cli.reference import guide_differences, write_guide
from fuseproof.errors import FuseproofError

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "fast-paths.md"
HERE = read_guide()
"""The guide of this checkout: every docstring is parsed for it."""


def test_every_site_and_kernel_of_every_family_is_explained() -> None:
    from fuseproof.fastpaths.families import FAMILIES, kernels_of_site

    guide = read_guide()
    kernels: dict[str, set[str]] = {}
    for module in FAMILIES.values():
        family = importlib.import_module(module)
        assert set(family.SITES) <= set(guide.sites), module
        for site, names in kernels_of_site(family).items():
            kernels.setdefault(site, set()).update(names)
        assert family.QUALITY_OF_SITE == {site: guide.quality_of(site) for site in family.SITES}
        assert {site for site in family.SITES if family.CLASS_NAME not in guide.classes_of(site)} == set()
    assert kernels == {site: set(guide.sites[site]) for site in kernels}


def test_a_kernel_that_can_be_replaced_has_one_row_with_every_model_that_it_belongs_to() -> None:
    rows = [line.split(" | ") for line in page().splitlines() if re.match(r"\| \[`\w+`\]\(#\w+\) \| `\w+`", line)]
    models = {row[0]: row[1] for row in rows if len(row) >= 4 and row[1] != "lossless"}
    assert len(models) == len([row for row in rows if row[1] != "lossless"])
    both = "`ErnieImageTransformer2DModel`, `LongCatImageTransformer2DModel`"
    assert (
        both
        == models["| [`gated_residual`](#gated_residual)"]
        == models["| [`layernorm_modulate`](#layernorm_modulate)"]
    )
    assert "`AutoencoderKL`, `AutoencoderKLFlux2`" == models["| [`group_norm_silu`](#group_norm_silu)"]


def test_the_guide_names_the_blocks_of_every_family() -> None:
    text = page()
    for expected in (
        "`layers.*`",
        "`transformer_blocks.*`",
        "`blocks.*`",
        "`stream_blocks`",
        "`video_blocks`",
        "`--dtype bfloat16`",
    ):
        assert expected in text[text.index("## Paths of your own") :]


@pytest.mark.parametrize("name", HERE.contracts)
def test_every_contract_has_all_its_paragraphs(name: str) -> None:
    assert [] == missing_labels(HERE.contracts[name])


@pytest.mark.parametrize("file", sorted(path.name for path in (ROOT / "fastpaths" / "kernels").glob("*.py")))
def test_a_file_that_offers_a_kernel_has_a_contract(file: str) -> None:
    text = (ROOT / "fastpaths" / "kernels" / file).read_text(encoding="utf-8")
    if "\ndef fused(" in text and "\ndef reject_reason(" in text:
        assert file.removesuffix(".py") in HERE.contracts


def test_an_explanation_holds_what_a_reader_of_a_trace_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fastpaths", "explain", "gelu_tanh"]) == 0
    output = capsys.readouterr().out
    for expected in (
        "fastpaths/kernels/gelu_tanh.py",
        "gelu_tanh (lossless; LongCatImageTransformer2DModel, LongLive2Transformer3DModel,",
        "WanTransformer3DModel)",
        "parameters      gelu_tanh(x: Tensor, *, out: Tensor | None = None)",
        "formula",
        "shapes",
        "rounds",
        "replaces",
        "declines",
        "on decline",
        "fuseproof fastpaths verify --site gelu_tanh",
        "fuseproof fastpaths bench --site gelu_tanh",
        "check first     If the trace shows GeluCUDAKernelImpl",
        "attention_mlp_gelu",
    ):
        assert expected in output
    assert "``" not in output
    assert max(map(len, output.splitlines())) <= 110


@pytest.mark.parametrize("site", ["rotary_tables", "packed_blocks"])
def test_a_site_without_a_kernel_says_so(site: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fastpaths", "explain", site]) == 0
    output = capsys.readouterr().out
    assert f"site            {site} (lossless" in output
    assert f"--fastpaths {site}" in output
    assert "it has no kernel of its own" in output


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fastpaths", "explain", "gated_residual", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "fuseproof.fastpath/1"
    names = ["gated_residual", "gated_residual_layernorm_modulate", "gated_residual_rmsnorm_modulate"]
    assert names == sorted(part["name"] for part in document["parts"])
    assert all(part["check_first"] and part["on_decline"] and part["formula"] for part in document["parts"])


@pytest.mark.parametrize(
    ("nearest", "name"), [("gelu_tanh", "gelu_tan"), ("row_quantize", "quantise"), ("hoists", "hoi")]
)
def test_an_unknown_name_is_one_sentence_with_the_nearest(
    nearest: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fastpaths", "explain", name]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"there is no fast path {name!r}" in captured.err
    assert f"next: fuseproof fastpaths explain {nearest} (" in captured.err


def test_an_unknown_name_lists_what_is_close_to_it_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["fastpaths", "explain", "rmsnorm"])
    assert "close to it are rmsnorm_modulate, gated_residual_rmsnorm_modulate." in capsys.readouterr().err


def test_a_site_of_a_library_product_names_the_kernel_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert ("row_quantize",) == read_guide().kernels_of("fp8_linear")
    assert () == read_guide().kernels_of("linear_gelu")
    assert "fp8_linear" == read_guide().site_of("row_quantize")
    assert main(["fastpaths", "explain", "fp8_linear", "--json"]) == 0
    parts = json.loads(capsys.readouterr().out)["parts"]
    assert ["fp8_linear", "row_quantize"] == [part["name"] for part in parts]
    assert "--quality high" in parts[0]["microbenchmark"]


def test_a_kernel_that_is_close_has_no_bits_to_verify(capsys: pytest.CaptureFixture[str]) -> None:
    known = HERE.names_with_kernels()
    assert {"norm_silu_conv_input", "wan_vae_one_pass"}.isdisjoint(known)
    assert {"fp8_linear", "row_quantize", "wan_vae_downsampling"} <= set(known)
    assert 2 == main(["fastpaths", "verify", "--site", "norm_silu_conv_input"])
    said = capsys.readouterr().err
    assert "'norm_silu_conv_input' has no kernel that could be run by itself" in said
    assert "fuseproof generate --fastpaths wan_vae_one_pass --quality extra-high" in said


NAMES = sorted({*HERE.sites, *HERE.contracts} - {"hoists"})


@pytest.mark.parametrize("name", NAMES)
def test_every_command_that_an_explanation_names_is_accepted(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as its flags: `verify` and `bench` stop where they would use a device, `generate` where it would load."""

    def accepted(*_: object, **__: object) -> None:
        raise FuseproofError("accepted")

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for module in (fastpaths_explain, fastpaths_names):
        monkeypatch.setattr(module, "read_guide", lambda: HERE)
    for module in (fastpaths_verify, fastpaths_bench):
        monkeypatch.setattr(module, "card", accepted)
    monkeypatch.setattr(generation, "open_session", accepted)
    monkeypatch.setattr(hash_seed, "restart_with_fixed_hash_seed", lambda *_: None)
    assert main(["fastpaths", "explain", name, "--json"]) == 0
    for part in json.loads(capsys.readouterr().out)["parts"]:
        text = part["validation"] + " " + part["microbenchmark"]
        commands = [shlex.split(command) for command in re.findall(r"`fuseproof ([^`]*)`", text)]
        assert len(commands) >= 2
        for command in commands:
            if command[0] == "fastpaths":
                assert main(command) == 1, command
                assert "error: accepted" in capsys.readouterr().err
            else:
                assert command[0] in ("generate", "abba")
                flags = [word for word in command if word != "…"]
                words = " ".join(shlex.split(" ".join(flags)) if command[0] == "abba" else flags)
                assert f"--fastpaths {part['site']}" in words
                assert ("--quality" in words) is (part["quality"] != "lossless")


@pytest.mark.parametrize("emphasis", ["*is*", "a *word* in a line"])
def test_emphasis_is_no_asterisk_in_text(emphasis: str) -> None:
    assert emphasis.replace("*", "") == plain_text(emphasis)


@pytest.mark.parametrize("formula", ["x * x * x", "a*b*c", "2 * (x) * y", "``text_*`` and ``out_*``"])
def test_products_keep_their_asterisks(formula: str) -> None:
    assert formula.replace("``", "") == plain_text(formula)


def test_nothing_heavy_is_loaded() -> None:
    program = (
        "import sys\nfrom fuseproof.cli.main import main\nmain(['fastpaths', 'explain', 'gelu_tanh'])\n"
        "sys.stderr.write(' '.join({'torch', 'triton', 'diffusers', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stderr == ""


def test_the_page_is_written_from_the_docstrings() -> None:
    assert GUIDE.read_text(encoding="utf-8") == page(), "run `make docs`"


def test_the_page_has_a_section_for_every_contract_and_a_row_for_every_site() -> None:
    guide, text = read_guide(), page()
    assert [] == [name for name in guide.contracts if f"\n### {name}\n" not in text]
    assert [] == [site for site in guide.sites if f"\n| [`{site}`](#" not in text]
    for word in ("card", "site", "gate", "key", "first sight", "decided", "hoist", "certificate"):
        assert f"\n| {word} |" in text
    assert "**epoch**" in text
    assert "``" not in text.replace("```", "")


def test_a_page_that_is_missing_or_old_is_named_and_written(tmp_path: Path) -> None:
    path = tmp_path / "fast-paths.md"
    assert [f"{path} is missing"] == guide_differences(path)
    assert ["fast-paths.md"] == write_guide(path)
    assert [] == write_guide(path)
    path.write_text("old\n", encoding="utf-8")
    assert [f"{path} differs from the docstrings in fastpaths"] == guide_differences(path)


def test_docstring_markup_becomes_text_or_markdown() -> None:
    assert "R(x) of blocks" == plain_text("``R(x)`` of :mod:`blocks`")
    assert "`R(x)` of `blocks`" == markdown("``R(x)`` of :mod:`blocks`")


def test_a_room_of_ones_own_is_read(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "op.py").write_text(
        '"""An op.\n\nFormula: ``a``\n    and ``b``.\nClose: quality ``high``.\n\nCheck first: c.\n"""\n',
        encoding="utf-8",
    )
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "model.py").write_text(
        'CLASS_NAME = "Model"\nKERNELS_OF_SITE = {"place": ("op",)}\nSITES = tuple(KERNELS_OF_SITE)\n', encoding="utf-8"
    )
    guide = read_guide(tmp_path)
    assert {"place": ("op",)} == guide.sites
    assert ("An op.", "``a`` and ``b``.", "high") == (
        guide.contracts["op"].title,
        guide.contracts["op"].paragraphs["Formula"],
        guide.contracts["op"].quality,
    )
    assert ("Model",) == guide.classes_of("place")
