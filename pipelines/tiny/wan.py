"""Builds small Wan checkpoints: the real classes and folder layout, seeded random weights, offline.

What is real: the classes of pipeline, transformer, text encoder, tokenizer, VAE and scheduler, heads of 128 channels
with rotary axes over frames, rows and columns, prompts padded to 512 tokens with zeros behind, the latent channels of
both VAEs with the published statistics, their scales in space and time, the residual decoder of Wan 2.2, and flow
sigmas with the published shift. What is small: 2 heads, 2 blocks, a vocabulary of letters.

A random transformer hardly listens to its prompt and never leaves its noise. Here query and key norms are scaled up, so
that attention picks; modulation and text projection are scaled up; and the output projection contains the transposed
patch embedding, so that the velocity points along the latents. Convolutions of the VAE are a random mix of channels
times a smooth window, which makes clips smooth. tests/pipelines/test_embedded_wan.py holds what comes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from fuseproof.pipelines.checkpoint_marker import MARKER, RANDOM, Marker
from fuseproof.pipelines.libraries import silence_libraries
from fuseproof.pipelines.tiny.weights import Gain, add_transposed, fill_model
from fuseproof.pipelines.wan_latents import WAN22_VAE

HEADS = 2
HEAD_DIM = 128
BLOCKS = 2
FFN_DIM = 512
TEXT_HIDDEN_SIZE = 64
TEXT_HEADS = 2
VAE_WIDTH = 8
LONGEST_PROMPT = 512
LETTERS = (*map(chr, range(33, 127)), *map(chr, range(0xA1, 0x100)), *map(chr, range(0x370, 0x500)))
"""ASCII, Latin-1, Greek and Cyrillic; any other character is the unknown one."""

MODULATION_GAIN = 1.5
TEXT_PROJECTION_GAIN = 2.0
QUERY_KEY_NORM_GAIN = 2.0
NOISE_REMOVAL_GAIN = 4.0
PIXEL_GAIN = 0.3
SAME_IN_A_PATCH = 0.998

FLOW_SHIFT: Mapping[str, float] = MappingProxyType({"wan2.1-t2v-1.3b": 3.0, "wan2.2-ti2v-5b": 5.0})
"""By family, as published."""


def build_family(folder: Path, family: str) -> None:
    """Write the small checkpoint of ``family``, either Wan, into ``folder`` (created if needed)."""
    silence_libraries()
    from diffusers import WanPipeline

    is_22 = family == "wan2.2-ti2v-5b"
    # The constructors draw throw-away weights from torch's global generator; the caller's state must not notice.
    with torch.random.fork_rng(devices=[]):
        tokenizer = letter_tokenizer()
        vae = small_vae(is_22)
        pipeline = WanPipeline(
            tokenizer=tokenizer,
            text_encoder=small_text_encoder(tokenizer),
            vae=vae,
            scheduler=flow_scheduler(FLOW_SHIFT[family]),
            transformer=small_transformer(vae.config.z_dim),
            expand_timesteps=is_22,
        )
    pipeline.save_pretrained(folder)
    (folder / MARKER).write_text(Marker(family, weights=RANDOM).to_json(), encoding="utf-8")


def flow_scheduler(shift: float) -> Any:
    """UniPC with flow sigmas, as Wan is published with."""
    from diffusers import UniPCMultistepScheduler

    return UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=shift)


def letter_tokenizer() -> Any:
    """T5's own tokenizer over single letters: a space before each word, ``</s>`` behind the last, 512 at most."""
    from transformers import T5Tokenizer

    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -1.0)]
    letters = [(letter, -2.0) for letter in LETTERS]
    return T5Tokenizer(vocab=special + letters, extra_ids=0, model_max_length=LONGEST_PROMPT)


def small_text_encoder(tokenizer: Any) -> Any:
    """UMT5 of two layers and 64 channels."""
    from transformers import UMT5Config, UMT5EncoderModel

    config = UMT5Config(
        vocab_size=len(tokenizer),
        d_model=TEXT_HIDDEN_SIZE,
        d_kv=TEXT_HIDDEN_SIZE // TEXT_HEADS,
        d_ff=2 * TEXT_HIDDEN_SIZE,
        num_layers=2,
        num_heads=TEXT_HEADS,
        feed_forward_proj="gated-gelu",
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = UMT5EncoderModel(config).eval()
    fill_model(model, "text_encoder", text_gain(config.d_kv))
    return model


def text_gain(head_dim: int) -> Gain:
    """T5 divides no product of queries and keys by its width, so that its queries must be small."""
    return lambda name: head_dim**-0.5 if name.endswith(".q.weight") else 1.0


def small_transformer(channels: int) -> Any:
    """Two blocks with the released heads and rotary axes over ``channels`` latent ones."""
    from diffusers import WanTransformer3DModel

    model = WanTransformer3DModel(
        num_attention_heads=HEADS,
        attention_head_dim=HEAD_DIM,
        in_channels=channels,
        out_channels=channels,
        text_dim=TEXT_HIDDEN_SIZE,
        ffn_dim=FFN_DIM,
        num_layers=BLOCKS,
    ).eval()
    fill_model(model, "transformer", transformer_gain)
    point_velocity_along_latents(model)
    return model


def point_velocity_along_latents(model: Any) -> None:
    """Add the transposed patch embedding to the output projection, so that the velocity carries the noise away.

    An embedded patch counts its channels first, [hidden, C, 1, 2, 2]; one that is put out counts them last.
    """
    embedding = model.patch_embedding.weight.permute(0, 2, 3, 4, 1).flatten(1)
    add_transposed(model.proj_out.weight, embedding, NOISE_REMOVAL_GAIN)


def transformer_gain(name: str) -> float:
    """The factor on the spread of one transformer parameter."""
    if name.startswith("condition_embedder.text_embedder."):
        return TEXT_PROJECTION_GAIN
    if name.startswith("condition_embedder.time_proj."):
        return MODULATION_GAIN
    return QUERY_KEY_NORM_GAIN if ".norm_q." in name or ".norm_k." in name else 1.0


def small_vae(is_22: bool) -> Any:
    """The VAE of Wan 2.2 (48 channels, 1/16 of the pixels) or of Wan 2.1 (16, 1/8); both make 4 frames of one."""
    from diffusers import AutoencoderKLWan

    own = {**WAN22_VAE, "decoder_base_dim": VAE_WIDTH} if is_22 else {}
    model = AutoencoderKLWan(**(own | {"base_dim": VAE_WIDTH, "num_res_blocks": 1})).eval()
    fill_model(model, "vae", vae_gain)
    align_pixels_of_a_patch(model)
    return model


@torch.no_grad()
def align_pixels_of_a_patch(vae: Any) -> None:
    """Let the four pixels of a patch, which Wan 2.2's decoder puts out as channels of their own, differ only a little.

    Drawn one by one they would be a checkerboard of noise. A VAE without patches is left as it is.
    """
    patch = vae.config.patch_size
    if patch is None:
        return
    for parameter in (vae.decoder.conv_out.weight, vae.decoder.conv_out.bias):
        pixels = parameter.view(-1, patch * patch, *parameter.shape[1:])
        pixels.copy_(SAME_IN_A_PATCH * pixels[:, :1] + (1 - SAME_IN_A_PATCH**2) ** 0.5 * pixels)


def vae_gain(name: str) -> float:
    """The factor on the spread of one VAE parameter: pixels stay inside 0..1, hardly clipped."""
    return PIXEL_GAIN if name == "decoder.conv_out.weight" else 1.0
