"""Goes on training the transformer on two tasks at once: text to image, and edits of a picture.

An edit is what LongCat-Image-Edit makes of it: the noisy latents of the edited picture, then the latents of the given
one as further tokens with a modality of their own, and the instruction behind the pipeline's sentence for editing. Each
step sees as many pictures of either task, and its loss is the sum of the two, so one transformer does both, and the
weights are packaged once. One instruction in ten is empty, which is the pipeline's unconditional branch: it sees the
given picture too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from training import flow_stage
from training.data import Drawings, batches, step_generator
from training.edit_prompts import EditTemplate, edit_ids, embed_instructions
from training.edits import DescribedEdit
from training.flow_stage import Batch, FlowSettings, LatentSet, draw_sigmas, predict_velocity
from training.geometry import Geometry
from training.gradients import LossesOf, Step, Tensors, step_of
from training.progress import Progress
from training.state import StageState
from training.tokens import drawn_positions, padded_ids


@dataclass(frozen=True)
class EditSettings(FlowSettings):
    """How both tasks are trained; ``batch`` counts pictures of each. The transformer has learnt to draw already.

    What must stay is copied, from given tokens of the same place: the norms of queries and keys, which alone can make
    attention sharp, learn faster.
    """

    batch: int = 128
    rate: float = 6.0e-4
    sharpness_share: float = 6.0
    full_text_from: float = 0.7
    seed: int = 4


@dataclass(frozen=True)
class EditSet:
    """Pictures ``before`` with their captions (a :class:`LatentSet`), latents ``after`` [N, tokens, 64] bf16 and
    instructions [N, LONGEST_PROMPT], on a device.
    """

    before: LatentSet
    after: torch.Tensor
    instructions: torch.Tensor

    @classmethod
    def encode(
        cls, vae: Any, drawn: Sequence[DescribedEdit], tokenizer: Any, side: int, device: torch.device
    ) -> EditSet:
        """Encode both pictures of every edit."""
        captions = padded_ids(tokenizer, [caption.text for item in drawn for caption in item.captions]).to(device)
        instructions = padded_ids(tokenizer, [item.edit.instruction for item in drawn]).to(device)
        before = Drawings.of([item.edit.before for item in drawn], device)
        after = Drawings.of([item.edit.after for item in drawn], device)
        encoded = LatentSet.encode(vae, before, captions, side)
        return cls(encoded, LatentSet.encode(vae, after, captions, side).latents, instructions)

    def __len__(self) -> int:
        return len(self.after)


class EditBatch(NamedTuple):
    """What one step sees of edits: latents wanted and given, noise [B, tokens, 64], sigmas [B], instructions, and the
    text positions kept.
    """

    latents: torch.Tensor
    given: torch.Tensor
    noise: torch.Tensor
    sigmas: torch.Tensor
    ids: torch.Tensor
    positions: torch.Tensor


def draw_edit_batch(
    data: EditSet, rows: torch.Tensor, step: int, mu: float, settings: FlowSettings, *, full_text: bool
) -> EditBatch:
    """The edits of a step, a function of ``settings.seed`` and ``step`` alone."""
    device = rows.device
    generator = step_generator(settings.seed + 1000, step, device)
    latents, given = data.after[rows].float(), data.before.latents[rows].float()
    noise = torch.randn(latents.shape, generator=generator, device=device)
    sigmas = draw_sigmas(len(rows), mu + settings.sigma_offset, settings.sigma_spread, generator)
    is_empty = torch.rand(len(rows), generator=generator, device=device) < settings.empty_prompts
    ids = torch.where(is_empty[:, None], -1, data.instructions[rows])
    padding = None if full_text else settings.random_padding
    positions = drawn_positions(padding, settings.seed + step, device)
    return EditBatch(latents, given, noise, sigmas, ids, positions)


def predict_edit_velocity(
    transformer: Any,
    noisy: torch.Tensor,
    given: torch.Tensor,
    sigmas: torch.Tensor,
    embeds: torch.Tensor,
    ids: torch.Tensor,
) -> torch.Tensor:
    """The velocity of the picture to be made, [B, tokens, 64]; that of the given half is cut off, as the pipeline does.

    ``ids`` are those of :func:`training.edit_prompts.edit_ids`.
    """
    joint = torch.cat([noisy, given], dim=1)
    return predict_velocity(transformer, joint, sigmas, embeds, ids)[:, : noisy.shape[1]]


def edit_losses(
    transformer: Any, text_encoder: Any, batch: EditBatch, template: EditTemplate, geometry: Geometry
) -> torch.Tensor:
    """Mean squared error of the velocity of each edit, [B] in fp32."""
    sigmas = batch.sigmas[:, None, None]
    noisy = (1 - sigmas) * batch.latents + sigmas * batch.noise
    embeds = embed_instructions(text_encoder, batch.ids, batch.positions, template)
    ids = edit_ids(geometry, batch.positions, template)
    velocity = predict_edit_velocity(transformer, noisy, batch.given, batch.sigmas, embeds, ids)
    return (velocity.float() - (batch.noise - batch.latents)).square().mean(dim=(1, 2))


@dataclass(frozen=True)
class Tasks(flow_stage.Task):
    """What both tasks need beside models and data; ``template`` is that of drawing."""

    edit_template: EditTemplate


def draw_both(
    data: EditSet, rows: torch.Tensor, step: int, tasks: Tasks, settings: EditSettings, *, full_text: bool
) -> tuple[Batch, EditBatch]:
    """The pictures ``rows`` to draw and to edit."""
    drawn = flow_stage.draw_batch(data.before, rows, step, tasks.mu, settings, full_text=full_text)
    return drawn, draw_edit_batch(data, rows, step, tasks.mu, settings, full_text=full_text)


def losses_of(state: StageState, tasks: Tasks) -> LossesOf:
    """From the tensors of a :class:`Batch` and an :class:`EditBatch`, one after the other, to the losses of each."""
    drawing_losses_of = flow_stage.losses_of(state, tasks)

    def losses(batch: Tensors) -> Tensors:
        drawn, edited = Batch(*batch[: len(Batch._fields)]), EditBatch(*batch[len(Batch._fields) :])
        transformer, text_encoder = state.modules["transformer"], state.modules["text_encoder"]
        device = edited.latents.device
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            second = edit_losses(transformer, text_encoder, edited, tasks.edit_template, tasks.geometry)
        return (*drawing_losses_of(drawn), second)

    return losses


def train_edits(
    state: StageState,
    data: EditSet,
    tasks: Tasks,
    pace: Any,
    settings: EditSettings,
    save: Callable[[], None],
    prepare: Callable[[bool], None] = lambda _full_text: None,
    step: Step | None = None,
) -> None:
    """Train until ``pace`` says stop; ``save()`` is called now and then. DivergedError where a loss is no number.

    ``prepare(full_text)`` is called before the first step of each number of text tokens: the place to compile.
    ``step(batch)`` gives the losses of a batch and leaves gradients on the weights.
    """
    step = step or step_of(losses_of(state, tasks))
    device = data.after.device
    drawing, editing = flow_stage.RunningLosses(device), flow_stage.RunningLosses(device)
    progress, prepared, last_saved = Progress("edit", 2 * settings.batch), None, pace.run_spent_s
    for rows in batches(len(data), settings.batch, settings.seed, pace.step, device):
        if pace.must_stop:
            return
        full_text = prepared is True or flow_stage.begins_full_text(pace, settings)
        if full_text is not prepared:
            prepare(full_text)
            prepared = full_text
        to_draw, to_edit = draw_both(data, rows, pace.step, tasks, settings, full_text=full_text)
        drawn, edited = step((*to_draw, *to_edit))
        rate = pace.rate(settings.rate)
        state.optimizer.step(rate, 1.0)
        for average in state.averages.values():
            average.update(pace.step)
        drawing.add(drawn, to_draw.sigmas)
        editing.add(edited, to_edit.sigmas)
        if pace.step % settings.log_every == 0:
            means = editing.means()
            losses = {"drawing": drawing.means()["loss"], "editing": means["loss"], "edit_high": means["high_sigma"]}
            state.note(pace, rate, losses)
            progress.tell(pace, losses)
        pace.step += 1
        if pace.run_spent_s - last_saved > settings.save_every_s:
            last_saved = pace.run_spent_s
            save()
