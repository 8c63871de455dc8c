"""Distils the editing transformer to 8 steps without guidance, as LongCat-Image-Edit-Turbo is: a low-rank difference.

The teacher is the editing pipeline at its guidance, with two Euler steps where the student has one: the 8 sigmas of
the Turbo's schedule are every second of the teacher's 16. From the same latents, at each of the 8, the student's one
velocity shall be the teacher's mean velocity over the segment,

    loss = | velocity(x, sigma) - (teacher's x at the next sigma - x) / (next sigma - sigma) | ^ 2,

so that one step lands where the teacher does. A batch goes from noise to the picture: half of it on by its own steps,
so that the student learns to go on from where it gets to by itself, the other half by the teacher's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from training.data import batches, step_generator
from training.edit_prompts import edit_ids, embed_instructions
from training.edit_stage import EditSet, Tasks, predict_edit_velocity
from training.low_rank import RANK, Factors
from training.optimizers import adamw
from training.progress import Progress
from training.state import Average, StageState
from training.tokens import drawn_positions

SEGMENTS = 8


@dataclass(frozen=True)
class TurboSettings:
    """How the Turbo is distilled. A batch goes through SEGMENTS steps, each an update; curves have whole batches.

    All text tokens from the start: here a step waits for launches, and on an H200 64 of them won 10 % of the time, and
    compiling twice lost 40 s.
    """

    batch: int = 64
    rate: float = 1.0e-3
    decay: float = 0.998
    rank: int = RANK
    guidance: float = 2.5
    teacher_steps: int = 2
    full_text_from: float = 0.0
    random_padding: int = 16
    seed: int = 5
    log_every: int = 4 * SEGMENTS
    save_every_s: float = 60.0


@dataclass(frozen=True)
class Schedule:
    """Sigmas of all the teacher's steps and the final 0, [SEGMENTS * teacher_steps + 1] on a device, descending."""

    sigmas: torch.Tensor
    teacher_steps: int

    @classmethod
    def of(cls, scheduler: Any, mu: float, teacher_steps: int, device: torch.device) -> Schedule:
        """The pipeline's own schedule of so many steps."""
        steps = SEGMENTS * teacher_steps
        scheduler.set_timesteps(sigmas=[1 - step / steps for step in range(steps)], mu=mu, device=device)
        return cls(scheduler.sigmas.float(), teacher_steps)

    def segment(self, number: int) -> torch.Tensor:
        """The sigmas [teacher_steps + 1] of one segment, first and last included."""
        start = number * self.teacher_steps
        return self.sigmas[start : start + self.teacher_steps + 1]


@dataclass(frozen=True)
class Conditions:
    """What stays the same along a trajectory: latents given [B, tokens, 64], embeddings with the instruction and
    without, and position ids.
    """

    given: torch.Tensor
    embeds: torch.Tensor
    empty: torch.Tensor
    ids: torch.Tensor


def new_state(transformer: Any, settings: TurboSettings, device: torch.device) -> StageState:
    """Factors mounted on ``transformer``, which is the student from here on, and their average."""
    factors = Factors(transformer, settings.rank, settings.seed)
    average = Average(copy.deepcopy(factors), factors, settings.decay)
    return StageState({"factors": factors}, {"factors": average}, adamw([(factors, 1.0)], 0.0, device))


@dataclass(frozen=True)
class Distillation:
    """Everything that a step needs. ``teacher`` is the transformer without factors, ``text_encoder`` serves both."""

    student: Any
    teacher: Any
    text_encoder: Any
    data: EditSet
    tasks: Tasks
    schedule: Schedule
    settings: TurboSettings

    @torch.no_grad()
    def conditions(self, rows: torch.Tensor, step: int, *, full_text: bool) -> Conditions:
        """The conditions of a step, a function of ``settings.seed`` and ``step`` alone."""
        padding = None if full_text else self.settings.random_padding
        positions = drawn_positions(padding, self.settings.seed + step, rows.device)
        template, ids = self.tasks.edit_template, self.data.instructions[rows]
        with _autocast(rows.device):
            embeds = embed_instructions(self.text_encoder, ids, positions, template)
            empty = embed_instructions(self.text_encoder, torch.full_like(ids[:1], -1), positions, template)
        places = edit_ids(self.tasks.geometry, positions, template)
        return Conditions(self.data.before.latents[rows].float(), embeds, empty.expand_as(embeds), places)

    @torch.no_grad()
    def teacher_end(self, start: torch.Tensor, number: int, conditions: Conditions) -> torch.Tensor:
        """Where the teacher's guided Euler steps through a segment end that begin at ``start`` [B, tokens, 64] fp32."""
        latents, sigmas = start, self.schedule.segment(number)
        given = conditions.given.repeat(2, 1, 1)
        embeds = torch.cat([conditions.embeds, conditions.empty])
        for sigma, following in pairwise(sigmas):
            both = latents.repeat(2, 1, 1)
            with _autocast(start.device):
                velocities = predict_edit_velocity(
                    self.teacher, both, given, sigma.expand(len(both)), embeds, conditions.ids
                )
            conditional, unconditional = velocities.float().chunk(2)
            guided = unconditional + self.settings.guidance * (conditional - unconditional)
            latents = latents + (following - sigma) * guided
        return latents

    def segment(
        self, start: torch.Tensor, number: int, conditions: Conditions
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The loss of a segment, and where student and teacher end, [B, tokens, 64] fp32 without a graph."""
        sigmas = self.schedule.segment(number)
        length = sigmas[-1] - sigmas[0]
        end = self.teacher_end(start, number, conditions)
        with _autocast(start.device):
            velocity = predict_edit_velocity(
                self.student, start, conditions.given, sigmas[0].expand(len(start)), conditions.embeds, conditions.ids
            ).float()
        loss = (velocity - (end - start) / length).square().mean()
        return loss, start + length * velocity.detach(), end


def train_turbo(
    state: StageState,
    distillation: Distillation,
    pace: Any,
    save: Callable[[], None],
    prepare: Callable[[bool], None] = lambda _full_text: None,
) -> None:
    """Train until ``pace`` says stop, in whole batches of SEGMENTS steps; ``save()`` is called now and then.

    DivergedError where a loss is no number. ``prepare(full_text)`` is called before the first step of each number of
    text tokens: the place to compile.
    """
    settings, data = distillation.settings, distillation.data
    device = data.after.device
    progress, prepared, last_saved = Progress("turbo", settings.batch), None, pace.run_spent_s
    for rows in batches(len(data), settings.batch, settings.seed, pace.step // SEGMENTS, device):
        if pace.must_stop:
            return
        full_text = prepared is True or pace.share >= settings.full_text_from
        if full_text is not prepared:
            prepare(full_text)
            prepared = full_text
        rate, begun_at = pace.rate(settings.rate), pace.step
        losses = _trajectory(state, distillation, rows, pace, rate, full_text=full_text)
        if begun_at % settings.log_every == 0:
            values = losses.tolist()
            point = {"loss": sum(values) / SEGMENTS, "first": values[0], "last": values[-1]}
            state.note(pace, rate, point)
            progress.tell(pace, point)
        if pace.run_spent_s - last_saved > settings.save_every_s:
            last_saved = pace.run_spent_s
            save()


def _trajectory(
    state: StageState, distillation: Distillation, rows: torch.Tensor, pace: Any, rate: float, *, full_text: bool
) -> torch.Tensor:
    """A batch from noise to the picture, an update a segment; the losses [SEGMENTS]."""
    device = rows.device
    conditions = distillation.conditions(rows, pace.step, full_text=full_text)
    generator = step_generator(distillation.settings.seed, pace.step, device)
    latents = torch.randn(conditions.given.shape, generator=generator, device=device)
    goes_on_alone = (torch.arange(len(rows), device=device) % 2 == 0)[:, None, None]
    losses = torch.zeros(SEGMENTS, device=device)
    for number in range(SEGMENTS):
        loss, own_end, teachers_end = distillation.segment(latents, number, conditions)
        loss.backward()
        state.optimizer.step(rate, 1.0)
        state.averages["factors"].update(pace.step)
        pace.step += 1
        losses[number] = loss.detach()
        latents = torch.where(goes_on_alone, own_end, teachers_end)
    return losses


def _autocast(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
