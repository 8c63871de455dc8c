"""``fastpaths explain`` and the guide: every site is explained from its own docstring, without loading torch."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fuseproof.cli.fastpaths_explain import missing_labels
from fuseproof.cli.fastpaths_guide import markdown, plain_text, read_guide
from fuseproof.cli.fastpaths_page import page
from fuseproof.cli.main import main
from fuseproof.cli.reference import guide_differences, write_guide

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "fast-paths.md"


def test_every_site_and_kernel_of_every_family_is_explained() -> None:
    from fuseproof.fastpaths.families import FAMILIES, kernels_of_site

    guide = read_guide()
    for module in FAMILIES.values():
        family = importlib.import_module(module)
        assert set(family.SITES) <= set(guide.sites), module
        for site, kernels in kernels_of_site(family).items():
            assert kernels == guide.sites[site]
        assert family.QUALITY_OF_SITE == {site: guide.quality_of(site) for site in family.SITES}
        assert {site for site in family.SITES if family.CLASS_NAME not in guide.classes_of(site)} == set()


@pytest.mark.parametrize("name", read_guide().contracts)
def test_every_contract_has_all_its_paragraphs(name: str) -> None:
    assert [] == missing_labels(read_guide().contracts[name])


@pytest.mark.parametrize("file", sorted(path.name for path in (ROOT / "fastpaths" / "kernels").glob("*.py")))
def test_a_file_that_offers_a_kernel_has_a_contract(file: str) -> None:
    text = (ROOT / "fastpaths" / "kernels" / file).read_text(encoding="utf-8")
    if "\ndef fused(" in text and "\ndef reject_reason(" in text:
        assert file.removesuffix(".py") in read_guide().contracts


def test_an_explanation_holds_what_a_reader_of_a_trace_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fastpaths", "explain", "gelu_tanh"]) == 0
    output = capsys.readouterr().out
    for expected in (
        "fastpaths/kernels/gelu_tanh.py",
        "gelu_tanh (lossless; LongCatImageTransformer2DModel)",
        "formula",
        "shapes",
        "rounds",
        "replaces",
        "declines",
        "on decline",
        "fuseproof fastpaths verify --site gelu_tanh",
        "fuseproof fastpaths bench --site gelu_tanh",
        "workflow rule   If the trace shows GeluCUDAKernelImpl",
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
    assert ["gated_residual", "gated_residual_layernorm_modulate"] == [part["name"] for part in document["parts"]]
    assert all(part["check_first"] and part["on_decline"] and part["formula"] for part in document["parts"])


def test_an_unknown_name_is_one_sentence_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fastpaths", "explain", "gelu"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "there is no fast path 'gelu'" in captured.err
    assert "next: fuseproof fastpaths explain gelu_tanh" in captured.err


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
