"""What a certificate holds, when it holds, and what a mount makes of it."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
from pathlib import Path

import pytest
import torch

from fuseproof.errors import FuseproofError
from fuseproof.fastpaths import certificate_sources, load_user_sites, mount
from fuseproof.fastpaths.certificate_sources import WHOLE_ROOM, Sources, kernel_hash
from fuseproof.fastpaths.certificates import (
    Certificate,
    Place,
    default_path,
    is_certificate,
    merged,
    place_here,
    read_certificate,
    reject_reason,
    to_json,
)
from fuseproof.fastpaths.families import FAMILIES
from tests.fastpaths.small_model import forwards, small_pipe

H200 = Place(
    {"torch": "2.11.0", "triton": "3.6.0", "diffusers": "0.42.1", "cuda": "13.0", "cudnn": "91002"},
    {"name": "NVIDIA H200", "capability": "9.0"},
)
KERNEL = "kernels/attention_mlp_gelu.py"


def certificate(**changes):
    values = {
        "place": H200,
        "sources": Sources().of_site("gelu_tanh"),
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
    monkeypatch.setattr(certificate_sources, "ROOM", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("is_another", "changed"),
    [
        pytest.param(True, "gelu.py", id="the kernel"),
        pytest.param(True, "rounding.py", id="what it imports"),
        pytest.param(True, "bits.py", id="what that imports"),
        pytest.param(False, "other.py", id="another kernel"),
    ],
)
def test_a_kernels_hash_covers_what_it_imports(room, is_another, changed):
    before = kernel_hash("kernels/gelu.py")
    path = room / "kernels" / changed
    path.write_text(path.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    assert is_another is (before != kernel_hash("kernels/gelu.py"))


def without(name, sources):
    return {other: sha256 for other, sha256 in sources.items() if other != name}


@pytest.mark.parametrize(
    ("words", "sources"),
    [
        pytest.param(f"{KERNEL} has changed since", lambda s: {**s, KERNEL: "0" * 64}, id="changed"),
        pytest.param(
            f"it has no SHA-256 of {KERNEL}, which decides", lambda s: without(KERNEL, s), id="one is missing"
        ),
        pytest.param("it has no SHA-256 of", lambda s: {}, id="nothing at all"),
        pytest.param(
            "it has no SHA-256 of", lambda s: {f"../kernels/{n}": h for n, h in s.items()}, id="under other names"
        ),
    ],
)
def test_every_certified_site_must_rest_on_its_sources(words, sources):
    made = certificate(sources=sources(Sources().of_site("gelu_tanh")))
    assert words in (reject_reason(made, H200) or "")


@pytest.mark.parametrize("module", FAMILIES.values())
def test_every_built_in_site_has_sources(module):
    family = importlib.import_module(module)
    found = {site: Sources().of_site(site) for site in family.SITES}
    assert [] == [site for site, sources in found.items() if not sources]
    kernel_less = [site for site in family.SITES if site not in family.KERNELS_OF_SITE]
    assert all(WHOLE_ROOM in found[site] or site == "guidance_step" for site in kernel_less)


def test_names_in_a_certificate_are_never_opened(monkeypatch):
    opened = []
    monkeypatch.setattr(Path, "read_bytes", lambda path: opened.append(path) or b"")
    monkeypatch.setattr(certificate_sources, "_with_imports", lambda name, _: frozenset({name}))
    reject_reason(certificate(sources={"/etc/passwd": "0" * 64, "own:x": "0" * 64}), H200)
    assert all(path.is_relative_to(certificate_sources.ROOM) for path in opened)


SITE = """
import sys
sys.path.insert(0, {folder!r})
import {helper}
from fuseproof.fastpaths import UserSite
SITES = [UserSite("mine", fused={helper}.fused, modules="norm_out")]
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A file of one's own that imports a helper beside it, loaded."""
    helper = f"helper_of_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{helper}.py").write_text("def fused(module, *args): ...\n", encoding="utf-8")
    file = tmp_path / "my_kernels.py"
    file.write_text(SITE.format(folder=str(tmp_path), helper=helper), encoding="utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    load_user_sites(file)
    yield file, tmp_path / f"{helper}.py"
    sys.modules.pop(helper)


def own_certificate(file, **changes):
    return certificate(sources=Sources([file]).of_site("mine"), keys={"mine": ("'key'",)}, **changes)


def test_a_site_of_ones_own_rests_on_its_file_and_on_what_that_imports(own):
    file, helper = own
    made = own_certificate(file)
    assert {"own:my_kernels.py", f"own:{helper.stem}", WHOLE_ROOM} <= set(made.sources)
    assert reject_reason(made, H200, [file]) is None
    assert "mine is no built-in site" in (reject_reason(made, H200) or "")


@pytest.mark.parametrize("which", [0, 1], ids=["the file", "what it imports"])
def test_a_changed_file_of_ones_own_is_named(own, which):
    made = own_certificate(own[0])
    own[which].write_text(own[which].read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    name = "own:my_kernels.py" if which == 0 else f"own:{own[1].stem}"
    assert f"{name} has changed since" in (reject_reason(made, H200, [own[0]]) or "")


def test_a_module_that_was_loaded_then_and_is_not_now_is_named(own):
    made = own_certificate(own[0])
    later = dataclasses.replace(made, sources={**made.sources, "own:imported_later": "0" * 64})
    assert "own:imported_later was loaded when mine was verified" in (reject_reason(later, H200, [own[0]]) or "")


@pytest.mark.parametrize("name", ["torch", "json", "pytest", "fuseproof.errors"])
def test_installed_modules_and_our_own_are_not_the_users(name):
    importlib.import_module(name)
    assert name not in dict(certificate_sources.loaded_user_modules())


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
        pytest.param("keys: Field required", broken(lambda d: d.pop("keys")), id="no keys"),
        pytest.param(
            "keys.gelu_tanh.0: Input should be a valid string",
            broken(lambda d: d["keys"].update(gelu_tanh=[3])),
            id="key is no text",
        ),
        pytest.param("is no certificate", broken(lambda d: d.update(keys=[])), id="keys are a list"),
        pytest.param("is no certificate", broken(lambda d: d.update(place=None)), id="no place"),
        pytest.param("versions: Field required", broken(lambda d: d["place"].pop("versions")), id="no versions"),
        pytest.param(
            "capability: Field required", broken(lambda d: d["place"]["card"].pop("capability")), id="no card"
        ),
        pytest.param("card.name", broken(lambda d: d["place"]["card"].update(name="")), id="a card without a name"),
        pytest.param("sources./etc/passwd", broken(lambda d: d["sources"].update({"/etc/passwd": "x"})), id="no hash"),
        pytest.param("seed", to_json(certificate()).replace('"seed": 7', '"seed": 1e400'), id="endless seed"),
        pytest.param("seed", broken(lambda d: d.update(seed=-1)), id="negative seed"),
        pytest.param("cases.0.site", broken(lambda d: d["cases"][0].update(site=["gelu_tanh"])), id="a site is a list"),
        pytest.param("created", broken(lambda d: d.update(created="\x1b[2J")), id="no date"),
        pytest.param("more: Extra inputs", broken(lambda d: d.update(more=1)), id="something more"),
        pytest.param("is no certificate", "[" * 100_000, id="too deep"),
    ],
)
def test_a_file_that_is_none_is_one_sentence(tmp_path, words, text):
    path = tmp_path / "certificate.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FuseproofError, match=words) as raised:
        read_certificate(path)
    assert "\n" not in raised.value.message


def test_versions_must_all_be_there():
    few = dataclasses.replace(H200, versions={"torch": "2.11.0"})
    assert "it does not say which triton" in (reject_reason(certificate(place=few), H200) or "")
    none = dataclasses.replace(H200, versions={})
    assert "it does not say which torch" in (reject_reason(certificate(place=none), H200) or "")


def a_folder(path):
    path.mkdir()


def a_pipe(path):
    os.mkfifo(path)


@pytest.mark.parametrize(("words", "make"), [("it is a folder", a_folder), ("it is a named pipe", a_pipe)])
def test_what_is_no_regular_file_is_one_sentence_at_once(tmp_path, words, make):
    path = tmp_path / "certificate.json"
    make(path)
    with pytest.raises(FuseproofError, match=f"cannot be read: {words}"):
        read_certificate(path)
    assert not is_certificate(path)


def test_a_name_that_is_too_long_is_one_sentence(tmp_path):
    with pytest.raises(FuseproofError, match="cannot be read: File name too long"):
        read_certificate(tmp_path / ("x" * 5000))


@pytest.mark.parametrize(
    ("is_one", "text"),
    [
        (True, to_json(certificate())),
        (True, '{"schema": "fuseproof.fastpath-certificate/0"}'),
        (False, "{}"),
        (False, ""),
    ],
)
def test_only_a_certificate_is_replaced_by_one(tmp_path, is_one, text):
    path = tmp_path / "certificate.json"
    path.write_text(text, encoding="utf-8")
    assert is_one is is_certificate(path)


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
