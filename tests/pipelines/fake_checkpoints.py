"""A LongCat-Image folder of a few kilobytes: right in every file that is checked before loading, useless after."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

MODEL_INDEX = {
    "_class_name": "LongCatImagePipeline",
    "_diffusers_version": "0.42.1",
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "Qwen2_5_VLForConditionalGeneration"],
    "text_processor": [None, None],
    "tokenizer": ["transformers", "Qwen2Tokenizer"],
    "transformer": ["diffusers", "LongCatImageTransformer2DModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}
CONFIGS: dict[str, dict[str, object]] = {
    "scheduler/scheduler_config.json": {"_class_name": "FlowMatchEulerDiscreteScheduler"},
    "text_encoder/config.json": {"architectures": ["Qwen2_5_VLForConditionalGeneration"]},
    "tokenizer/tokenizer_config.json": {"tokenizer_class": "Qwen2Tokenizer"},
    "tokenizer/tokenizer.json": {"version": "1.0"},
    "transformer/config.json": {
        "_class_name": "LongCatImageTransformer2DModel",
        "num_layers": 2,
        "num_single_layers": 4,
        "num_attention_heads": 2,
        "attention_head_dim": 128,
        "joint_attention_dim": 64,
    },
    "vae/config.json": {
        "_class_name": "AutoencoderKL",
        "latent_channels": 16,
        "block_out_channels": [8, 16, 16, 16],
        "scaling_factor": 0.3611,
        "shift_factor": 0.1159,
    },
}
WEIGHTS = {
    "text_encoder": "model.safetensors",
    "transformer": "diffusion_pytorch_model.safetensors",
    "vae": "diffusion_pytorch_model.safetensors",
}


def write_fake_checkpoint(folder: Path) -> Path:
    """Write the folder and return it."""
    write_json(folder / "model_index.json", MODEL_INDEX)
    for name, config in CONFIGS.items():
        write_json(folder / name, config)
    for component, file in WEIGHTS.items():
        save_file(
            {"a.weight": np.ones((3, 5), np.float32), "b.weight": np.ones(2, np.float16)}, folder / component / file
        )
    return folder


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def shard_transformer(folder: Path) -> None:
    """Replace the transformer's one weight file by two shards and their index."""
    single = folder / "transformer" / WEIGHTS["transformer"]
    single.unlink()
    shards = {
        f"diffusion_pytorch_model-0000{number}-of-00002.safetensors": name for number, name in ((1, "a"), (2, "b"))
    }
    for shard, name in shards.items():
        save_file({f"{name}.weight": np.ones((2, 2), np.float32)}, single.parent / shard)
    weight_map = {f"{name}.weight": shard for shard, name in shards.items()}
    write_json(single.parent / f"{single.name}.index.json", {"metadata": {"total_size": 32}, "weight_map": weight_map})
