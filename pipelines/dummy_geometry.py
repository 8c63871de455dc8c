"""What ``--load-format dummy`` builds: the released geometry of each family, as plain tables. Torch-free.

Every number is a constructor argument of the class that carries it, so the models are the real ones, and their kernels
run the real shapes. Sources: Qwen2.5-VL-7B-Instruct's public config for the text encoder, FLUX.1's for the
``AutoencoderKL`` (LongCat's own factors are in its checkpoint only), LongCat-Image's released depth of 10 + 20 blocks
for the transformer (the class's defaults, 19 + 38, are another model); for ERNIE-Image its released 36 blocks of 4096
(the class's defaults, 24 of 3072, are another model), Ministral-3-3B's public config for the text encoder (26 layers of
3072) and the class's own defaults, which are FLUX.2's, for the ``AutoencoderKLFlux2``; for Wan the public configs of
its transformers and VAEs, and UMT5-XXL's for the text encoder. LongLive 2 has Wan 2.2 TI2V-5B's sizes throughout.
``parameters`` are counted on the meta device; a test counts them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from fuseproof.errors import UsageError
from fuseproof.pipelines.families import FAMILIES, family_of_model_id
from fuseproof.pipelines.family import Family
from fuseproof.pipelines.wan_latents import WAN22_VAE

RECIPE = 1
"""Version of the weight recipe (:mod:`fuseproof.pipelines.dummy_weights`): another one means other weights."""

WARNING = "dummy weights: seeded random, not a trained model; speed is real, pictures are not"
BYTES_OF_DTYPE: Mapping[str, int] = MappingProxyType({"bfloat16": 2, "float16": 2, "float32": 4})

Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class DummyGeometry:
    """Constructor arguments of each component.

    ``text_model`` and ``vision_model`` are the two halves of the text encoder's config, the second one empty where it
    sees no images; token ids are the tokenizer's.
    ``architecture`` says whose classes take the arguments.
    ``parameters`` counts each component; it may stay empty for a geometry that nobody asks to be described.
    ``float32_parameters`` counts those of them that stay in fp32 whatever the dtype.
    """

    transformer: Arguments
    text_model: Arguments
    vision_model: Arguments
    vae: Arguments
    parameters: Mapping[str, int] = field(default_factory=dict)
    float32_parameters: Mapping[str, int] = field(default_factory=dict)
    architecture: Literal["longcat", "ernie", "wan", "longlive2"] = "longcat"

    @property
    def rotary_axes(self) -> tuple[int, ...]:
        """Channels of a head that turn with each axis of a position."""
        if self.architecture in ("wan", "longlive2"):
            width = self.transformer["attention_head_dim"]
            plane = 2 * (width // 6)
            return width - 2 * plane, plane, plane
        axes: tuple[int, ...] = self.transformer["rope_axes_dim" if self.architecture == "ernie" else "axes_dims_rope"]
        return axes

    @property
    def total_parameters(self) -> int:
        """All components together."""
        return sum(self.parameters.values())

    def weight_bytes(self, dtype: str) -> int:
        """All components together in ``dtype``, but for what stays in fp32."""
        kept = sum(self.float32_parameters.values())
        return (self.total_parameters - kept) * BYTES_OF_DTYPE[dtype] + kept * BYTES_OF_DTYPE["float32"]


LONGCAT = DummyGeometry(
    transformer=MappingProxyType(
        {
            "in_channels": 64,
            "num_layers": 10,
            "num_single_layers": 20,
            "attention_head_dim": 128,
            "num_attention_heads": 24,
            "joint_attention_dim": 3584,
            "pooled_projection_dim": 3584,
            "axes_dims_rope": (16, 56, 56),
        }
    ),
    text_model=MappingProxyType(
        {
            "hidden_size": 3584,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "intermediate_size": 18944,
            "vocab_size": 152064,
            "max_position_embeddings": 128000,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
        }
    ),
    vision_model=MappingProxyType(
        {
            "depth": 32,
            "hidden_size": 1280,
            "num_heads": 16,
            "intermediate_size": 3420,
            "out_hidden_size": 3584,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "tokens_per_second": 2,
            "window_size": 112,
            "fullatt_block_indexes": (7, 15, 23, 31),
        }
    ),
    vae=MappingProxyType(
        {
            "latent_channels": 16,
            "block_out_channels": (128, 256, 512, 512),
            "layers_per_block": 2,
            "norm_num_groups": 32,
            "scaling_factor": 0.3611,
            "shift_factor": 0.1159,
            "sample_size": 1024,
        }
    ),
    parameters=MappingProxyType({"transformer": 6_270_668_864, "text_encoder": 8_292_166_656, "vae": 83_819_683}),
)

ERNIE = DummyGeometry(
    transformer=MappingProxyType(
        {
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_layers": 36,
            "ffn_hidden_size": 12288,
            "in_channels": 128,
            "out_channels": 128,
            "patch_size": 1,
            "text_in_dim": 3072,
            "rope_theta": 256,
            "rope_axes_dim": (32, 48, 48),
        }
    ),
    text_model=MappingProxyType(
        {
            "hidden_size": 3072,
            "num_hidden_layers": 26,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 9216,
            "vocab_size": 131072,
            "max_position_embeddings": 262144,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 16.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 16384,
                "llama_4_scaling_beta": 0.1,
            },
        }
    ),
    vision_model=MappingProxyType(
        {
            "num_hidden_layers": 24,
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "head_dim": 64,
            "intermediate_size": 4096,
            "image_size": 1540,
            "patch_size": 14,
        }
    ),
    vae=MappingProxyType(
        {
            "latent_channels": 32,
            "block_out_channels": (128, 256, 512, 512),
            "layers_per_block": 2,
            "norm_num_groups": 32,
            "sample_size": 1024,
        }
    ),
    parameters=MappingProxyType({"transformer": 8_033_490_048, "text_encoder": 3_849_090_048, "vae": 84_046_115}),
    architecture="ernie",
)

UMT5_XXL: Arguments = MappingProxyType(
    {
        "vocab_size": 256384,
        "d_model": 4096,
        "d_kv": 64,
        "d_ff": 10240,
        "num_layers": 24,
        "num_heads": 64,
    }
)

WAN22 = DummyGeometry(
    transformer=MappingProxyType(
        {
            "num_attention_heads": 24,
            "attention_head_dim": 128,
            "in_channels": 48,
            "out_channels": 48,
            "text_dim": 4096,
            "ffn_dim": 14336,
            "num_layers": 30,
        }
    ),
    text_model=UMT5_XXL,
    vision_model=MappingProxyType({}),
    vae=WAN22_VAE,
    parameters=MappingProxyType({"transformer": 4_999_787_712, "text_encoder": 5_680_910_336, "vae": 704_688_668}),
    float32_parameters=MappingProxyType({"transformer": 10_973_184, "vae": 704_688_668}),
    architecture="wan",
)

LONGLIVE2 = replace(WAN22, float32_parameters=MappingProxyType({"transformer": 10_973_184}), architecture="longlive2")

WAN21 = DummyGeometry(
    transformer=MappingProxyType(
        {
            "num_attention_heads": 12,
            "attention_head_dim": 128,
            "in_channels": 16,
            "out_channels": 16,
            "text_dim": 4096,
            "ffn_dim": 8960,
            "num_layers": 30,
        }
    ),
    text_model=UMT5_XXL,
    vision_model=MappingProxyType({}),
    vae=MappingProxyType({"base_dim": 96, "z_dim": 16}),
    parameters=MappingProxyType({"transformer": 1_418_996_800, "text_encoder": 5_680_910_336, "vae": 126_892_531}),
    float32_parameters=MappingProxyType({"transformer": 3_127_296, "vae": 126_892_531}),
    architecture="wan",
)

GEOMETRIES: Mapping[str, DummyGeometry] = MappingProxyType(
    {
        "longcat-image": LONGCAT,
        "longcat-image-edit": LONGCAT,
        "longcat-image-edit-turbo": LONGCAT,
        "ernie-image": ERNIE,
        "ernie-image-turbo": ERNIE,
        "wan2.2-ti2v-5b": WAN22,
        "wan2.1-t2v-1.3b": WAN21,
        "longlive2": LONGLIVE2,
    }
)
"""By family name. What differs between a model, its editing and its distilled variant are weights, not sizes."""


def family_of_dummy(model_path: str) -> Family:
    """The family that ``--load-format dummy`` takes ``model_path`` for: its name, or one of its published ids.

    A UsageError lists the names; a folder of that name is never looked at.
    """
    family = family_of_model_id(model_path)
    if family is not None and family.name in GEOMETRIES:
        return family
    names = [name for name in FAMILIES if name in GEOMETRIES]
    what = "a folder" if model_path and Path(model_path).expanduser().exists() else "no family"
    raise UsageError(
        f"--load-format dummy reads no files, and --model-path {model_path!r} is {what}; it must name one of "
        f"{', '.join(names)}.",
        next_step=f"Use --model-path {next(iter(get_close_matches(model_path.lower(), names, n=1)), names[0])}.",
    )


def geometry_of(family: Family) -> DummyGeometry:
    """The released geometry of ``family``; a UsageError where there is none."""
    geometry = GEOMETRIES.get(family.name)
    if geometry is None:
        raise UsageError(
            f"{family.title} has no dummy weights; {', '.join(GEOMETRIES)} have.",
            next_step="Use --load-format auto with a checkpoint.",
        )
    return geometry


def weights_identity(seed: int = 0) -> dict[str, Any]:
    """What a perf dump records as ``weights``: two runs whose entries differ did not run the same model."""
    return {"format": "dummy", "recipe": RECIPE, "seed": seed}
