"""``fastpaths list`` and ``doctor --model`` on a machine without weights and without a card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fuseproof.cli.fastpaths_coverage import grouped, replaced_by, shared_coverage_lines
from fuseproof.cli.main import main

OWN = """\
import torch.nn.functional as F
from fuseproof.fastpaths import UserSite

SITES = [
    UserSite("my_norm", lambda module, x: F.layer_norm(x, (x.shape[-1],)), modules="transformer_blocks.*.norm2"),
    UserSite("my_gelu", lambda x, out=None: F.gelu(x, approximate="tanh"), replaces="gelu_tanh"),
]
"""

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="what declines without a card")


def test_every_site_has_a_state_and_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fastpaths", "list", "--model", "longcat-image", "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert ("", "fuseproof.fastpaths-list/1") == (captured.err, document["schema"])
    (model,) = document["models"]
    assert ("longcat-image", "cpu", "float32") == (model["family"], model["device"], model["dtype"])
    sites = {site["site"]: site for site in model["sites"]}
    assert "would mount" == sites["packed_blocks"]["state"]
    assert "LongCatImageTransformerBlock" in sites["packed_blocks"]["replaces"]
    assert ("declines", ["gelu_tanh", "attention_mlp_gelu"]) == (
        sites["gelu_tanh"]["state"],
        sites["gelu_tanh"]["kernels"],
    )
    assert "the model is on cpu" in sites["gelu_tanh"]["reason"]
    assert "high" == sites["fp8_linear"]["quality"]
    assert (
        "the projection of the prompt (context_embedder), anew in every forward"
        == (sites["context_embedding"]["replaces"])
    )
    assert all(site["replaces"] and "..." not in site["replaces"] for site in sites.values())
    assert all(site["reason"] for site in sites.values() if site["state"] == "declines")


def test_sites_of_ones_own_stand_among_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN, encoding="utf-8")
    assert main(["fastpaths", "list", "--model", "longcat-image", "--fastpaths-from", str(file)]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "mounts" in lines["my_norm"]
    assert "declines" in lines["my_gelu"], "the blocks that its kernel works in do not run"
    assert "transformer_blocks.0.norm2 has a fast path of your own" in lines["packed_blocks"]
    assert "the forward of transformer_blocks.*.norm2" in lines["my_norm"]


def model(name: str, **changes: object) -> dict[str, object]:
    entry = {"component": "vae", "site": "a", "state": "would mount", "quality": "lossless", "reason": None}
    table = {"components": {"vae": "V"}, "device": "cpu", "dtype": "float32", "sites": [{**entry, "replaces": "b"}]}
    return {"model": name, "title": name.title(), **table, **changes}


def test_models_with_one_table_share_it_under_their_names() -> None:
    groups = grouped([model("one"), model("other", dtype="bfloat16"), model("two")])
    assert [["one", "two"], ["other"]] == [[member["model"] for member in group] for group in groups]
    assert ["one  One", "two  Two"] == list(shared_coverage_lines(groups[0]))[:2]
    header = list(shared_coverage_lines(groups[0]))[3]
    assert ["site", "quality", "here"] == header.split()[:3]


@pytest.mark.parametrize(
    ("expected", "paragraph"),
    [
        ("one thing", "``x`` of old:\n- ``other``: another thing;\n- ``site``: one thing."),
        ("A.forward and B.forward of diffusers 0.42.1", "``A.forward`` and ``B.forward`` of diffusers 0.42.1: less."),
        ("linear (addmm)", "``linear`` (addmm)."),
    ],
)
def test_what_is_replaced_is_the_sites_own_clause(expected: str, paragraph: str) -> None:
    assert expected == replaced_by("site", paragraph)


@pytest.mark.parametrize(
    ("code", "words", "arguments"),
    [
        (2, "'no-such-model' is neither an existing folder", ["--model", "no-such-model"]),
        (2, "is no file", ["--model", "longcat-image", "--fastpaths-from", "missing.py"]),
    ],
)
def test_mistakes_are_one_sentence(
    code: int, words: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["fastpaths", "list", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert 2 >= len(captured.err.splitlines())


def test_doctor_predicts_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fastpaths", "list", "--model", "longcat-image", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["models"][0]
    main(["doctor", "--model", "longcat-image", "--json"])
    assert listed == json.loads(capsys.readouterr().out)["fastpaths"]


def test_doctor_without_a_model_says_nothing_of_fast_paths(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--json"])
    assert "fastpaths" not in {*json.loads(capsys.readouterr().out)}


def test_a_model_of_the_hub_is_never_fetched_to_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert 2 == main(["fastpaths", "list", "--model", "somebody/LongCat-mine"])
    assert "somebody/LongCat-mine is not in this machine's hub cache, and nothing is" in capsys.readouterr().err
