"""The model families that fuseproof runs: classes, geometry, defaults and valid sizes. Torch-free tables.

A family is recognised by the ``_class_name`` of a Diffusers ``model_index.json``. Everything a request needs to be
judged before a model is loaded stands here; what depends on one checkpoint is read from its folder
(:mod:`fuseproof.pipelines.checkpoints`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType

from fuseproof.errors import UsageError
from fuseproof.pipelines.family import Component, Family

LONGCAT_IMAGE = Family(
    name="longcat-image",
    title="LongCat-Image",
    pipeline_class="LongCatImagePipeline",
    model_ids=("meituan-longcat/LongCat-Image",),
    components=MappingProxyType(
        {
            "scheduler": Component(
                "scheduler", "diffusers", ("FlowMatchEulerDiscreteScheduler",), "sigmas and Euler steps"
            ),
            "text_encoder": Component(
                "model", "transformers", ("Qwen2_5_VLForConditionalGeneration",), "prompt embeddings"
            ),
            "text_processor": Component(
                "processor",
                "transformers",
                ("Qwen2VLProcessor", "Qwen2_5_VLProcessor"),
                "prompt rewriting",
                required=False,
            ),
            "tokenizer": Component(
                "tokenizer", "transformers", ("Qwen2Tokenizer", "Qwen2TokenizerFast"), "prompt tokens"
            ),
            "transformer": Component("model", "diffusers", ("LongCatImageTransformer2DModel",), "denoising"),
            "vae": Component("model", "diffusers", ("AutoencoderKL",), "decoding latents to pixels"),
        }
    ),
    default_width=1024,
    default_height=1024,
    default_steps=50,
    default_guidance_scale=4.5,
    embedded_width=256,
    embedded_height=256,
    embedded_steps=8,
    size_multiple=16,
    minimum_side=16,
    maximum_side=4096,
    maximum_pixels=2048 * 2048,
    text_tokens=512,
    parameters=6_271_000_000,
    geometry=MappingProxyType(
        {
            "joint_blocks": 10,
            "single_blocks": 20,
            "attention_heads": 24,
            "head_dim": 128,
            "hidden_size": 3072,
            "text_hidden_size": 3584,
            "latent_channels": 16,
            "vae_scale": 8,
            "patch": 2,
        }
    ),
    notes=(
        "Prompts are always padded to 512 tokens, and the padding is attended.",
        "Guidance above 1 runs two transformer calls a step.",
        "Prompt rewriting is off by default: the text encoder would write a new prompt first, which makes timings "
        "meaningless.",
    ),
)

LONGCAT_IMAGE_EDIT = replace(
    LONGCAT_IMAGE,
    name="longcat-image-edit",
    title="LongCat-Image-Edit",
    pipeline_class="LongCatImageEditPipeline",
    model_ids=("meituan-longcat/LongCat-Image-Edit",),
    components=MappingProxyType(
        {
            **LONGCAT_IMAGE.components,
            "text_processor": Component(
                "processor", "transformers", ("Qwen2VLProcessor", "Qwen2_5_VLProcessor"), "the text encoder's image"
            ),
            "vae": Component("model", "diffusers", ("AutoencoderKL",), "pixels to latents and back"),
        }
    ),
    takes_image=True,
    embedded_guidance_scale=2.5,  # what its weights do best with: docs/embedded-model.md#edits
    canvas_pixels=1024 * 1024,
    renormalises_guidance=False,
    rewrites_prompts=False,
    notes=(
        "The canvas has about 1 megapixel in the input image's aspect, each side a multiple of 16.",
        "The prompt has at most 512 tokens, is padded to 512, and the padding is attended; the input image adds its "
        "own tokens, 347 for a canvas of 1264x848.",
        "Guidance above 1 runs two transformer calls a step; it is not renormalised.",
    ),
)

LONGCAT_IMAGE_EDIT_TURBO = replace(
    LONGCAT_IMAGE_EDIT,
    name="longcat-image-edit-turbo",
    title="LongCat-Image-Edit-Turbo",
    model_ids=("meituan-longcat/LongCat-Image-Edit-Turbo",),
    default_steps=8,
    default_guidance_scale=1.0,
    embedded_guidance_scale=None,
    notes=(
        *LONGCAT_IMAGE_EDIT.notes[:2],
        "The same pipeline class as LongCat-Image-Edit, distilled to 8 steps without guidance. Nothing in a folder of "
        "its files says so: name the model with --model-id.",
    ),
)

TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")
PROMPT_ENHANCER = ("pe", "pe_tokenizer")
"""The components that ``--use-pe`` needs, by diffusers' names; loaded for nothing else."""

ERNIE_IMAGE = Family(
    name="ernie-image",
    title="ERNIE-Image",
    pipeline_class="ErnieImagePipeline",
    model_ids=("baidu/ERNIE-Image",),
    components=MappingProxyType(
        {
            "pe": Component("model", "transformers", ("Ministral3ForCausalLM",), "prompt enhancement", required=False),
            "pe_tokenizer": Component("tokenizer", "transformers", TOKENIZERS, "prompt enhancement", required=False),
            "scheduler": Component(
                "scheduler", "diffusers", ("FlowMatchEulerDiscreteScheduler",), "sigmas and Euler steps"
            ),
            "text_encoder": Component("model", "transformers", ("Mistral3Model",), "prompt embeddings"),
            "tokenizer": Component("tokenizer", "transformers", TOKENIZERS, "prompt tokens"),
            "transformer": Component("model", "diffusers", ("ErnieImageTransformer2DModel",), "denoising"),
            "vae": Component("model", "diffusers", ("AutoencoderKLFlux2",), "decoding latents to pixels"),
        }
    ),
    default_width=1024,
    default_height=1024,
    default_steps=50,
    default_guidance_scale=4.0,
    embedded_width=256,
    embedded_height=256,
    embedded_steps=8,
    size_multiple=16,
    minimum_side=16,
    maximum_side=4096,
    maximum_pixels=2048 * 2048,
    text_tokens=None,
    parameters=8_033_000_000,
    geometry=MappingProxyType(
        {
            "blocks": 36,
            "attention_heads": 32,
            "head_dim": 128,
            "hidden_size": 4096,
            "ffn_hidden_size": 12288,
            "text_hidden_size": 3072,
            "latent_channels": 32,
            "vae_scale": 8,
            "patch": 2,
        }
    ),
    renormalises_guidance=False,
    rewrites_prompts=False,
    enhances_prompts=True,
    notes=(
        "A prompt keeps its own length; with guidance the shorter text is padded to the longer, and masked.",
        "Guidance above 1 runs both branches in one transformer call a step, a batch of two.",
        "The prompt enhancer (--use-pe) is off by default, unlike in diffusers and sglang: its time differs by the "
        "prompt. What it wrote once can be drawn again with --fixed-prompt.",
    ),
)

ERNIE_IMAGE_TURBO = replace(
    ERNIE_IMAGE,
    name="ernie-image-turbo",
    title="ERNIE-Image-Turbo",
    model_ids=("baidu/ERNIE-Image-Turbo",),
    default_steps=8,
    default_guidance_scale=1.0,
    notes=(
        "A prompt keeps its own length.",
        "The same pipeline class as ERNIE-Image, distilled to 8 steps without guidance. Nothing in a folder of its "
        "files says so: name the model with --model-id.",
        ERNIE_IMAGE.notes[2],
    ),
)

WAN21_T2V_1_3B = Family(
    name="wan2.1-t2v-1.3b",
    title="Wan 2.1 T2V 1.3B",
    pipeline_class="WanPipeline",
    model_ids=("Wan-AI/Wan2.1-T2V-1.3B-Diffusers",),
    components=MappingProxyType(
        {
            "scheduler": Component("scheduler", "diffusers", ("UniPCMultistepScheduler",), "sigmas and UniPC steps"),
            "text_encoder": Component("model", "transformers", ("UMT5EncoderModel",), "prompt embeddings"),
            "tokenizer": Component("tokenizer", "transformers", ("T5TokenizerFast", "T5Tokenizer"), "prompt tokens"),
            "transformer": Component("model", "diffusers", ("WanTransformer3DModel",), "denoising"),
            "vae": Component("model", "diffusers", ("AutoencoderKLWan",), "decoding latents to frames"),
        }
    ),
    default_width=832,
    default_height=480,
    default_steps=50,
    default_guidance_scale=5.0,
    embedded_width=128,
    embedded_height=96,
    embedded_steps=8,
    size_multiple=16,
    minimum_side=16,
    maximum_side=2048,
    maximum_pixels=1280 * 720,
    text_tokens=512,
    parameters=1_418_996_800,
    geometry=MappingProxyType(
        {
            "blocks": 30,
            "attention_heads": 12,
            "head_dim": 128,
            "hidden_size": 1536,
            "ffn_hidden_size": 8960,
            "text_hidden_size": 4096,
            "latent_channels": 16,
            "vae_scale": 8,
            "vae_scale_in_time": 4,
            "patch": 2,
        }
    ),
    makes_video=True,
    default_frames=81,
    embedded_frames=9,
    frame_multiple=4,
    maximum_frames=4093,
    default_fps=16,
    renormalises_guidance=False,
    rewrites_prompts=False,
    pipeline_options=MappingProxyType({"boundary_ratio": None, "expand_timesteps": False}),
    empty_components=("transformer_2",),
    float32_components=("vae",),
    notes=(
        "A clip has 4n + 1 frames; the rotary table ends at 4093.",
        "Prompts are padded to 512 tokens, and what stands behind a prompt is zeros.",
        "Guidance above 1 runs two transformer calls a step. The negative prompt is empty by default, as in diffusers.",
        "The VAE computes in float32 whatever --dtype says, as the model is published to be run.",
    ),
)

WAN22_TI2V_5B = replace(
    WAN21_T2V_1_3B,
    name="wan2.2-ti2v-5b",
    title="Wan 2.2 TI2V 5B",
    model_ids=("Wan-AI/Wan2.2-TI2V-5B-Diffusers",),
    components=MappingProxyType(
        {
            **WAN21_T2V_1_3B.components,
            "vae": Component("model", "diffusers", ("AutoencoderKLWan",), "frames to latents and back"),
        }
    ),
    default_width=1280,
    default_height=704,
    size_multiple=32,
    minimum_side=32,
    parameters=4_999_787_712,
    geometry=MappingProxyType(
        {
            **WAN21_T2V_1_3B.geometry,
            "attention_heads": 24,
            "hidden_size": 3072,
            "ffn_hidden_size": 14336,
            "latent_channels": 48,
            "vae_scale": 16,
        }
    ),
    accepts_image=True,
    default_frames=121,
    default_fps=24,
    pipeline_options=MappingProxyType({"boundary_ratio": None, "expand_timesteps": True}),
    notes=(
        *WAN21_T2V_1_3B.notes,
        "With --image-path the clip begins with that image, scaled to the size that was asked for.",
    ),
)

LONGLIVE2 = replace(
    WAN22_TI2V_5B,
    name="longlive2",
    title="LongLive 2",
    pipeline_class="LongLive2Pipeline",
    model_ids=("Rabinovich/LongLive-2.0-5B-Diffusers",),
    components=MappingProxyType(
        {
            **WAN22_TI2V_5B.components,
            "scheduler": Component(
                "scheduler",
                "diffusers",
                ("FlowMatchEulerDiscreteScheduler", "UniPCMultistepScheduler"),
                "nothing here: the steps are the model's own",
            ),
            "text_encoder": Component(
                "model", "transformers", ("UMT5EncoderModel", "T5EncoderModel"), "prompt embeddings"
            ),
            "transformer": Component(
                "model", "diffusers", ("LongLive2Transformer3DModel",), "denoising, chunk by chunk"
            ),
        }
    ),
    default_steps=4,
    default_guidance_scale=1.0,
    embedded_steps=4,
    default_frames=61,
    embedded_frames=61,
    frame_multiple=32,
    frame_remainder=29,
    clip_canvas_pixels=1280 * 704,
    advised_sizes=((1280, 704), (704, 1280), (832, 480), (480, 832)),
    only_steps=4,
    takes_guidance=False,
    is_in_diffusers=False,
    pipeline_options=MappingProxyType({}),
    float32_components=(),
    notes=(
        "A clip is made in chunks of 8 latent frames: 29 frames, and 32 more for each further chunk.",
        WAN21_T2V_1_3B.notes[1],
        "Distilled to 4 steps without guidance; each chunk but the last takes one forward more, for the next to see.",
        "With --image-path the clip begins with that image and has its aspect at about 0.9 megapixels, whatever size "
        "was asked for.",
        "The VAE computes in the run's dtype, and decodes each chunk as soon as it is there.",
        "diffusers does not have it: --backend reference is its eager reference.",
    ),
)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        family.name: family
        for family in (
            LONGCAT_IMAGE,
            LONGCAT_IMAGE_EDIT,
            LONGCAT_IMAGE_EDIT_TURBO,
            ERNIE_IMAGE,
            ERNIE_IMAGE_TURBO,
            WAN22_TI2V_5B,
            WAN21_T2V_1_3B,
            LONGLIVE2,
        )
    }
)

NOT_SUPPORTED_YET: Mapping[str, str] = MappingProxyType(
    {
        "FluxPipeline": "FLUX.1",
        "Flux2Pipeline": "FLUX.2",
        "Flux2KleinPipeline": "FLUX.2 klein",
        "QwenImagePipeline": "Qwen-Image",
        "QwenImageEditPipeline": "Qwen-Image-Edit",
        "QwenImageEditPlusPipeline": "Qwen-Image-Edit-Plus",
        "ZImagePipeline": "Z-Image",
        "WanImageToVideoPipeline": "Wan image-to-video",
    }
)

IDS_NOT_SUPPORTED_YET: Mapping[str, str] = MappingProxyType(
    {
        "Wan-AI/Wan2.1-T2V-14B-Diffusers": "Wan 2.1 T2V 14B",
        "Wan-AI/Wan2.2-T2V-A14B-Diffusers": "Wan 2.2 T2V A14B",
    }
)
"""Published checkpoints of later families, known by name so that nothing is downloaded first."""


def refuse_ids_of_later_families(model_path: str) -> None:
    """Raise a UsageError for such an id, unless a local folder has that name."""
    title = IDS_NOT_SUPPORTED_YET.get(model_path)
    if title is not None and not Path(model_path).is_dir():
        raise UsageError(
            f"{title} ({model_path}) is not supported yet.",
            next_step="`fuseproof models list` shows the families that run today.",
        )


def family_named(name: str) -> Family:
    """The family called ``name``; a UsageError lists what exists."""
    family = FAMILIES.get(name)
    if family is None:
        raise UsageError(
            f"There is no model family {name!r}; fuseproof has {_listed(FAMILIES)}.",
            next_step=f"{closest_name(name)}`fuseproof models list` describes them.",
        )
    return family


def closest_name(name: str) -> str:
    """``Did you mean 'longcat-image'? `` for a mistyped family, published id or ``embedded:`` name; else nothing."""
    known = [
        spelling
        for family in FAMILIES.values()
        for spelling in (family.name, f"embedded:{family.name}", *family.model_ids)
    ]
    spellings = {spelling.lower(): spelling for spelling in known}
    found = get_close_matches(name.lower(), spellings, n=1, cutoff=0.7)
    return f"Did you mean {spellings[found[0]]!r}? " if found else ""


def close_model_id(repository: str) -> str | None:
    """The published id that ``repository`` was probably meant to be; None where it is one, or is like none."""
    spellings = {published.lower(): published for family in FAMILIES.values() for published in family.model_ids}
    found = get_close_matches(repository.lower(), spellings, n=1, cutoff=0.85)
    return spellings[found[0]] if found and spellings[found[0]] != repository else None


def family_of_model_id(model_id: str) -> Family | None:
    """The family of a published model: its full id, the part after the slash, or our own name for it."""
    for family in FAMILIES.values():
        names = (family.name, *family.model_ids, *(published.partition("/")[2] for published in family.model_ids))
        if model_id in names:
            return family
    return None


def family_of_pipeline_class(name: str) -> Family:
    """The first family whose ``model_index.json`` says ``_class_name: name``; a UsageError lists what exists."""
    return families_of_pipeline_class(name)[0]


def families_of_pipeline_class(name: str) -> tuple[Family, ...]:
    """Every family whose ``model_index.json`` says ``_class_name: name``; a UsageError lists what exists."""
    found = tuple(family for family in FAMILIES.values() if family.pipeline_class == name)
    if found:
        return found
    supported = _listed({family.pipeline_class: family for family in FAMILIES.values()})
    if name in NOT_SUPPORTED_YET:
        raise UsageError(
            f"{NOT_SUPPORTED_YET[name]} ({name}) is not supported yet; fuseproof runs {supported}.",
            next_step="`fuseproof models list` shows the families that run today.",
        )
    raise UsageError(
        f"The pipeline class {name!r} is unknown to fuseproof, which runs {supported}.",
        next_step="`fuseproof models list` shows the families that run today.",
    )


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(names)
