"""Instructions as the editing pipeline hands them to the text encoder: behind its own sentence and the input image.

The image takes tokens of its own between the sentence and the instruction. Our vision tower gives zeros for them, so
they are the same in every prompt, and only their number counts: it moves the positions of all that follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from training.geometry import Geometry, image_ids
from training.tokens import PROMPT_TOKENS, embed_behind, text_ids

EDIT_SENTENCE = (
    "<|im_start|>system\nAs an image editing expert, first analyze the content and attributes of the input image(s). "
    "Then, based on the user's editing instructions, clearly and precisely determine how to modify the given image(s), "
    "ensuring that only the specified parts are altered and all other aspects remain consistent with the "
    "original(s).<|im_end|>\n<|im_start|>user\n"
)
"""``LongCatImageEditPipeline.prompt_template_encode_prefix`` up to the image; a test holds the two together."""
IMAGE_TOKEN = "<|image_pad|>"


@dataclass(frozen=True)
class EditTemplate:
    """What stands before every instruction: the ``sentence``, then ``vision`` tokens, whose embeddings are kept."""

    sentence: torch.Tensor
    vision: torch.Tensor
    image_token: int
    padding: int

    @classmethod
    def of(cls, tokenizer: Any, side: int, device: torch.device) -> EditTemplate:
        """The template, int64 on ``device``, for a canvas of ``side`` x ``side`` pixels.

        The text encoder sees half of the side.
        """
        from PIL import Image

        from fuseproof.pipelines.vision_processor import released_text_processor

        processor = released_text_processor(tokenizer).image_processor
        grid = processor(images=Image.new("RGB", (side // 2, side // 2)), return_tensors="pt")["image_grid_thw"]
        count = int(grid.prod()) // processor.merge_size**2
        token = tokenizer.convert_tokens_to_ids
        image_token = token(IMAGE_TOKEN)
        vision = (token("<|vision_start|>"), *[image_token] * count, token("<|vision_end|>"))
        sentence = tokenizer(EDIT_SENTENCE, add_special_tokens=False)["input_ids"]
        before = torch.tensor(sentence, device=device), torch.tensor(vision, device=device)
        return cls(*before, image_token, tokenizer.pad_token_id)


def embed_instructions(
    text_encoder: Any, ids: torch.Tensor, positions: torch.Tensor, template: EditTemplate
) -> torch.Tensor:
    """Embeddings [B, vision + L, hidden] of the image and of the instruction at ``positions`` [L]: what the pipeline's
    ``encode_prompt`` gives there. ``ids`` [B, LONGEST_PROMPT], -1 after the end.
    """
    before = torch.cat([template.sentence, template.vision])
    # The vision tower's output, which is zero, stands where the image's tokens are.
    hidden = embed_behind(text_encoder, ids, positions, before, template.padding, zero_token=template.image_token)
    return hidden[:, len(template.sentence) :]


def edit_ids(geometry: Geometry, positions: torch.Tensor, template: EditTemplate) -> torch.Tensor:
    """The transformer's position ids [vision + L + 2 * tokens, 3]: text, the picture to be made, the picture given.

    On the device of ``positions``.
    """
    device, vision = positions.device, len(template.vision)
    text = text_ids(torch.cat([torch.arange(vision, device=device), positions + vision]))
    pictures = [image_ids(geometry, device, modality, PROMPT_TOKENS + vision) for modality in (1, 2)]
    return torch.cat([text, *pictures])
