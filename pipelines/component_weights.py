"""Which files hold a component's weights: the one answer, for the checks and for whoever loads. Torch-free.

What else lies beside them is nobody's business: a file that was left over, or that another program wants, is never
read. No tensor may come twice, because the libraries then take the last one without a word.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from fuseproof.errors import FuseproofError
from fuseproof.pipelines.folder_files import read_json_object, shown_path, some_of, unreadable
from fuseproof.pipelines.weight_files import WeightFile, read_weight_file

WEIGHTS_STEM = {"diffusers": "diffusion_pytorch_model", "transformers": "model"}
FLOATING_DTYPES = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0")
BATCHES_COUNTED = "num_batches_tracked"
"""The end of the one integer that a checkpoint may hold: how many batches a batch norm was trained on."""
ADAPTER_CONFIG = "adapter_config.json"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")


def weight_files(folder: Path, name: str, library: str) -> Iterator[WeightFile]:
    """The checked files that ``library`` (``diffusers`` or ``transformers``) reads the component's weights from.

    ``folder`` is the model folder, ``name`` the component's. A FuseproofError names the file at fault.
    """
    if library == "transformers" and (folder / name / ADAPTER_CONFIG).exists():
        raise FuseproofError(
            f"{name}/ in {folder} holds {ADAPTER_CONFIG}, by which transformers loads an adapter over the weights "
            "where peft is installed.",
            next_step="Merge the adapter into the weights, or remove the file.",
        )
    stem = WEIGHTS_STEM[library]
    single = folder / name / f"{stem}.safetensors"
    index = folder / name / f"{stem}.safetensors.index.json"
    # Where both exist, diffusers reads the shards and transformers the single file.
    is_sharded = index.is_file() and not (library == "transformers" and single.is_file())
    if is_sharded:
        yield from _shards(folder, index)
    elif single.is_file():
        file = read_weight_file(single, shown_path(single, folder))
        _refuse_non_floating(file, folder)
        yield file
    else:
        raise _no_weights(folder, name, single.name)


def _shards(folder: Path, index_path: Path) -> Iterator[WeightFile]:
    shown_index = shown_path(index_path, folder)
    weight_map = read_json_object(index_path, folder).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise unreadable(f"{shown_index} has no 'weight_map', so its shards are unknown.")
    tensors_of: dict[str, set[str]] = {}
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise unreadable(f"{shown_index} maps {tensor!r} to {json.dumps(shard)}; a file beside it was expected.")
        tensors_of.setdefault(shard, set()).add(tensor)
    missing = [shard for shard in sorted(tensors_of) if not (index_path.parent / shard).is_file()]
    if missing:
        raise FuseproofError(
            f"{shown_index} names {len(tensors_of)} shards, and {some_of(missing)} is missing."
            if len(missing) == 1
            else f"{shown_index} names {len(tensors_of)} shards, and {len(missing)} are missing: {some_of(missing)}.",
            next_step="Download the model again, or copy the missing files into its folder.",
        )
    holder: dict[str, str] = {}
    for shard in sorted(tensors_of):
        file = read_weight_file(index_path.parent / shard, shown_path(index_path.parent / shard, folder))
        absent = sorted(tensors_of[shard] - set(file.tensors))
        if absent:
            raise unreadable(f"{shown_path(file.path, folder)} lacks what {shown_index} promises: {some_of(absent)}.")
        for tensor in file.tensors:
            if tensor in holder:
                raise unreadable(
                    f"Two shards of {shown_index} in {folder} hold tensor {tensor!r}: {holder[tensor]} and {shard}."
                )
            holder[tensor] = shard
        _refuse_non_floating(file, folder)
        yield file


def _refuse_non_floating(file: WeightFile, folder: Path) -> None:
    """The libraries would cast integers and complex numbers to the run's dtype, and lose what they stand for."""
    for tensor, entry in file.tensors.items():
        if entry.dtype not in FLOATING_DTYPES and not tensor.endswith(BATCHES_COUNTED):
            raise FuseproofError(
                f"{shown_path(file.path, folder)} in {folder} holds tensor {tensor!r} as {entry.dtype}; "
                f"one of {', '.join(FLOATING_DTYPES)} was expected.",
                next_step="Use a checkpoint with floating-point weights; quantised ones do not run in this release.",
            )


def _no_weights(folder: Path, name: str, expected: str) -> FuseproofError:
    found = sorted(path.name for path in (folder / name).iterdir() if path.is_file() and path.suffix != ".json")
    if any(file.endswith(PICKLE_SUFFIXES) for file in found):
        return FuseproofError(
            f"{name}/ in {folder} holds only pickled weights ({some_of(found)}), which can run any code when loaded; "
            f"{expected} was expected.",
            next_step="Use a revision with safetensors weights, or convert them.",
        )
    beside = f"; the folder holds {some_of(found)}" if found else ""
    return unreadable(f"{name}/{expected} is missing in {folder}{beside}.")
