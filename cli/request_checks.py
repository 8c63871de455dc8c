"""What ``generate`` would refuse before it loads a model, asked without running it: nothing is fetched, built or
written, and no torch is loaded.

``abba`` asks it of every arm before slot 1. What only a fetched checkpoint, a built one, or the code of
``--fastpaths-from`` can tell stays with the slots.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fuseproof.cli import edit_inputs, generate_rules
from fuseproof.cli.fixed_prompts import read_fixed_prompts
from fuseproof.cli.generate_requests import Prompt, expected_family, plan_requests
from fuseproof.cli.image_inputs import read_image_input
from fuseproof.cli.prompts import read_prompts
from fuseproof.pipelines.checkpoints import Checkpoint, check_checkpoint
from fuseproof.pipelines.dummy_geometry import family_of_dummy
from fuseproof.pipelines.embedded import source_of
from fuseproof.pipelines.families import refuse_ids_of_later_families
from fuseproof.pipelines.family import Family

if TYPE_CHECKING:
    from fuseproof.cli.generate_options import GenerateOptions
    from fuseproof.pipelines.requests import GenerationRequest

Checked = dict[tuple[str, str | None], Checkpoint]
"""Local folders that passed, by path and ``--model-id``: their weights' headers are read once a command."""


def refuse_request(options: GenerateOptions, checked: Checked) -> None:
    """Raise ``generate``'s own :class:`FuseproofError` for requests that it would refuse; ``checked`` is added to."""
    requests_of(options, checked)


def requests_of(options: GenerateOptions, checked: Checked) -> tuple[GenerationRequest, ...]:
    """The timed requests, checked as :func:`refuse_request` does; none where only the hub or a fetched image tells."""
    texts = read_prompts(options.prompt, options.prompt_path)
    prompts = tuple(map(Prompt, texts, read_fixed_prompts(options, texts)))
    generate_rules.check_prompt_count(options, len(prompts))
    family, checkpoint = model_at_hand(options, checked)
    if family is None:
        return ()  # a repository that only the hub can tell of
    edit_inputs.refuse_image_count(options, family)
    if any("://" in source for source in options.image_path):
        return ()  # the size depends on an image that is not here
    images = tuple(read_image_input(source) for source in options.image_path)
    canvas = edit_inputs.canvas_of(options, family, images, checkpoint)
    return plan_requests(options, prompts, family, canvas, checkpoint)[0]


def model_at_hand(options: GenerateOptions, checked: Checked) -> tuple[Family | None, Checkpoint | None]:
    """The family that the flags name and, of a local folder, its checkpoint; None for what only the hub can tell of."""
    if options.load_format == "dummy":
        return family_of_dummy(options.model_path), None
    refuse_ids_of_later_families(options.model_path)
    expected = expected_family(options)
    if source_of(options.model_path, options.revision) != "local":
        return expected, None
    key = (options.model_path, options.model_id)
    if key not in checked:
        checked[key] = check_checkpoint(Path(options.model_path).expanduser().resolve(), expected)
    return checked[key].family, checked[key]
