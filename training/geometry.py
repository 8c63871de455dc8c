"""The models that are trained: LongCat-Image's own classes, small. ``FULL`` is packaged, ``SMOKE`` a rehearsal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from training.tokens import PROMPT_TOKENS

HEADS = 2
HEAD_DIM = 128
LATENT_CHANNELS = 16
TRANSFORMER_CHANNELS = 4 * LATENT_CHANNELS


@dataclass(frozen=True)
class Geometry:
    """Sizes of everything. ``side`` is the picture's, in pixels."""

    name: str
    side: int
    joint_blocks: int
    single_blocks: int
    text_hidden: int
    text_layers: int
    vae_widths: tuple[int, int, int, int]

    @property
    def latent_side(self) -> int:
        """Of the VAE's latents."""
        return self.side // 8

    @property
    def image_tokens(self) -> int:
        """Of the transformer, after packing two by two."""
        return (self.latent_side // 2) ** 2


FULL = Geometry("full", 256, 2, 4, 128, 4, (32, 48, 64, 96))
SMOKE = Geometry("smoke", 64, 1, 2, 64, 2, (16, 16, 32, 32))
GEOMETRIES = {geometry.name: geometry for geometry in (FULL, SMOKE)}


def build_scheduler() -> Any:
    """Flow-matching Euler, shifted by the number of image tokens: mu 0.9 at 256 pixels.

    Flat pictures are redundant: their layout is decided at high noise, so the shift lies above FLUX's 0.5.
    """
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler(
        num_train_timesteps=1000,
        shift=3.0,
        use_dynamic_shifting=True,
        base_shift=0.9,
        max_shift=1.15,
        base_image_seq_len=256,
        max_image_seq_len=4096,
    )


def build_vae(geometry: Geometry) -> Any:
    """An AutoencoderKL of 16 channels at 1/8 of the pixels; its scale and shift are set when it is trained."""
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        in_channels=3,
        out_channels=3,
        latent_channels=LATENT_CHANNELS,
        block_out_channels=geometry.vae_widths,
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        use_quant_conv=False,
        use_post_quant_conv=False,
        scaling_factor=1.0,
        shift_factor=0.0,
        sample_size=geometry.side,
    )


def build_text_encoder(geometry: Geometry, tokenizer: Any) -> Any:
    """A small Qwen2.5-VL whose vision tower gives zeros: of a picture the transformer sees the latents alone."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    token = tokenizer.convert_tokens_to_ids
    hidden = geometry.text_hidden
    config = Qwen2_5_VLConfig(
        text_config={
            "hidden_size": hidden,
            "intermediate_size": 3 * hidden,
            "num_hidden_layers": geometry.text_layers,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "vocab_size": len(tokenizer),
            "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [hidden // 16, 3 * hidden // 32, 3 * hidden // 32],
            },
            "bos_token_id": token("<|endoftext|>"),
            "eos_token_id": token("<|im_end|>"),
            "pad_token_id": token("<|endoftext|>"),
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "out_hidden_size": hidden,
            "fullatt_block_indexes": [0],
        },
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        vision_token_id=token("<|vision_pad|>"),
        tie_word_embeddings=True,
    )
    model = Qwen2_5_VLForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.model.visual.merger.mlp[-1].parameters():
            parameter.zero_()
    return model


def build_transformer(geometry: Geometry) -> Any:
    """LongCat's transformer, initialised as DiT's: modulations and output start at zero, every block as identity."""
    from diffusers import LongCatImageTransformer2DModel

    model = LongCatImageTransformer2DModel(
        in_channels=TRANSFORMER_CHANNELS,
        num_layers=geometry.joint_blocks,
        num_single_layers=geometry.single_blocks,
        attention_head_dim=HEAD_DIM,
        num_attention_heads=HEADS,
        joint_attention_dim=geometry.text_hidden,
        pooled_projection_dim=geometry.text_hidden,
        axes_dims_rope=[16, 56, 56],
    )
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.xavier_uniform_(module.weight)
            torch.nn.init.zeros_(module.bias)
            if "norm" in name or name == "proj_out":
                torch.nn.init.zeros_(module.weight)
    return model


def pack(latents: torch.Tensor) -> torch.Tensor:
    """Latents [B, 16, h, w] to tokens [B, h/2 * w/2, 64], as the pipeline does."""
    count, channels, height, width = latents.shape
    split = latents.view(count, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 1, 3, 5)
    return split.reshape(count, (height // 2) * (width // 2), channels * 4)


def image_ids(
    geometry: Geometry, device: torch.device, modality: int = 1, text_tokens: int = PROMPT_TOKENS
) -> torch.Tensor:
    """The transformer's position ids [tokens, 3] of a picture behind the text, as ``prepare_pos_ids`` makes them."""
    side = torch.arange(geometry.latent_side // 2, device=device)
    rows, columns = torch.meshgrid(side, side, indexing="ij")
    ids = torch.stack([torch.full_like(rows, modality), rows + text_tokens, columns + text_tokens], dim=-1)
    return ids.reshape(-1, 3).float()


def parameter_count(model: torch.nn.Module) -> int:
    """Of everything that is stored."""
    return sum(parameter.numel() for parameter in model.parameters())
