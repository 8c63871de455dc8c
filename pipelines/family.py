"""What is known of a model family before one of its models is loaded. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

ComponentKind = Literal["model", "scheduler", "tokenizer", "processor"]


@dataclass(frozen=True)
class Component:
    """One entry of a pipeline's ``model_index.json``.

    ``classes`` lists the accepted class names, the usual one first. A component that is not ``required`` may be
    absent or ``[null, null]``; the pipeline then lacks what ``purpose`` says.
    """

    kind: ComponentKind
    library: Literal["diffusers", "transformers"]
    classes: tuple[str, ...]
    purpose: str
    required: bool = True


@dataclass(frozen=True)
class Family:
    """One model family.

    Sizes are in pixels; both sides must be multiples of ``size_multiple`` between ``minimum_side`` and
    ``maximum_side``, with at most ``maximum_pixels`` in all. ``embedded_*`` are the defaults of the small checkpoint
    ``embedded:<name>``; without an ``embedded_guidance_scale`` it has the family's. ``parameters`` counts the released
    transformer. ``text_tokens`` is the length that every prompt is padded to; None where a prompt keeps its own.

    A family that ``takes_image`` draws on a canvas of about ``canvas_pixels`` in the input image's aspect (a checkpoint
    may say another area), so its default sizes are those of a square input. One that ``accepts_image`` runs with or
    without: a clip then begins with the image, scaled to the request's size. Families may share a ``pipeline_class``;
    the first one is meant where nothing tells them apart. ``rewrites_prompts`` and ``enhances_prompts`` say what may
    write a prompt anew: the text encoder itself, or the components of :data:`PROMPT_ENHANCER`.

    Clips (``makes_video``) have a multiple of ``frame_multiple`` frames, and ``frame_remainder`` more, up to
    ``maximum_frames``; ``default_fps`` is what the model was made for. A clip that begins with an image has the image's
    aspect at about ``clip_canvas_pixels``; without such an area it has the size that was asked for. ``advised_sizes``
    are those that a model was published for, where other ones run and are said.

    A distilled model may run with ``only_steps`` and no others, and one that does not take guidance
    (``takes_guidance``) at scale 1 alone. One that diffusers does not have (``is_in_diffusers``) has an eager reference
    of ours in its place.

    ``pipeline_options`` are what ``model_index.json`` says besides components: they tell families of one class apart,
    and the pipeline is made with them. ``empty_components`` belong to other members of the class, and must be empty.
    ``float32_components`` compute in fp32 whatever the run's dtype.
    """

    name: str
    title: str
    pipeline_class: str
    model_ids: tuple[str, ...]
    components: Mapping[str, Component]
    default_width: int
    default_height: int
    default_steps: int
    default_guidance_scale: float
    embedded_width: int
    embedded_height: int
    embedded_steps: int
    size_multiple: int
    minimum_side: int
    maximum_side: int
    maximum_pixels: int
    text_tokens: int | None
    parameters: int
    geometry: Mapping[str, int | str]
    takes_image: bool = False
    accepts_image: bool = False
    makes_video: bool = False
    default_frames: int | None = None
    embedded_frames: int | None = None
    embedded_guidance_scale: float | None = None
    frame_multiple: int = 1
    frame_remainder: int = 1
    maximum_frames: int = 1
    default_fps: int | None = None
    canvas_pixels: int | None = None
    clip_canvas_pixels: int | None = None
    advised_sizes: tuple[tuple[int, int], ...] = ()
    only_steps: int | None = None
    takes_guidance: bool = True
    is_in_diffusers: bool = True
    renormalises_guidance: bool = True
    rewrites_prompts: bool = True
    enhances_prompts: bool = False
    pipeline_options: Mapping[str, bool | float | None] = field(default_factory=dict)
    empty_components: tuple[str, ...] = ()
    float32_components: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def guidance_scale(self, *, is_embedded: bool) -> float:
        """The default of ``embedded:<name>``, or of any other checkpoint."""
        embedded = self.embedded_guidance_scale
        return embedded if is_embedded and embedded is not None else self.default_guidance_scale
