"""Builds a small LongCat-Image checkpoint: the real classes and folder layout, seeded random weights, offline.

What is real: the pipeline, transformer, text encoder, tokenizer, VAE and scheduler classes, heads of 128 channels with
the rotary axes (16, 56, 56), 512 prompt tokens, 16 latent channels at 1/8 of the pixels, and the scheduler's dynamic
shifting. What is small: 2 heads, 2 joint and 4 single blocks, a byte-level vocabulary. The ``text_processor`` slot is
empty, because Qwen2VLProcessor cannot be built without torchvision, so prompts cannot be rewritten.

A random transformer hardly listens to its prompt and never leaves its noise. Three choices make this one behave like a
model: query and key biases outweigh their inputs, so attention depends on position and prompt more than on noise; the
output projection contains the transposed input embedding, so the velocity points along the latents and the noise
shrinks from step to step; context embedder and AdaLN layers are scaled up. tests/pipelines/test_embedded.py holds
what comes of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fuseproof.pipelines.checkpoint_marker import MARKER, RANDOM, Marker
from fuseproof.pipelines.libraries import silence_libraries
from fuseproof.pipelines.tiny.weights import add_transposed, fill_model

HEADS = 2
HEAD_DIM = 128
JOINT_BLOCKS = 2
SINGLE_BLOCKS = 4
TEXT_HIDDEN_SIZE = 64
VAE_WIDTHS = (8, 16, 16, 16)

ADA_LAYER_NORM_GAIN = 1.5
CONTEXT_EMBEDDER_GAIN = 4.0
QUERY_KEY_WEIGHT_GAIN = 0.3
QUERY_KEY_BIAS_GAIN = 20.0
NOISE_REMOVAL_GAIN = 4.0
PIXEL_GAIN = 0.3

QUERY_KEY_LAYERS = ("to_q.", "to_k.", "add_q_proj.", "add_k_proj.")
CHAT_TOKENS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build(folder: Path) -> None:
    """Write the checkpoint into ``folder`` (created if needed): float32 safetensors, about 37 MB."""
    silence_libraries()
    from diffusers import LongCatImagePipeline

    # The constructors draw throw-away weights from torch's global generator; the caller's state must not notice.
    with torch.random.fork_rng(devices=[]):
        tokenizer = byte_level_tokenizer()
        pipeline = LongCatImagePipeline(
            scheduler=dynamic_scheduler(),
            vae=small_vae(),
            text_encoder=small_text_encoder(tokenizer),
            tokenizer=tokenizer,
            text_processor=None,
            transformer=small_transformer(),
        )
    pipeline.save_pretrained(folder)
    (folder / MARKER).write_text(Marker(weights=RANDOM).to_json(), encoding="utf-8")


def dynamic_scheduler() -> Any:
    """FLUX's flow-matching Euler scheduler, shifted by the number of image tokens."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler(
        num_train_timesteps=1000,
        shift=3.0,
        use_dynamic_shifting=True,
        base_shift=0.5,
        max_shift=1.15,
        base_image_seq_len=256,
        max_image_seq_len=4096,
    )


def byte_level_tokenizer() -> Any:
    """A byte-level Qwen2 tokenizer without merges: one token a byte, and the chat tokens."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Tokenizer

    vocabulary = {symbol: number for number, symbol in enumerate(sorted(ByteLevel.alphabet()))}
    vocabulary["<|endoftext|>"] = len(vocabulary)
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=[], model_max_length=4096)
    tokenizer.add_special_tokens({"additional_special_tokens": list(CHAT_TOKENS)})
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def small_text_encoder(tokenizer: Any) -> Any:
    """Two layers of 64 channels, and a vision tower of one layer."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    token = tokenizer.convert_tokens_to_ids
    config = Qwen2_5_VLConfig(
        text_config={
            "hidden_size": TEXT_HIDDEN_SIZE,
            "intermediate_size": 2 * TEXT_HIDDEN_SIZE,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "vocab_size": len(tokenizer),
            "max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]},
            "bos_token_id": token("<|endoftext|>"),
            "eos_token_id": token("<|im_end|>"),
            "pad_token_id": token("<|endoftext|>"),
            "tie_word_embeddings": False,
        },
        vision_config={
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "out_hidden_size": TEXT_HIDDEN_SIZE,
            "fullatt_block_indexes": [0],
        },
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        vision_token_id=token("<|vision_pad|>"),
        tie_word_embeddings=False,
    )
    model = Qwen2_5_VLForConditionalGeneration(config).eval()
    fill_model(model, "text_encoder", lambda name: 1.0)
    return model


def small_transformer() -> Any:
    """Two joint and four single blocks with the released rotary axes."""
    from diffusers import LongCatImageTransformer2DModel

    model = LongCatImageTransformer2DModel(
        in_channels=64,
        num_layers=JOINT_BLOCKS,
        num_single_layers=SINGLE_BLOCKS,
        attention_head_dim=HEAD_DIM,
        num_attention_heads=HEADS,
        joint_attention_dim=TEXT_HIDDEN_SIZE,
        pooled_projection_dim=TEXT_HIDDEN_SIZE,
        axes_dims_rope=[16, 56, 56],
    ).eval()
    fill_model(model, "transformer", transformer_gain)
    point_velocity_along_latents(model)
    return model


def point_velocity_along_latents(model: Any) -> None:
    """Add the transposed input embedding to the output projection, so that the velocity carries the noise away."""
    add_transposed(model.proj_out.weight, model.x_embedder.weight, NOISE_REMOVAL_GAIN)


def transformer_gain(name: str) -> float:
    """The factor on the spread of one transformer parameter."""
    if name.startswith("context_embedder."):
        return CONTEXT_EMBEDDER_GAIN
    if any(layer in name for layer in QUERY_KEY_LAYERS):
        return QUERY_KEY_BIAS_GAIN if name.endswith("bias") else QUERY_KEY_WEIGHT_GAIN
    is_ada_layer_norm = "norm" in name and ".linear." in name
    return ADA_LAYER_NORM_GAIN if is_ada_layer_norm else 1.0


def small_vae() -> Any:
    """Encoder and decoder with the released latent channels and scale."""
    from diffusers import AutoencoderKL

    stages = len(VAE_WIDTHS)
    model = AutoencoderKL(
        in_channels=3,
        out_channels=3,
        latent_channels=16,
        block_out_channels=VAE_WIDTHS,
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * stages,
        up_block_types=("UpDecoderBlock2D",) * stages,
        use_quant_conv=False,
        use_post_quant_conv=False,
        scaling_factor=0.3611,
        shift_factor=0.1159,
        sample_size=256,
    ).eval()
    fill_model(model, "vae", vae_gain)
    return model


def vae_gain(name: str) -> float:
    """The factor on the spread of one VAE parameter: pixels stay inside 0..1, hardly clipped."""
    return PIXEL_GAIN if name == "decoder.conv_out.weight" else 1.0
