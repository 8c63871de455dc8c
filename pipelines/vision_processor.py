"""The Qwen2-VL processor of editing pipelines, without torchvision.

``LongCatImageEditPipeline`` takes from its ``text_processor`` the image processor alone: it turns the input image into
patches for the text encoder. transformers' ``Qwen2VLProcessor`` cannot be built without a video processor, and that one
needs torchvision, which fuseproof does not install. The subclass here has no video processor; it stands in the
pipeline's slot as a ``Qwen2VLProcessor``.

There is one way, whatever is installed: the image processor is ``Qwen2VLImageProcessorPil``, configured by the
checkpoint, and the tokenizer is the pipeline's own. Where torchvision is present, a plain ``from_pretrained`` picks its
torchvision-backed twin instead, which resizes in another arithmetic: the prompt embeddings then differ in their last
bits. Both of our backends use the same object, so equality between them says nothing about that twin.

Source: ``Qwen2VLProcessor`` and ``Qwen2VLImageProcessorPil``, transformers 5.24.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

RELEASED_PIXELS = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 16384}
"""Qwen2.5-VL's published limits: a half canvas lies between them, so the image is only rounded to whole patches."""


def load_text_processor(folder: Path, tokenizer: Any) -> Any:
    """The processor that ``folder`` (a checkpoint's ``text_processor``) configures; no network, no torchvision.

    Raises OSError or ValueError, as transformers does, when the folder holds no usable image processor config.
    """
    from transformers import Qwen2VLImageProcessorPil

    return text_processor(Qwen2VLImageProcessorPil.from_pretrained(folder, local_files_only=True), tokenizer)


def released_text_processor(tokenizer: Any) -> Any:
    """The processor with the released model's image settings, for a pipeline that is not read from files."""
    from transformers import Qwen2VLImageProcessorPil

    return text_processor(Qwen2VLImageProcessorPil(size=dict(RELEASED_PIXELS)), tokenizer)


def text_processor(image_processor: Any, tokenizer: Any) -> Any:
    """A ``Qwen2VLProcessor`` of these two parts."""
    return _image_text_processor_class()(image_processor, tokenizer)


@functools.cache
def _image_text_processor_class() -> Any:
    """Made on first use: importing transformers takes seconds, and only editing families need it."""
    from transformers import ProcessorMixin, Qwen2VLProcessor

    class ImageTextProcessor(Qwen2VLProcessor):
        """``Qwen2VLProcessor`` for images and text; transformers reads the parts off this signature."""

        def __init__(self, image_processor: Any, tokenizer: Any, chat_template: str | None = None) -> None:
            self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
            self.image_token_id, self.video_token_id = tokenizer.convert_tokens_to_ids(
                [self.image_token, self.video_token]
            )
            ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)

    return ImageTextProcessor
