"""Builds a small ERNIE-Image checkpoint: the real classes and folder layout, seeded random weights, offline.

What is real: the classes of pipeline, transformer, text encoder (with its unused vision tower), prompt enhancer,
tokenizers, VAE and scheduler, heads of 128 channels with the rotary axes (32, 48, 48), prompts of their true length, 32
latent channels in patches of 2x2 at 1/16 of the pixels, batch-norm statistics in the VAE, and the scheduler's fixed
shift. What is small: 2 heads, 4 blocks, a byte-level vocabulary.

A random transformer hardly listens to its prompt and never leaves its noise, and the class starts its modulation and
its output at zero, which makes every picture the noise. Here every tensor is drawn; query and key norms are scaled up,
so that attention picks; modulation and text projection are scaled up; and the output projection contains the transposed
input embedding, so that the velocity points along the latents. tests/pipelines/test_embedded_ernie.py holds what comes
of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fuseproof.pipelines.checkpoint_marker import MARKER, RANDOM, Marker
from fuseproof.pipelines.libraries import silence_libraries
from fuseproof.pipelines.tiny.weights import add_transposed, fill_batch_norms, fill_model

HEADS = 2
HEAD_DIM = 128
BLOCKS = 4
FFN_RATIO = 3
TEXT_HIDDEN_SIZE = 64
VAE_WIDTHS = (8, 16, 16, 16)
LATENT_CHANNELS = 32
LONGEST_PROMPT = 4096
LONGEST_ENHANCEMENT = 64
"""Tokens that the prompt enhancer may write; the pipeline takes it from its tokenizer."""

MODULATION_GAIN = 1.5
TEXT_PROJECTION_GAIN = 4.0
QUERY_KEY_NORM_GAIN = 2.0
NOISE_REMOVAL_GAIN = 4.0
PIXEL_GAIN = 0.3
SILENT_SYMBOL_GAIN = 0.02
ENHANCER_HEAD_GAIN = 6.0
ENHANCER_QUERY_KEY_GAIN = 3.0
ENHANCER_VALUE_GAIN = 2.0
"""Attention that picks, and is heard: without both gains most prompts get the same first letters, and the same end."""

SPECIAL_TOKENS = ("<s>", "</s>", "<pad>")
ENHANCER_TEMPLATE = "{% for message in messages %}{{ message['content'] }}\nOutput:{% endfor %}"
"""The prompt stands in front of ``Output:``, and no generation prompt follows, as the pipeline expects."""


def build(folder: Path) -> None:
    """Write the small ERNIE-Image into ``folder`` (created if needed): float32 safetensors, about 20 MB."""
    build_family(folder, "ernie-image")


def build_family(folder: Path, family: str) -> None:
    """Write the small checkpoint of ``family``, ERNIE-Image or its Turbo, into ``folder``."""
    silence_libraries()
    from diffusers import ErnieImagePipeline

    # The constructors draw throw-away weights from torch's global generator; the caller's state must not notice.
    with torch.random.fork_rng(devices=[]):
        tokenizer = byte_level_tokenizer(LONGEST_PROMPT)
        enhancer_tokenizer = byte_level_tokenizer(LONGEST_ENHANCEMENT, ENHANCER_TEMPLATE)
        pipeline = ErnieImagePipeline(
            transformer=small_transformer(),
            vae=small_vae(),
            text_encoder=small_text_encoder(tokenizer),
            tokenizer=tokenizer,
            scheduler=shifted_scheduler(),
            pe=small_prompt_enhancer(enhancer_tokenizer),
            pe_tokenizer=enhancer_tokenizer,
        )
    pipeline.save_pretrained(folder)
    (folder / MARKER).write_text(Marker(family, weights=RANDOM).to_json(), encoding="utf-8")


def shifted_scheduler() -> Any:
    """Flow-matching Euler with a fixed shift of 3: the pipeline hands no ``mu`` on, so it cannot be dynamic."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=3.0)


def byte_level_tokenizer(longest: int, chat_template: str | None = None) -> Any:
    """A byte-level tokenizer without merges: ``<s>``, then one token a byte, ``longest`` at most."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import TokenizersBackend

    symbols = (*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet()))
    start = SPECIAL_TOKENS[0]
    backend = Tokenizer(models.BPE(vocab={symbol: number for number, symbol in enumerate(symbols)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(
        single=f"{start} $A", special_tokens=[(start, symbols.index(start))]
    )
    tokenizer = TokenizersBackend(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>", model_max_length=longest
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def small_text_encoder(tokenizer: Any) -> Any:
    """Two layers of 64 channels, and a vision tower of one layer that nothing calls."""
    from transformers import Mistral3Config, Mistral3Model

    config = Mistral3Config(
        text_config=language_model_config(tokenizer),
        vision_config={
            "model_type": "pixtral",
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "head_dim": 8,
            "image_size": 56,
            "patch_size": 14,
        },
        # A token of no prompt's: a prompt holds bytes, and nobody writes a padding token.
        image_token_index=tokenizer.pad_token_id,
    )
    model = Mistral3Model(config).eval()
    fill_model(model, "text_encoder", lambda name: 1.0)
    return model


def small_prompt_enhancer(tokenizer: Any) -> Any:
    """A language model of two layers that writes letters, blanks and, now and then, its end: noise, but other noise for
    another prompt.
    """
    from transformers import Ministral3Config, Ministral3ForCausalLM

    model = Ministral3ForCausalLM(Ministral3Config(**language_model_config(tokenizer))).eval()
    fill_model(model, "pe", enhancer_gain)
    spoken = {tokenizer.eos_token_id, *tokenizer("abcdefghijklmnopqrstuvwxyz ", add_special_tokens=False)["input_ids"]}
    with torch.no_grad():
        for token in set(range(len(tokenizer))) - spoken:
            model.lm_head.weight[token] *= SILENT_SYMBOL_GAIN
    return model


def enhancer_gain(name: str) -> float:
    """The factor on the spread of one parameter of the prompt enhancer."""
    if name.startswith("lm_head."):
        return ENHANCER_HEAD_GAIN
    if ".q_proj." in name or ".k_proj." in name:
        return ENHANCER_QUERY_KEY_GAIN
    return ENHANCER_VALUE_GAIN if ".v_proj." in name or ".o_proj." in name else 1.0


def language_model_config(tokenizer: Any) -> dict[str, Any]:
    """The arguments of a Ministral3 config of two layers and 64 channels."""
    return {
        "model_type": "ministral3",
        "vocab_size": len(tokenizer),
        "hidden_size": TEXT_HIDDEN_SIZE,
        "intermediate_size": 2 * TEXT_HIDDEN_SIZE,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": TEXT_HIDDEN_SIZE // 2,
        "max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 1.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096,
            "llama_4_scaling_beta": 0.1,
        },
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": False,
    }


def small_transformer() -> Any:
    """Four blocks with the released heads and rotary axes."""
    from diffusers import ErnieImageTransformer2DModel

    hidden_size = HEADS * HEAD_DIM
    model = ErnieImageTransformer2DModel(
        hidden_size=hidden_size,
        num_attention_heads=HEADS,
        num_layers=BLOCKS,
        ffn_hidden_size=FFN_RATIO * hidden_size,
        in_channels=4 * LATENT_CHANNELS,
        out_channels=4 * LATENT_CHANNELS,
        text_in_dim=TEXT_HIDDEN_SIZE,
        rope_axes_dim=(32, 48, 48),
    ).eval()
    fill_model(model, "transformer", transformer_gain)
    point_velocity_along_latents(model)
    return model


def point_velocity_along_latents(model: Any) -> None:
    """Add the transposed input embedding to the output projection, so that the velocity carries the noise away."""
    add_transposed(model.final_linear.weight, model.x_embedder.proj.weight.flatten(1), NOISE_REMOVAL_GAIN)


def transformer_gain(name: str) -> float:
    """The factor on the spread of one transformer parameter."""
    if name.startswith("text_proj."):
        return TEXT_PROJECTION_GAIN
    if name.startswith("adaLN_modulation."):
        return MODULATION_GAIN
    return QUERY_KEY_NORM_GAIN if ".norm_q." in name or ".norm_k." in name else 1.0


def small_vae() -> Any:
    """Encoder and decoder with the released latent channels and scale, and batch-norm statistics of their own."""
    from diffusers import AutoencoderKLFlux2

    stages = len(VAE_WIDTHS)
    model = AutoencoderKLFlux2(
        block_out_channels=VAE_WIDTHS,
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * stages,
        up_block_types=("UpDecoderBlock2D",) * stages,
        sample_size=256,
    ).eval()
    fill_model(model, "vae", vae_gain)
    fill_batch_norms(model, "vae")
    return model


def vae_gain(name: str) -> float:
    """The factor on the spread of one VAE parameter: pixels stay inside 0..1, hardly clipped."""
    return PIXEL_GAIN if name == "decoder.conv_out.weight" else 1.0
