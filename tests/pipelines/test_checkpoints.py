from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines.checkpoints import check_checkpoint
from tests.pipelines.fake_checkpoints import (
    CONFIGS,
    MODEL_INDEX,
    WEIGHTS,
    shard_transformer,
    write_fake_checkpoint,
    write_json,
)

TRANSFORMER = f"transformer/{WEIGHTS['transformer']}"
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12545123456\n"
HTML_PAGE = b"\n<!DOCTYPE html><html><head><title>404</title></head></html>"
SHARD_INDEX = f"{TRANSFORMER}.index.json"

Damage = Callable[[Path], None]


def index_with(**changes: object) -> Damage:
    return lambda folder: write_json(folder / "model_index.json", {**MODEL_INDEX, **changes})


def index_without(key: str) -> Damage:
    kept = {name: value for name, value in MODEL_INDEX.items() if name != key}
    return lambda folder: write_json(folder / "model_index.json", kept)


def file_with(name: str, contents: bytes) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(contents)

    return damage


def without_file(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def without_folder(name: str) -> Damage:
    return lambda folder: shutil.rmtree(folder / name)


def truncated(name: str, lost_bytes: int) -> Damage:
    def damage(folder: Path) -> None:
        contents = (folder / name).read_bytes()
        (folder / name).write_bytes(contents[:-lost_bytes])

    return damage


def with_trailing_bytes(folder: Path) -> None:
    with (folder / TRANSFORMER).open("ab") as file:
        file.write(b"\0" * 7)


def header_of(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def only_pickled_weights(folder: Path) -> None:
    (folder / TRANSFORMER).rename(folder / "transformer" / "diffusion_pytorch_model.bin")


def only_variant_weights(folder: Path) -> None:
    (folder / TRANSFORMER).rename(folder / "transformer" / "diffusion_pytorch_model.fp16.safetensors")


def only_a_transformer(folder: Path) -> None:
    transformer = folder.parent / "transformer"
    shutil.copytree(folder / "transformer", transformer)
    shutil.rmtree(folder)
    transformer.rename(folder)


def sharded(damage: Damage | None = None) -> Damage:
    def build(folder: Path) -> None:
        shard_transformer(folder)
        if damage is not None:
            damage(folder)

    return build


def shard(number: int) -> str:
    return f"transformer/diffusion_pytorch_model-0000{number}-of-00002.safetensors"


def config_with(name: str, **changes: object) -> Damage:
    return lambda folder: write_json(folder / name, {**CONFIGS[name], **changes})


def config_without(name: str, key: str) -> Damage:
    kept = {other: value for other, value in CONFIGS[name].items() if other != key}
    return lambda folder: write_json(folder / name, kept)


def pipe(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return damage


TENSOR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}

DAMAGED = {
    # model_index.json
    "no-model-index": (without_file("model_index.json"), ["has no model_index.json"]),
    "index-empty-file": (file_with("model_index.json", b""), ["model_index.json", "is empty"]),
    "index-empty-object": (file_with("model_index.json", b"{}"), ["model_index.json", "empty object {}"]),
    "index-bad-json": (file_with("model_index.json", b'{"_class_name": '), ["model_index.json", "line 1, column 17"]),
    "index-not-utf8": (file_with("model_index.json", b'{"a": "\xff"}'), ["model_index.json", "not UTF-8"]),
    "index-list": (file_with("model_index.json", b"[1, 2]"), ["model_index.json", "[1, 2]", "JSON object"]),
    "index-html": (file_with("model_index.json", HTML_PAGE), ["model_index.json", "HTML page"]),
    "index-lfs-pointer": (file_with("model_index.json", LFS_POINTER), ["model_index.json", "git-LFS pointer"]),
    "class-absent": (index_without("_class_name"), ["no key '_class_name'"]),
    "class-null": (index_with(_class_name=None), ["_class_name null"]),
    "class-number": (index_with(_class_name=3), ["_class_name 3"]),
    # components
    "component-unlisted": (
        index_without("transformer"),
        ["no entry for 'transformer'", "LongCatImageTransformer2DModel"],
    ),
    "component-null": (index_with(vae=[None, None]), ["[null, null] for 'vae'"]),
    "component-text": (index_with(vae="AutoencoderKL"), ["'vae': \"AutoencoderKL\""]),
    "component-other-class": (index_with(vae=["diffusers", "AutoencoderTiny"]), ["'vae'", "AutoencoderTiny"]),
    "component-other-library": (index_with(vae=["evil", "AutoencoderKL"]), ["'vae'", "evil"]),
    "component-surplus": (index_with(image_encoder=["transformers", "X"]), ["'image_encoder'", "does not have"]),
    "component-folder-absent": (without_folder("vae"), ["lists 'vae'", "no folder vae/"]),
    "text-processor-listed-but-absent": (
        index_with(text_processor=["transformers", "Qwen2VLProcessor"]),
        ["lists 'text_processor'", "no folder text_processor/"],
    ),
    "transformer-only": (only_a_transformer, ["single component (LongCatImageTransformer2DModel)", "not a pipeline"]),
    "config-absent": (without_file("transformer/config.json"), ["transformer/config.json is missing"]),
    "config-bad-json": (file_with("vae/config.json", b"{'a': 1}"), ["vae/config.json", "not valid JSON"]),
    "config-other-class": (
        config_with("transformer/config.json", _class_name="LongCatImageTransformer2DModelX"),
        ["transformer/config.json", "LongCatImageTransformer2DModelX"],
    ),
    "config-other-architecture": (
        config_with("text_encoder/config.json", architectures=["LlamaForCausalLM"]),
        ["text_encoder/config.json", "LlamaForCausalLM"],
    ),
    "config-architectures-number": (
        config_with("text_encoder/config.json", architectures=5),
        ["text_encoder/config.json", "architectures 5"],
    ),
    "config-nested": (file_with("vae/config.json", b'{"a":' * 100_000), ["vae/config.json", "nested too deeply"]),
    "config-giant-integer": (file_with("vae/config.json", b'{"a": %s}' % (b"9" * 5000)), ["vae/config.json", "usable"]),
    "config-pipe": (pipe("vae/config.json"), ["vae/config.json", "pipe"]),
    "tokenizer-pipe": (pipe("tokenizer/extra.json"), ["tokenizer/extra.json", "pipe"]),
    "scheduler-base-shift-text": (
        config_with("scheduler/scheduler_config.json", base_shift="x"),
        ["scheduler/scheduler_config.json", 'base_shift "x"', "a number"],
    ),
    "scheduler-max-shift-null": (config_with("scheduler/scheduler_config.json", max_shift=None), ["max_shift null"]),
    "scheduler-shift-zero": (config_with("scheduler/scheduler_config.json", shift=0), ["shift 0", "positive"]),
    "scheduler-shift-true": (config_with("scheduler/scheduler_config.json", shift=True), ["shift true"]),
    "scheduler-shift-nan": (config_with("scheduler/scheduler_config.json", shift=float("nan")), ["shift NaN"]),
    "scheduler-length-fraction": (
        config_with("scheduler/scheduler_config.json", base_image_seq_len=256.5),
        ["base_image_seq_len 256.5", "whole"],
    ),
    "scheduler-lengths-equal": (
        config_with("scheduler/scheduler_config.json", max_image_seq_len=256),
        ["base_image_seq_len and max_image_seq_len 256"],
    ),
    "vae-scaling-null": (
        config_with("vae/config.json", scaling_factor=None),
        ["vae/config.json", "scaling_factor null"],
    ),
    "vae-scaling-zero": (config_with("vae/config.json", scaling_factor=0.0), ["scaling_factor 0.0", "other than 0"]),
    "vae-shift-list": (config_with("vae/config.json", shift_factor=[1]), ["shift_factor [1]"]),
    "vae-shift-absent": (config_without("vae/config.json", "shift_factor"), ["lacks shift_factor"]),
    "scheduler-config-absent": (without_file("scheduler/scheduler_config.json"), ["scheduler/scheduler_config.json"]),
    "tokenizer-vocabulary-absent": (without_file("tokenizer/tokenizer.json"), ["tokenizer/tokenizer.json"]),
    "tokenizer-lfs-pointer": (
        file_with("tokenizer/tokenizer.json", LFS_POINTER),
        ["tokenizer.json", "git-LFS pointer"],
    ),
    # weight files
    "weights-absent": (without_file(TRANSFORMER), [f"{TRANSFORMER} is missing"]),
    "weights-pickled": (only_pickled_weights, ["only pickled weights", "diffusion_pytorch_model.bin"]),
    "weights-variant": (only_variant_weights, [f"{TRANSFORMER} is missing", "fp16"]),
    "weights-lfs-pointer": (
        file_with(TRANSFORMER, LFS_POINTER),
        [TRANSFORMER, f"git-LFS pointer of {len(LFS_POINTER)} bytes", "12,545,123,456"],
    ),
    "weights-html": (file_with(TRANSFORMER, HTML_PAGE), [TRANSFORMER, "an HTML page of 60 bytes"]),
    "weights-empty": (file_with(TRANSFORMER, b""), [TRANSFORMER, "empty (0 bytes)"]),
    "weights-5-bytes": (file_with(TRANSFORMER, b"12345"), [TRANSFORMER, "truncated: 5 bytes"]),
    "weights-truncated": (truncated(TRANSFORMER, 9), [TRANSFORMER, "truncated"]),
    "weights-trailing": (with_trailing_bytes, [TRANSFORMER, "7 trailing bytes"]),
    "weights-header-beyond-file": (
        file_with(TRANSFORMER, (5000).to_bytes(8, "little") + b"{}"),
        [TRANSFORMER, "header ends at byte 5,008", "10 bytes"],
    ),
    "weights-header-too-large": (
        file_with(TRANSFORMER, b"PK\3\4" + b"z" * 60),
        [TRANSFORMER, "not a safetensors file"],
    ),
    "weights-header-not-json": (file_with(TRANSFORMER, header_of(b"nonsense")), [TRANSFORMER, "not JSON"]),
    "weights-header-list": (file_with(TRANSFORMER, header_of([1])), [TRANSFORMER, "no JSON object"]),
    "weights-entry-broken": (
        file_with(TRANSFORMER, header_of({"a": {"dtype": "F32"}})),
        [TRANSFORMER, "tensor 'a' wrongly"],
    ),
    "weights-entry-too-short": (
        file_with(TRANSFORMER, header_of({"a": {**TENSOR, "shape": [3]}}, b"\0" * 8)),
        [TRANSFORMER, "tensor 'a' needs 12 bytes and has 8"],
    ),
    "weights-gap": (
        file_with(TRANSFORMER, header_of({"a": {**TENSOR, "data_offsets": [4, 12]}}, b"\0" * 12)),
        [TRANSFORMER, "tensor 'a' starts at byte 4, not 0"],
    ),
    "weights-offset-infinite": (
        file_with(TRANSFORMER, header_of(b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, Infinity]}}')),
        [TRANSFORMER, "tensor 'a' wrongly"],
    ),
    "weights-offset-float": (
        file_with(TRANSFORMER, header_of({"a": {**TENSOR, "data_offsets": [0, 8.5]}}, b"\0" * 8)),
        [TRANSFORMER, "tensor 'a' wrongly"],
    ),
    "weights-shape-of-giants": (
        file_with(TRANSFORMER, header_of({"a": {**TENSOR, "shape": [2**62] * 300}}, b"\0" * 8)),
        [TRANSFORMER, "tensor 'a' wrongly"],
    ),
    "weights-header-nested": (file_with(TRANSFORMER, header_of(b"[" * 100_000)), [TRANSFORMER, "nested too deeply"]),
    "weights-integer": (
        file_with(TRANSFORMER, header_of({"a": {**TENSOR, "dtype": "I32"}}, b"\0" * 8)),
        [TRANSFORMER, "tensor 'a' as I32", "BF16"],
    ),
    "weights-boolean": (
        file_with(TRANSFORMER, header_of({"a": {**TENSOR, "dtype": "BOOL", "shape": [8]}}, b"\0" * 8)),
        [TRANSFORMER, "tensor 'a' as BOOL"],
    ),
    "weights-complex": (
        file_with(TRANSFORMER, header_of({"a": {**TENSOR, "dtype": "C64", "shape": [1]}}, b"\0" * 8)),
        [TRANSFORMER, "tensor 'a' as C64"],
    ),
    "shard-integer": (
        sharded(file_with(shard(2), header_of({"b.weight": {**TENSOR, "dtype": "I32"}}, b"\0" * 8))),
        [shard(2), "tensor 'b.weight' as I32"],
    ),
    "shard-absent": (sharded(without_file(shard(2))), [SHARD_INDEX, "00002-of-00002.safetensors is missing"]),
    "shard-truncated": (sharded(truncated(shard(1), 3)), [shard(1), "truncated"]),
    "shard-without-its-tensor": (
        sharded(file_with(shard(2), header_of({"other": TENSOR}, b"\0" * 8))),
        [shard(2), "lacks what", "b.weight"],
    ),
    "shards-with-one-tensor-twice": (
        sharded(
            file_with(
                shard(2), header_of({"a.weight": TENSOR, "b.weight": {**TENSOR, "data_offsets": [8, 16]}}, b"\0" * 16)
            )
        ),
        [SHARD_INDEX, "'a.weight'", shard(1).split("/")[1], shard(2).split("/")[1]],
    ),
    "weights-named-twice": (
        file_with(
            TRANSFORMER,
            header_of(
                b'{"a": %s, "a": %s}' % ((b'{"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}',) * 2), b"\0" * 8
            ),
        ),
        [TRANSFORMER, "names 'a' twice"],
    ),
    "weights-under-an-adapter": (
        file_with("text_encoder/adapter_config.json", b'{"peft_type": "LORA"}'),
        ["text_encoder/", "adapter_config.json", "peft"],
    ),
    "shard-index-without-map": (sharded(file_with(SHARD_INDEX, b'{"metadata": {}}')), [SHARD_INDEX, "weight_map"]),
    "shard-outside-folder": (
        sharded(file_with(SHARD_INDEX, b'{"weight_map": {"a.weight": "../vae/diffusion_pytorch_model.safetensors"}}')),
        [SHARD_INDEX, "../vae/diffusion_pytorch_model.safetensors", "a file beside it"],
    ),
}


@pytest.mark.parametrize(("damage", "expected"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_folder_is_refused_with_file_and_cause(damage: Damage, expected: list[str], tmp_path: Path) -> None:
    folder = write_fake_checkpoint(tmp_path / "model")
    damage(folder)
    with pytest.raises(FuseproofError) as caught:
        check_checkpoint(folder)
    assert [fragment for fragment in expected if fragment not in caught.value.message] == []
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 1
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("class_name", "expected"),
    [("NoSuchPipeline", "unknown"), ("ZImagePipeline", "not supported yet"), ("FluxPipeline", "FLUX.1")],
)
def test_a_pipeline_that_does_not_run_here_is_a_usage_error(class_name: str, expected: str, tmp_path: Path) -> None:
    folder = write_fake_checkpoint(tmp_path)
    index_with(_class_name=class_name)(folder)
    with pytest.raises(UsageError, match=expected):
        check_checkpoint(folder)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        pytest.param(lambda path: None, "There is no model folder", id="absent"),
        pytest.param(lambda path: path.write_bytes(b"x"), "is a file", id="a-file"),
        pytest.param(lambda path: path.mkdir(), "has no model_index.json", id="an-empty-folder"),
    ],
)
def test_something_else_than_a_model_folder_is_refused(make: Damage, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "thing"
    make(path)
    with pytest.raises(FuseproofError, match=expected):
        check_checkpoint(path)


def test_a_whole_folder_is_described(tmp_path: Path) -> None:
    checkpoint = check_checkpoint(write_fake_checkpoint(tmp_path))
    assert checkpoint.family.name == "longcat-image"
    assert list(checkpoint.components) == ["scheduler", "text_encoder", "tokenizer", "transformer", "vae"]
    assert checkpoint.components["vae"] == ("diffusers", "AutoencoderKL")
    assert checkpoint.parameters("transformer") == 17
    assert checkpoint.weight_bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors"))
    assert checkpoint.config("scheduler") == CONFIGS["scheduler/scheduler_config.json"]
    assert not checkpoint.has_text_processor


def test_shards_are_read_in_place_of_a_single_file(tmp_path: Path) -> None:
    sharded()(write_fake_checkpoint(tmp_path))
    files = check_checkpoint(tmp_path).weight_files["transformer"]
    assert [path.path.name for path in files] == [shard(1).split("/")[1], shard(2).split("/")[1]]
    assert [sorted(file.tensors) for file in files] == [["a.weight"], ["b.weight"]]


@pytest.mark.parametrize("entry", [None, [None, None], ["transformers", "Qwen2VLProcessor"]])
def test_the_text_processor_slot_may_be_empty(entry: object, tmp_path: Path) -> None:
    folder = write_fake_checkpoint(tmp_path)
    (index_without("text_processor") if entry is None else index_with(text_processor=entry))(folder)
    (folder / "text_processor").mkdir()
    assert check_checkpoint(folder).has_text_processor is (entry not in (None, [None, None]))


@pytest.mark.parametrize("named", [5, [5], {"a": 1}, [], "X", ["X"]], ids=str)
def test_a_single_component_is_told_whatever_its_config_holds(tmp_path: Path, named: object) -> None:
    write_json(tmp_path / "config.json", {"architectures": named, "a": 1})
    with pytest.raises(FuseproofError, match="single component"):
        check_checkpoint(tmp_path)


def test_every_usual_float_dtype_passes(tmp_path: Path) -> None:
    folder = write_fake_checkpoint(tmp_path / "model")
    for dtype, length in (("F64", 1), ("F16", 4), ("BF16", 4), ("F8_E4M3", 8), ("F8_E5M2", 8)):
        header = {"a": {"dtype": dtype, "shape": [length], "data_offsets": [0, 8]}}
        (folder / TRANSFORMER).write_bytes(header_of(header, b"\0" * 8))
        assert length == check_checkpoint(folder).parameters("transformer")
