"""Trains the transformer, and the text encoder with it, by flow matching in the VAE's latents.

As the pipeline samples: ``x = (1 - sigma) * latents + sigma * noise``, and the velocity is ``noise - latents``. Sigmas
are logit-normal, above the scheduler's own shift. One prompt in ten is empty, which is the pipeline's negative prompt.
The latents of all pictures are computed once and kept on the device. In the first part of a stage only a few of each
prompt's padding tokens are shown, drawn anew for each step (:func:`training.tokens.drawn_positions`): less than half
the tokens, so more than twice the steps. The last part sees all 512, as the pipeline does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from training.data import Drawings, batches, step_generator
from training.described import CAPTIONS_EACH
from training.geometry import Geometry, image_ids, pack
from training.gradients import LossesOf, Step, Tensors, step_of
from training.optimizers import muon_and_adamw
from training.progress import Progress
from training.state import Average, StageState
from training.tokens import Template, drawn_positions, embed_prompts, text_ids
from training.vae_stage import DRAWN_AT_ONCE

HIGH_SIGMA = 0.85
ENCODING_BATCH = 128


@dataclass(frozen=True)
class FlowSettings:
    """How the transformer is trained; ``text_rate_share`` is the text encoder's part of the learning rate, and
    ``sharpness_share`` that of the norms of queries and keys.

    Sigmas lie ``sigma_offset`` above the scheduler's shift, in logits. In 16384 numbers a flat picture can be made out
    through nearly any noise: what the caption decides is decided above 0.95, and without the offset one sample in
    forty would teach it.
    """

    batch: int = 256
    rate: float = 1.0e-3
    text_rate_share: float = 0.2
    sharpness_share: float = 1.0
    decay: float = 0.998
    weight_decay: float = 0.01
    empty_prompts: float = 0.1
    sigma_offset: float = 1.3
    sigma_spread: float = 1.5
    full_text_from: float = 0.655
    random_padding: int = 16
    seed: int = 3
    log_every: int = 50
    least_full_text_s: float = 60.0
    save_every_s: float = 60.0


@dataclass(frozen=True)
class LatentSet:
    """Normalised, packed latents [N, tokens, 64] bf16 and prompts [N * CAPTIONS_EACH, LONGEST_PROMPT], on a device."""

    latents: torch.Tensor
    ids: torch.Tensor

    @classmethod
    def encode(cls, vae: Any, drawings: Drawings, ids: torch.Tensor, side: int) -> LatentSet:
        """The middle of the VAE's posterior of every picture, shifted and scaled as its config says."""
        device = drawings.things.device
        rows = []
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            for chosen in torch.arange(len(drawings), device=device).split(DRAWN_AT_ONCE):
                for pictures in drawings.render(chosen, side).split(ENCODING_BATCH):
                    latents = vae.encode(pictures).latent_dist.mode().float()
                    normal = (latents - vae.config.shift_factor) * vae.config.scaling_factor
                    rows.append(pack(normal).to(torch.bfloat16))
        return cls(torch.cat(rows), ids)


def new_state(
    transformer: Any, text_encoder: Any, settings: FlowSettings, device: torch.device, *, replay: bool = False
) -> StageState:
    """A fresh state for both, which are on ``device``; the vision tower is left as it is.

    ``replay``: a step of the optimizer is a CUDA graph, as far as it has many launches.
    """
    text_encoder.model.visual.requires_grad_(False)
    averages = {
        "transformer": Average(copy.deepcopy(transformer), transformer, settings.decay),
        "text_encoder": Average(copy.deepcopy(text_encoder), text_encoder, settings.decay),
    }
    others = [(text_encoder, settings.text_rate_share)]
    modules = {"transformer": transformer, "text_encoder": text_encoder}
    share, decay = settings.sharpness_share, settings.weight_decay
    optimizer = muon_and_adamw(transformer, others, decay, device, sharpness_share=share, replay=replay)
    return StageState(modules, averages, optimizer)


def draw_sigmas(count: int, mu: float, spread: float, generator: torch.Generator) -> torch.Tensor:
    """Sigmas [count] in 0..1: logit-normal around ``mu``, and one in eight uniform."""
    device = generator.device
    normal = torch.sigmoid(mu + spread * torch.randn(count, generator=generator, device=device))
    uniform = torch.rand(count, generator=generator, device=device)
    return torch.where(torch.arange(count, device=device) % 8 == 0, uniform, normal)


class Batch(NamedTuple):
    """What one step sees: clean latents and noise [B, tokens, 64], sigmas [B], prompts, and the text positions kept."""

    latents: torch.Tensor
    noise: torch.Tensor
    sigmas: torch.Tensor
    ids: torch.Tensor
    positions: torch.Tensor


def draw_batch(
    data: LatentSet, rows: torch.Tensor, step: int, mu: float, settings: FlowSettings, *, full_text: bool
) -> Batch:
    """The batch of a step, a function of ``settings.seed`` and ``step`` alone."""
    device = rows.device
    generator = step_generator(settings.seed, step, device)
    latents = data.latents[rows].float()
    noise = torch.randn(latents.shape, generator=generator, device=device)
    sigmas = draw_sigmas(len(rows), mu + settings.sigma_offset, settings.sigma_spread, generator)
    wording = torch.randint(CAPTIONS_EACH, (len(rows),), generator=generator, device=device)
    ids = data.ids[rows * CAPTIONS_EACH + wording]
    is_empty = torch.rand(len(rows), generator=generator, device=device) < settings.empty_prompts
    ids = torch.where(is_empty[:, None], -1, ids)
    padding = None if full_text else settings.random_padding
    positions = drawn_positions(padding, settings.seed + step, device)
    return Batch(latents, noise, sigmas, ids, positions)


@dataclass(frozen=True)
class Task:
    """What drawing needs beside models and data: the template, the geometry, and the scheduler's shift."""

    template: Template
    geometry: Geometry
    mu: float


def losses_of(state: StageState, task: Task) -> LossesOf:
    """From a :class:`Batch` to its losses, in bf16 on a GPU."""

    def losses(batch: Batch) -> Tensors:
        transformer, text_encoder = state.modules["transformer"], state.modules["text_encoder"]
        device = batch.latents.device
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            return (flow_losses(transformer, text_encoder, batch, task.template, task.geometry),)

    return losses


def flow_losses(
    transformer: Any, text_encoder: Any, batch: Batch, template: Template, geometry: Geometry
) -> torch.Tensor:
    """Mean squared error of the velocity of each sample, [B] in fp32."""
    sigmas = batch.sigmas[:, None, None]
    noisy = (1 - sigmas) * batch.latents + sigmas * batch.noise
    embeds = embed_prompts(text_encoder, batch.ids, batch.positions, template)
    ids = torch.cat([text_ids(batch.positions), image_ids(geometry, noisy.device)])
    velocity = predict_velocity(transformer, noisy, batch.sigmas, embeds, ids)
    losses: torch.Tensor = (velocity.float() - (batch.noise - batch.latents)).square().mean(dim=(1, 2))
    return losses


def predict_velocity(
    transformer: Any, noisy: torch.Tensor, sigmas: torch.Tensor, embeds: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """The transformer's forward, with the timestep kept in fp32.

    Its own takes the timestep through the dtype of the hidden states. Under autocast that is bf16, which knows every
    fourth of 1000 timesteps at most, and a request in fp32 would meet the others untrained.
    """
    hidden = transformer.x_embedder(noisy)
    modulation = transformer.time_embed(sigmas * 1000, torch.float32)
    text = transformer.context_embedder(embeds)
    rotary = transformer.pos_embed(ids)
    for block in [*transformer.transformer_blocks, *transformer.single_transformer_blocks]:
        text, hidden = block(hidden_states=hidden, encoder_hidden_states=text, temb=modulation, image_rotary_emb=rotary)
    velocity: torch.Tensor = transformer.proj_out(transformer.norm_out(hidden, modulation))
    return velocity


def train_flow(
    state: StageState,
    data: LatentSet,
    task: Task,
    pace: Any,
    settings: FlowSettings,
    save: Callable[[], None],
    prepare: Callable[[bool], None] = lambda _full_text: None,
    step: Step | None = None,
) -> None:
    """Train until ``pace`` says stop; ``save()`` is called now and then. DivergedError where the loss is no number.

    ``prepare(full_text)`` is called before the first step of each number of text tokens: the place to compile.
    ``step(batch)`` gives the losses of a batch and leaves gradients on the weights.
    """
    step = step or step_of(losses_of(state, task))
    device = data.latents.device
    logged, last_saved = RunningLosses(device), pace.run_spent_s
    progress, prepared = Progress("transformer", settings.batch), None
    for rows in batches(len(data.latents), settings.batch, settings.seed, pace.step, device):
        if pace.must_stop:
            return
        full_text = prepared is True or begins_full_text(pace, settings)
        if full_text is not prepared:
            prepare(full_text)
            prepared = full_text
        batch = draw_batch(data, rows, pace.step, task.mu, settings, full_text=full_text)
        (losses,) = step(batch)
        rate = pace.rate(settings.rate)
        state.optimizer.step(rate, 1.0)
        for average in state.averages.values():
            average.update(pace.step)
        logged.add(losses, batch.sigmas)
        if pace.step % settings.log_every == 0:
            losses_since = logged.means()
            state.note(pace, rate, losses_since)
            progress.tell(pace, losses_since)
        pace.step += 1
        if pace.run_spent_s - last_saved > settings.save_every_s:
            last_saved = pace.run_spent_s
            save()


def begins_full_text(pace: Any, settings: FlowSettings) -> bool:
    """Whether all text tokens are to be seen from now on.

    Not for the last seconds of a run that others follow: compiling would eat them, and the next one compiles again.
    """
    is_worth_it = pace.is_last_run or pace.run_left_s >= settings.least_full_text_s
    return pace.share >= settings.full_text_from and is_worth_it


class RunningLosses:
    """Mean losses since they were last asked for, of all sigmas and of high ones, without waiting for the device."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(4, device=device)

    def add(self, losses: torch.Tensor, sigmas: torch.Tensor) -> None:
        """Losses [B] at ``sigmas`` [B]."""
        is_high = (sigmas > HIGH_SIGMA).float()
        ones = torch.ones_like(losses)
        self._sums += torch.stack([losses.sum(), ones.sum(), (losses * is_high).sum(), is_high.sum()])

    def means(self) -> dict[str, float]:
        """The means; the count starts anew."""
        total, count, high, high_count = self._sums.tolist()
        self._sums.zero_()
        return {"loss": total / max(count, 1), "high_sigma": high / max(high_count, 1)}
