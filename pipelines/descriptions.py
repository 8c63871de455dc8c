"""Families and checkpoints as plain JSON objects, for ``fuseproof models``. Torch-free."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fuseproof.pipelines.checkpoints import Checkpoint
from fuseproof.pipelines.clip_lengths import lengths_rule
from fuseproof.pipelines.dummy_geometry import BYTES_OF_DTYPE, GEOMETRIES, DummyGeometry
from fuseproof.pipelines.family import Family

WAN_GEOMETRY = {
    "blocks": "num_layers",
    "attention_heads": "num_attention_heads",
    "head_dim": "attention_head_dim",
    "ffn_hidden_size": "ffn_dim",
    "text_hidden_size": "text_dim",
}
TRANSFORMER_GEOMETRY = {
    "LongCatImageTransformer2DModel": {
        "joint_blocks": "num_layers",
        "single_blocks": "num_single_layers",
        "attention_heads": "num_attention_heads",
        "head_dim": "attention_head_dim",
        "text_hidden_size": "joint_attention_dim",
    },
    "ErnieImageTransformer2DModel": {
        "blocks": "num_layers",
        "attention_heads": "num_attention_heads",
        "hidden_size": "hidden_size",
        "ffn_hidden_size": "ffn_hidden_size",
        "text_hidden_size": "text_in_dim",
    },
    "WanTransformer3DModel": WAN_GEOMETRY,
    "LongLive2Transformer3DModel": WAN_GEOMETRY,
}
"""By transformer class: our words for the geometry, and the keys of its config that say it."""


def describe_family(family: Family) -> dict[str, Any]:
    """What holds for every checkpoint of the family; sizes in pixels.

    A family that takes an image has no default width and height: ``canvas_rule`` says how the image gives them.
    """
    return {
        "name": family.name,
        "title": family.title,
        "pipeline_class": family.pipeline_class,
        "model_ids": list(family.model_ids),
        "takes_image": family.takes_image,
        "accepts_image": family.accepts_image,
        "makes_video": family.makes_video,
        "published_transformer_parameters": rounded_parameters(family.parameters),
        "geometry": dict(family.geometry),
        "text_tokens": family.text_tokens,
        "defaults": {
            "width": None if family.takes_image else family.default_width,
            "height": None if family.takes_image else family.default_height,
            "canvas_pixels": family.canvas_pixels,
            "num_inference_steps": family.default_steps,
            "guidance_scale": family.default_guidance_scale,
            **_clip(family.default_frames, family),
        },
        "embedded_defaults": {
            "width": None if family.takes_image else family.embedded_width,
            "height": None if family.takes_image else family.embedded_height,
            "canvas_pixels": family.embedded_width * family.embedded_height if family.takes_image else None,
            "num_inference_steps": family.embedded_steps,
            "guidance_scale": family.guidance_scale(is_embedded=True),
            **_clip(family.embedded_frames, family),
        },
        "sizes": {
            "multiple_of": family.size_multiple,
            "minimum_side": family.minimum_side,
            "maximum_side": family.maximum_side,
            "maximum_pixels": family.maximum_pixels,
            "canvas_rule": canvas_rule(family),
            "frame_rule": frame_rule(family),
        },
        "components": {
            name: {
                "library": component.library,
                "class": component.classes[0],
                "required": component.required,
                "purpose": component.purpose,
            }
            for name, component in family.components.items()
        },
        "notes": list(family.notes),
    }


def _clip(frames: int | None, family: Family) -> dict[str, int | None]:
    return {"num_frames": frames, "fps": family.default_fps} if family.makes_video else {}


def frame_rule(family: Family) -> str | None:
    """How many frames a clip may have, as a sentence's end; None for a family that makes single images."""
    if not family.makes_video:
        return None
    return f"{lengths_rule(family)}, up to {family.maximum_frames}"


def rounded_parameters(count: int) -> str:
    """A published count, which is no exact one, in as many digits as it has: ``6.27 billion``."""
    return f"{count / 1e9:.2f} billion"


def canvas_rule(family: Family) -> str | None:
    """How the input image gives the size of the picture, as a sentence's end; None for a family without one."""
    if not family.takes_image:
        return None
    return f"the input image's aspect, each side rounded up to a multiple of {family.size_multiple}"


def describe_dummy(family: Family) -> dict[str, Any] | None:
    """What ``--load-format dummy`` makes for the family: sizes and parameters of each model; None where it cannot."""
    geometry = GEOMETRIES.get(family.name)
    if geometry is None:
        return None
    total = geometry.total_parameters
    return {
        "model_path": family.name,
        "parameters": total,
        "weight_bytes": {dtype: geometry.weight_bytes(dtype) for dtype in BYTES_OF_DTYPE},
        "components": {
            name: {"parameters": geometry.parameters[name], "geometry": sizes}
            for name, sizes in _dummy_sizes(geometry, family.components["transformer"].classes[0]).items()
        },
    }


def _dummy_sizes(geometry: DummyGeometry, transformer_class: str) -> dict[str, dict[str, Any]]:
    transformer = {name: geometry.transformer[key] for name, key in TRANSFORMER_GEOMETRY[transformer_class].items()}
    return {
        "transformer": transformer | {"rotary_axes": list(geometry.rotary_axes)},
        **(_wan_sizes(geometry) if geometry.architecture in ("wan", "longlive2") else _picture_sizes(geometry)),
    }


def _wan_sizes(geometry: DummyGeometry) -> dict[str, dict[str, Any]]:
    text, vae = geometry.text_model, geometry.vae
    return {
        "text_encoder": {
            "layers": text["num_layers"],
            "hidden_size": text["d_model"],
            "heads": text["num_heads"],
            "intermediate_size": text["d_ff"],
            "vocabulary": text["vocab_size"],
        },
        "vae": {
            "latent_channels": vae["z_dim"],
            "width": vae["base_dim"],
            "decoder_width": vae.get("decoder_base_dim", vae["base_dim"]),
        },
    }


def _picture_sizes(geometry: DummyGeometry) -> dict[str, dict[str, Any]]:
    text, vision, vae = geometry.text_model, geometry.vision_model, geometry.vae
    return {
        "text_encoder": {
            "layers": text["num_hidden_layers"],
            "hidden_size": text["hidden_size"],
            "heads": text["num_attention_heads"],
            "key_value_heads": text["num_key_value_heads"],
            "intermediate_size": text["intermediate_size"],
            "vocabulary": text["vocab_size"],
            "vision_layers": vision.get("depth", vision.get("num_hidden_layers")),
            "vision_hidden_size": vision["hidden_size"],
            "vision_heads": vision.get("num_heads", vision.get("num_attention_heads")),
        },
        "vae": {
            "latent_channels": vae["latent_channels"],
            "widths": list(vae["block_out_channels"]),
            "layers_per_block": vae["layers_per_block"],
        },
    }


def describe_checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    """What one checked folder holds: geometry from its configs, parameters and dtypes from its weight headers."""
    return {
        "folder": str(checkpoint.folder),
        "family": checkpoint.family.name,
        "weights_kind": checkpoint.weights,
        "weight_bytes": checkpoint.weight_bytes,
        "canvas_pixels": checkpoint.canvas_pixels,
        "geometry": _geometry(checkpoint),
        "components": {
            name: {"library": library, "class": class_name, **_weights(checkpoint, name)}
            for name, (library, class_name) in checkpoint.components.items()
        },
        "prompt_rewriting": None
        if checkpoint.family.makes_video
        else checkpoint.has_text_processor and checkpoint.family.rewrites_prompts,
        "prompt_enhancement": not checkpoint.absent_enhancer_parts if checkpoint.family.enhances_prompts else None,
    }


def _weights(checkpoint: Checkpoint, component: str) -> dict[str, Any]:
    files = checkpoint.weight_files.get(component)
    if files is None:
        return {}
    dtypes = Counter(entry.dtype for file in files for entry in file.tensors.values())
    return {
        "parameters": checkpoint.parameters(component),
        "tensors": sum(len(file.tensors) for file in files),
        "dtypes": sorted(dtypes),
        "files": [file.path.name for file in files],
        "bytes": sum(file.size_bytes for file in files),
    }


def _geometry(checkpoint: Checkpoint) -> dict[str, Any]:
    transformer, vae = checkpoint.config("transformer"), checkpoint.config("vae")
    keys = TRANSFORMER_GEOMETRY[checkpoint.components["transformer"][1]]
    geometry = {name: transformer.get(key) for name, key in keys.items()}
    heads, head_dim, width = (geometry.get(name) for name in ("attention_heads", "head_dim", "hidden_size"))
    if "hidden_size" not in keys:
        geometry["hidden_size"] = heads * head_dim if isinstance(heads, int) and isinstance(head_dim, int) else None
    else:
        geometry["head_dim"] = width // heads if isinstance(heads, int) and heads and isinstance(width, int) else None
    geometry["latent_channels"] = vae.get("latent_channels", vae.get("z_dim"))
    stages = vae.get("block_out_channels")
    scale = 2 ** (len(stages) - 1) if isinstance(stages, list) and stages else None
    geometry["vae_scale"] = vae.get("scale_factor_spatial", scale)
    return geometry
