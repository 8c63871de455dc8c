"""A captured call comes back with its values, strides, offsets and overlaps; a broken file is one sentence."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from fuseproof.errors import FuseproofError
from fuseproof.fastpaths.captures import METADATA_KEY, captured, is_capture, read_capture, thin, to_bytes

CPU = torch.device("cpu")


def packed_call() -> tuple[tuple[Any, ...], dict[str, torch.Tensor]]:
    """Query and key as columns of one buffer, an expanded gate, a number, and outputs over the inputs."""
    buffer = torch.arange(2 * 3 * 24, dtype=torch.float32).to(torch.bfloat16).view(2, 3, 24)
    query, key = buffer[..., :8], buffer[..., 8:16]
    gate = torch.arange(4, dtype=torch.float32).view(2, 1, 2).expand(2, 5, 2)
    return (query, key, gate, 1e-6, None, True), {"out_query": query, "out_key": key}


def kept(tmp_path: Path, call: Any) -> Path:
    path = tmp_path / "call.safetensors"
    path.write_bytes(to_bytes(call))
    return path


def test_a_call_comes_back_as_it_was(tmp_path):
    arguments, outputs = packed_call()
    call = captured("site", "op", arguments, outputs, {"weight": torch.ones(3)}, {"step": 2})
    read = read_capture(kept(tmp_path, call))
    again, outputs_again = read.layout.make(CPU, read.filler())
    for before, after in zip(arguments[:3], again[:3], strict=True):
        assert (before.shape, before.stride(), before.dtype) == (after.shape, after.stride(), after.dtype)
        assert torch.equal(before, after)
    assert arguments[3:] == again[3:]
    outputs_again["out_key"].fill_(7)
    assert torch.equal(torch.full_like(again[1], 7), again[1]), "an output that lay over an input still does"
    assert torch.equal(torch.ones(3), read.parameters["weight"])
    assert ("site", "op", {"step": 2}) == (read.site, read.layout.operation, read.source)


def test_what_lay_between_the_tensors_comes_back_as_nan(tmp_path):
    arguments, outputs = packed_call()
    read = read_capture(kept(tmp_path, captured("site", "op", arguments, outputs, {}, {})))
    (query, *_), _ = read.layout.make(CPU, read.filler())
    whole = query.as_strided((2, 3, 24), (72, 24, 1), 0)
    assert bool(whole[..., 16:].isnan().all())
    assert not bool(whole[..., :16].isnan().any())


def test_values_are_those_before_the_call_overwrites_them(tmp_path):
    arguments, outputs = packed_call()
    expected = arguments[0].clone()
    call = captured("site", "op", arguments, outputs, {}, {})
    arguments[0].zero_()
    (query, *_), _ = read_capture(kept(tmp_path, call)).layout.make(CPU, call.filler())
    assert torch.equal(expected, query)


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), ()], ids=str)
def test_empty_and_scalar_tensors(tmp_path, shape):
    tensor = torch.full(shape, 3.5)
    read = read_capture(kept(tmp_path, captured("site", "op", (tensor,), {}, {}, {})))
    (again,), _ = read.layout.make(CPU, read.filler())
    assert torch.equal(tensor, again)


def test_an_expanded_tensor_is_kept_once():
    assert (2, 1, 2) == thin(torch.zeros(2, 1, 2).expand(2, 5, 2)).shape


def changed(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def apply(content: bytes) -> bytes:
        length = int.from_bytes(content[:8], "little")
        document = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][METADATA_KEY])
        change(document)
        return bytes(save(load(content), {METADATA_KEY: json.dumps(document)}))

    return apply


@pytest.mark.parametrize(
    ("words", "damage"),
    [
        pytest.param("holds no captured call", lambda content: b"", id="empty"),
        pytest.param("holds no captured call", lambda content: content[: len(content) // 2], id="cut"),
        pytest.param("holds no captured call", lambda content: b"x" * 200, id="another file"),
        pytest.param("it has no 'fuseproof'", lambda content: bytes(save(load(content))), id="no metadata"),
        pytest.param("its schema is", changed(lambda d: d.update(schema="other/1")), id="another schema"),
        pytest.param("does not lie inside", changed(lambda d: d["arguments"][0].update(offset=10**6)), id="outside"),
        pytest.param("does not lie inside", changed(lambda d: d["arguments"][0].update(offset=-8)), id="before"),
        pytest.param("does not lie inside", changed(lambda d: d["arguments"][0].update(memory=9)), id="no such memory"),
        pytest.param("are not those of a call", changed(lambda d: d.update(memory_bytes=[1 << 60, 8])), id="too large"),
        pytest.param("are not those of a call", changed(lambda d: d.update(memory_bytes=[1 << 37, 8])), id="too wide"),
        pytest.param("a whole number", changed(lambda d: d.update(memory_bytes=[float("inf")])), id="infinite memory"),
        pytest.param("a whole number", changed(lambda d: d.update(memory_bytes=["96", 8])), id="memory as text"),
        pytest.param("a whole number", changed(lambda d: d["arguments"][0].update(offset=0.5)), id="half an element"),
        pytest.param("a whole number", changed(lambda d: d["arguments"][0].update(memory=True)), id="memory is true"),
        pytest.param(
            "a whole number", changed(lambda d: d["arguments"][0].update(shape=[0], strides=[10**30])), id="huge stride"
        ),
        pytest.param("is a dict", changed(lambda d: d["arguments"][3].update(value={})), id="a mapping as argument"),
        pytest.param("no name", changed(lambda d: d.update(keywords={"<b>": {"value": 1}})), id="markup as keyword"),
        pytest.param("it has no 'weird'", changed(lambda d: d["arguments"][0].update(dtype="weird")), id="no dtype"),
        pytest.param("holds no captured call", changed(lambda d: d.update(arguments=3)), id="no arguments"),
        pytest.param("it has no 'place.99'", changed(lambda d: d["arguments"][0].update(place=99)), id="no values"),
    ],
)
def test_a_damaged_file_is_one_sentence(tmp_path, words, damage):
    arguments, outputs = packed_call()
    path = tmp_path / "call.safetensors"
    path.write_bytes(damage(to_bytes(captured("site", "op", arguments, outputs, {}, {}))))
    with pytest.raises(FuseproofError, match=words) as raised:
        read_capture(path)
    assert "\n" not in raised.value.message


def a_folder(path: Path) -> None:
    path.mkdir()


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(("words", "make"), [("it is a folder", a_folder), ("it is a named pipe", a_pipe)])
def test_what_is_no_regular_file_is_one_sentence_at_once(tmp_path, words, make):
    path = tmp_path / "call.safetensors"
    make(path)
    with pytest.raises(FuseproofError, match=f"cannot be read: {words}"):
        read_capture(path)
    assert not is_capture(path)


def test_only_a_captured_call_of_ours_is_one(tmp_path):
    arguments, outputs = packed_call()
    path = kept(tmp_path, captured("site", "op", arguments, outputs, {}, {}))
    assert is_capture(path)
    path.write_bytes(save({"weight": torch.ones(3)}))
    assert not is_capture(path), "somebody's model"
    path.write_text("text", encoding="utf-8")
    assert not is_capture(path)


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(FuseproofError, match=r"missing\.safetensors"):
        read_capture(tmp_path / "missing.safetensors")
