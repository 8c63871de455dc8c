"""What a certificate holds, when it holds, and what a mount makes of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from fuseproof.errors import FuseproofError
from fuseproof.fastpaths import certificates, mount
from fuseproof.fastpaths.certificates import (
    Certificate,
    Place,
    default_path,
    kernel_hash,
    merged,
    place_here,
    read_certificate,
    reject_reason,
    source_hashes,
    to_json,
)
from tests.fastpaths.small_model import forwards, small_pipe

H200 = Place(
    {"torch": "2.11.0", "triton": "3.6.0", "diffusers": "0.42.1", "cuda": "13.0", "cudnn": "91002"},
    {"name": "NVIDIA H200", "capability": "9.0"},
)
KERNEL = "kernels/attention_mlp_gelu.py"


def certificate(**changes):
    values = {
        "place": H200,
        "sources": changes.get("sources") or {KERNEL: kernel_hash(KERNEL)},
        "keys": {"gelu_tanh": ("('gelu_tanh', 1)", "('gelu_tanh', 2)")},
        "launch_options": {"gelu_tanh": [{"num_warps": 4, "enable_fp_fusion": False}]},
        "cases": ({"site": "gelu_tanh", "values": "ties", "state": "equal"},),
        "models": ("longcat-image",),
        "seed": 7,
        "created": "2026-11-30",
    }
    return Certificate(**values | changes)


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "certificate.json"
    path.write_text(to_json(certificate()), encoding="utf-8")
    assert certificate() == read_certificate(path)
    assert to_json(certificate()) == to_json(read_certificate(path))


def test_the_file_says_what_it_rests_on():
    document = json.loads(to_json(certificate()))
    assert ("2.11.0", "3.6.0", "0.42.1", "13.0") == tuple(
        document["place"]["versions"][name] for name in ("torch", "triton", "diffusers", "cuda")
    )
    assert {"name": "NVIDIA H200", "capability": "9.0"} == document["place"]["card"]
    assert [{"num_warps": 4, "enable_fp_fusion": False}] == document["launch_options"]["gelu_tanh"]
    assert 64 == len(document["sources"][KERNEL])


def test_it_holds_where_it_was_made():
    assert reject_reason(certificate(), H200) is None


@pytest.mark.parametrize(
    ("words", "here"),
    [
        ("made with torch 2.11.0, and 2.12.0 is installed", {"versions": {**H200.versions, "torch": "2.12.0"}}),
        ("made with triton 3.6.0, and None is installed", {"versions": {**H200.versions, "triton": None}}),
        ("made with cudnn 91002, and 91100", {"versions": {**H200.versions, "cudnn": "91100"}}),
        (
            "made on NVIDIA H200 (9.0), and this is NVIDIA H100 (9.0)",
            {"card": {"name": "NVIDIA H100", "capability": "9.0"}},
        ),
        ("made on NVIDIA H200 (9.0), and this is NVIDIA H200 (10.0)", {"card": {**H200.card, "capability": "10.0"}}),
    ],
)
def test_another_place_is_named(words, here):
    assert words in (reject_reason(certificate(), dataclasses.replace(H200, **here)) or "")


@pytest.fixture
def room(tmp_path, monkeypatch):
    """A room of two kernel files, one of which imports the other, and a third."""
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    (kernels / "gelu.py").write_text("from fuseproof.fastpaths.kernels import rounding\n", encoding="utf-8")
    (kernels / "rounding.py").write_text("from fuseproof.fastpaths.kernels.bits import R\n", encoding="utf-8")
    (kernels / "bits.py").write_text("R = 1\n", encoding="utf-8")
    (kernels / "other.py").write_text("x = 1\n", encoding="utf-8")
    monkeypatch.setattr(certificates, "ROOM", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("reason", "changed"),
    [
        pytest.param("kernels/gelu.py has changed since", "gelu.py", id="the kernel"),
        pytest.param("kernels/gelu.py has changed since", "rounding.py", id="what it imports"),
        pytest.param("kernels/gelu.py has changed since", "bits.py", id="what that imports"),
        pytest.param(None, "other.py", id="another kernel"),
    ],
)
def test_a_changed_source_is_named(room, reason, changed):
    made = certificate(sources={"kernels/gelu.py": kernel_hash("kernels/gelu.py")})
    path = room / "kernels" / changed
    path.write_text(path.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    found = reject_reason(made, H200)
    assert reason is found if reason is None else str(found).startswith(reason)


def test_a_source_that_is_gone_or_outside_is_named(room):
    assert "kernels/gone.py is not here" == reject_reason(certificate(sources={"kernels/gone.py": "0" * 64}), H200)
    outside = certificate(sources={"../kernels/gelu.py": kernel_hash("kernels/gelu.py")})
    assert "../kernels/gelu.py is not here" == reject_reason(outside, H200)


def test_a_file_of_ones_own_counts_by_its_content(tmp_path):
    file = tmp_path / "my_kernels.py"
    file.write_text("SITES = 1\n", encoding="utf-8")
    made = certificate(sources=source_hashes(["own:my_kernels.py"], [file]))
    assert reject_reason(made, H200, [file]) is None
    assert "own:my_kernels.py is not here" == reject_reason(made, H200)
    file.write_text("SITES = 2\n", encoding="utf-8")
    assert "own:my_kernels.py has changed since" in (reject_reason(made, H200, [file]) or "")


def broken(change):
    document = json.loads(to_json(certificate()))
    change(document)
    return json.dumps(document)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        pytest.param("is no certificate", "", id="empty"),
        pytest.param("is no certificate", "{", id="cut"),
        pytest.param("its schema is not", "{}", id="another document"),
        pytest.param("its schema is not", "[]", id="no object"),
        pytest.param("holds NaN", to_json(certificate()).replace('"seed": 7', '"seed": NaN'), id="no JSON"),
        pytest.param("KeyError", broken(lambda d: d.pop("keys")), id="no keys"),
        pytest.param("where text was expected", broken(lambda d: d["keys"].update(gelu_tanh=[3])), id="key is no text"),
        pytest.param("is no certificate", broken(lambda d: d.update(keys=[])), id="keys are a list"),
        pytest.param("is no certificate", broken(lambda d: d.update(place=None)), id="no place"),
        pytest.param("is no certificate", "[" * 100_000, id="too deep"),
    ],
)
def test_a_file_that_is_none_is_one_sentence(tmp_path, words, text):
    path = tmp_path / "certificate.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FuseproofError, match=words) as raised:
        read_certificate(path)
    assert "\n" not in raised.value.message


def test_a_file_that_is_missing_is_one_sentence(tmp_path):
    with pytest.raises(FuseproofError, match="cannot be read: No such file"):
        read_certificate(tmp_path / "missing.json")


def test_two_certificates_of_one_place_vouch_for_both():
    later = certificate(
        keys={"gelu_tanh": ("('gelu_tanh', 3)",), "qk_norm_rope": ("('qk_norm_rope', 1)",)},
        cases=({"site": "gelu_tanh", "values": "random", "state": "equal"},),
        models=("longcat-image-edit",),
    )
    both = merged(certificate(), later)
    assert ("('gelu_tanh', 1)", "('gelu_tanh', 2)", "('gelu_tanh', 3)") == both.keys["gelu_tanh"]
    assert ("longcat-image", "longcat-image-edit") == both.models
    assert ["random"] == [case["values"] for case in both.cases]
    assert {"qk_norm_rope"} == set(merged(certificate(), later, failed=["gelu_tanh"]).keys)


def test_a_card_has_its_own_file():
    assert Path("/cache/certificates/nvidia-h200.json") == default_path(Path("/cache"), H200)


def test_this_machine_has_a_place():
    here = place_here(torch.device("cpu"))
    assert torch.__version__ == here.versions["torch"]
    assert {"name": "cpu", "capability": ""} == here.card


def test_certified_keys_run_without_a_first_sight():
    pipe = small_pipe()
    eager = forwards(pipe)
    with mount(pipe) as first:
        forwards(pipe)
        keys = {name: gate.verified_key_texts() for name, gate in first.gates.items()}
    with mount(pipe, certified=keys) as second:
        assert torch.equal(eager.view(torch.int32), forwards(pipe).view(torch.int32))
        sites = second.report()["sites"]
        assert (0, 0.0) == second.first_sights()
    assert "certified" == sites["packed_blocks"]["state"]
    assert sites["packed_blocks"]["calls_fused"] == 9


def test_keys_of_another_shape_are_still_sighted():
    pipe = small_pipe()
    foreign = {"packed_blocks": frozenset({"(0, 'another shape')"})}
    with mount(pipe, certified=foreign) as mounted:
        forwards(pipe)
        assert mounted.first_sights()[0] > 0
        assert "fused" == mounted.report()["sites"]["packed_blocks"]["state"]
