"""LongLive 2's weights by the names that they are published with, in a folder of diffusers' layout.

Such a folder has diffusers' components and files, but the tensors of its transformer carry the names of Wan's own code,
behind ``model.``: the public code that runs it knows no others. They hold the same values in the same shapes as
``WanTransformer3DModel``'s, and load under those names; a folder that has diffusers' names already loads as diffusers
loads it. Only the files that a checkpoint's check approves are looked at, here as there. Nothing is computed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import safe_open

from fuseproof.errors import FuseproofError
from fuseproof.pipelines.component_weights import weight_files
from fuseproof.pipelines.weight_files import WeightFile

PUBLISHED_PREFIX = "model."
IN_BLOCK = re.compile(r"(blocks\.\d+\.)(.+)")
MODULES: Mapping[str, str] = MappingProxyType(
    {
        "text_embedding.0": "condition_embedder.text_embedder.linear_1",
        "text_embedding.2": "condition_embedder.text_embedder.linear_2",
        "time_embedding.0": "condition_embedder.time_embedder.linear_1",
        "time_embedding.2": "condition_embedder.time_embedder.linear_2",
        "time_projection.1": "condition_embedder.time_proj",
        "head.head": "proj_out",
        "head": "",
    }
)
MODULES_OF_A_BLOCK: Mapping[str, str] = MappingProxyType(
    {
        **{
            f"{theirs}.{part}": f"{ours}.{named}"
            for theirs, ours in (("self_attn", "attn1"), ("cross_attn", "attn2"))
            for part, named in (
                ("q", "to_q"),
                ("k", "to_k"),
                ("v", "to_v"),
                ("o", "to_out.0"),
                ("norm_q", "norm_q"),
                ("norm_k", "norm_k"),
            )
        },
        "norm3": "norm2",
        "ffn.0": "ffn.net.0.proj",
        "ffn.2": "ffn.net.2",
    }
)
"""By the name of the module that holds a parameter; whatever is not here has the same name in both."""
PARAMETERS: Mapping[str, str] = MappingProxyType({"modulation": "scale_shift_table"})


def diffusers_name(published: str) -> str:
    """What ``WanTransformer3DModel`` calls the published tensor, with or without its prefix; its own name otherwise."""
    name = published.removeprefix(PUBLISHED_PREFIX)
    found = IN_BLOCK.fullmatch(name)
    block, rest = found.groups() if found else ("", name)
    module, _, parameter = rest.rpartition(".")
    module = (MODULES_OF_A_BLOCK if block else MODULES).get(module, module)
    return block + ".".join(part for part in (module, PARAMETERS.get(parameter, parameter)) if part)


def has_published_names(folder: Path) -> bool:
    """Whether the weight files of the component ``folder`` carry the published names; read from headers alone.

    Raises :class:`FuseproofError` where they are not whole.
    """
    return any(name.startswith(PUBLISHED_PREFIX) for file in _files(folder) for name in file.tensors)


def load_published(model_class: Any, folder: Path, dtype: torch.dtype) -> tuple[Any, dict[str, list[Any]]]:
    """A model of ``model_class`` from published weights in ``dtype``, and what diffusers reports of a loading.

    ``_keep_in_fp32_modules`` stay in fp32, as after diffusers' own loading. Tensors that are missing or misshapen are
    in the report, and stay without memory in the model.
    """
    config = model_class.load_config(folder, local_files_only=True)
    with torch.device("meta"):
        model = model_class.from_config(config)
    rope = model.rope
    model.rope = type(rope)(rope.attention_head_dim, rope.patch_size, rope.max_seq_len)
    expected = {name: parameter.shape for name, parameter in model.named_parameters()}
    kept_in_fp32 = frozenset(model_class._keep_in_fp32_modules)
    tensors: dict[str, torch.Tensor] = {}
    mismatched, unexpected = [], []
    _refuse_names_of_one(folder)
    for published, tensor in _tensors(folder):
        name = diffusers_name(published)
        if name not in expected:
            unexpected.append(published)
        elif tensor.shape != expected[name]:
            mismatched.append((name, tensor.shape, expected[name]))
        else:
            is_kept = not kept_in_fp32.isdisjoint(name.split("."))
            tensors[name] = tensor.to(torch.float32 if is_kept else dtype)
    model.load_state_dict(tensors, strict=False, assign=True)
    missing = sorted(set(expected) - set(tensors))
    report = {"missing_keys": missing, "unexpected_keys": unexpected, "mismatched_keys": mismatched, "error_msgs": []}
    return model.eval(), report


def _files(folder: Path) -> Iterator[WeightFile]:
    return weight_files(folder.parent, folder.name, "diffusers")


def _refuse_names_of_one(folder: Path) -> None:
    seen: dict[str, str] = {}
    for published in (name for file in _files(folder) for name in file.tensors):
        name = diffusers_name(published)
        if name in seen:
            raise FuseproofError(
                f"The weights in {folder} hold {name} twice, as {seen[name]} and as {published}.",
                next_step="Download the model again; which of the two is meant cannot be told.",
            )
        seen[name] = published


def _tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the folder's weight files by its published name, one at a time."""
    for file in _files(folder):
        with safe_open(file.path, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - an opened file is no mapping
                yield name, opened.get_tensor(name)
