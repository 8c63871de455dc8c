"""Trains the VAE: absolute and squared error, edges, a little KL; latents survive noise and being made smaller.

Noise of up to half the latents' spread makes the decoder forgive what a flow model gets a little wrong (measured in
training/README.md, Rehearsed). Another term decodes latents that were averaged two by two and wants the picture at half
its size: latents then carry what a picture shows at low frequencies, which a flow model learns sooner. Most of the time
crops of half the side are seen, at a quarter of the cost. When it is done, the scale and shift of its latents are
measured on fresh renders.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from training.data import Drawings, batches, step_generator
from training.optimizers import adamw
from training.progress import Progress
from training.state import Average, StageState

WHOLE_PICTURES_FROM = 0.65
KL_WEIGHT = 3e-4
SMALLER_WEIGHT = 0.25
EDGE_WEIGHT = 0.5
DRAWN_AT_ONCE = 512
LARGEST_KEPT_BYTES = {"cuda": 24 * 2**30, "cpu": 2**30}


@dataclass(frozen=True)
class VaeSettings:
    """How the VAE is trained; ``batch`` counts whole pictures, crops are four times as many."""

    batch: int = 32
    rate: float = 1.0e-3
    decay: float = 0.999
    latent_noise: float = 0.5
    seed: int = 1
    log_every: int = 25
    save_every_s: float = 120.0


class Renders:
    """Pictures of ``drawings``: drawn once, in 8 bits, where they fit; anew each time where they do not.

    Drawing a batch is thousands of small kernels with waits between them, about a third of a step on a card.
    """

    def __init__(self, drawings: Drawings, side: int) -> None:
        self._drawings, self._side = drawings, side
        self._kept: torch.Tensor | None = None
        device = drawings.things.device
        if 3 * side * side * len(drawings) <= LARGEST_KEPT_BYTES.get(device.type, 0):
            self._kept = torch.empty(len(drawings), 3, side, side, dtype=torch.uint8, device=device)
            for chosen in torch.arange(len(drawings), device=device).split(DRAWN_AT_ONCE):
                self._kept[chosen] = ((drawings.render(chosen, side) + 1) * 127.5).round().to(torch.uint8)

    def __call__(self, chosen: torch.Tensor) -> torch.Tensor:
        """The pictures with these numbers, [B, 3, S, S] in -1..1."""
        if self._kept is None:
            return self._drawings.render(chosen, self._side)
        return self._kept[chosen].float() / 127.5 - 1


def new_state(vae: Any, settings: VaeSettings, device: torch.device) -> StageState:
    """A fresh state for ``vae``, which is on ``device``."""
    average = Average(copy.deepcopy(vae), vae, settings.decay)
    return StageState({"vae": vae}, {"vae": average}, adamw([(vae, 1.0)], 1e-4, device))


def vae_losses(
    vae: Any, pictures: torch.Tensor, generator: torch.Generator, latent_noise: float
) -> dict[str, torch.Tensor]:
    """The terms of the loss for pictures [B, 3, S, S] in -1..1, each a scalar in fp32."""
    posterior = vae.encode(pictures).latent_dist
    mean, log_variance = posterior.mean.float(), posterior.logvar.float()
    noise = torch.randn(mean.shape, generator=generator, device=mean.device)
    latents = mean + torch.exp(0.5 * log_variance) * noise
    if latent_noise:
        latents = latents + disturbance(mean, latent_noise, generator)
    drawn = vae.decode(latents.to(pictures.dtype), return_dict=False)[0].float()
    terms = {
        "picture": _difference(drawn, pictures),
        "kl": 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean(),
    }
    quarter = max(len(pictures) // 4, 1)
    smaller = vae.decode(functional.avg_pool2d(latents[:quarter], 2).to(pictures.dtype), return_dict=False)[0].float()
    terms["smaller"] = functional.l1_loss(smaller, functional.avg_pool2d(pictures[:quarter], 2))
    return terms


def disturbance(mean: torch.Tensor, most: float, generator: torch.Generator) -> torch.Tensor:
    """Noise for latents ``mean`` [B, C, h, w]: of each picture another share of their spread, up to ``most``.

    The gradient knows that larger latents bring more noise; else the encoder would outgrow it for nothing.
    """
    amounts = most * torch.rand(len(mean), 1, 1, 1, generator=generator, device=mean.device)
    return amounts * mean.std() * torch.randn(mean.shape, generator=generator, device=mean.device)


def _difference(drawn: torch.Tensor, pictures: torch.Tensor) -> torch.Tensor:
    error = drawn - pictures
    edges = (error[..., 1:] - error[..., :-1]).abs().mean() + (error[..., 1:, :] - error[..., :-1, :]).abs().mean()
    return error.abs().mean() + error.square().mean() + EDGE_WEIGHT * edges


def total(terms: dict[str, torch.Tensor]) -> torch.Tensor:
    """The weighted sum that is minimised."""
    return terms["picture"] + KL_WEIGHT * terms["kl"] + SMALLER_WEIGHT * terms["smaller"]


def train_vae(state: StageState, drawings: Drawings, side: int, pace: Any, settings: VaeSettings, save: Any) -> None:
    """Train until ``pace`` says stop; ``save()`` is called now and then. DivergedError where a loss is no number."""
    vae, device = state.modules["vae"], drawings.things.device
    renders = Renders(drawings, side)
    last_saved, progress = pace.run_spent_s, Progress("vae", settings.batch)
    whole = batches(len(drawings), settings.batch, settings.seed, pace.step, device)
    many = batches(len(drawings), 4 * settings.batch, settings.seed, pace.step, device)
    while not pace.must_stop:
        generator = step_generator(settings.seed, pace.step, device)
        if pace.share < WHOLE_PICTURES_FROM:
            pictures = _cropped(renders(next(many)), pace.step, settings.seed)
        else:
            pictures = renders(next(whole))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            terms = vae_losses(vae, pictures, generator, settings.latent_noise)
        rate = pace.rate(settings.rate)
        total(terms).backward()
        state.optimizer.step(rate, 1.0)
        state.averages["vae"].update(pace.step)
        if pace.step % settings.log_every == 0:
            losses = {name: value.item() for name, value in terms.items()}
            state.note(pace, rate, losses)
            progress.tell(pace, losses)
        pace.step += 1
        if pace.run_spent_s - last_saved > settings.save_every_s:
            last_saved = pace.run_spent_s
            save()


def _cropped(pictures: torch.Tensor, step: int, seed: int) -> torch.Tensor:
    """A window of half the side, at one place of the 8-pixel grid for the whole batch."""
    side = pictures.shape[-1] // 2
    left, top = torch.randint(0, side // 8 + 1, (2,), generator=torch.Generator().manual_seed(seed + 7 * step)).tolist()
    return pictures[..., 8 * top : 8 * top + side, 8 * left : 8 * left + side]


@torch.no_grad()
def measure_latents(vae: Any, drawings: Drawings, side: int, batch: int) -> tuple[float, float]:
    """``scaling_factor`` and ``shift_factor`` that give the latents of ``drawings`` mean 0 and spread 1."""
    sums = torch.zeros(2, dtype=torch.float64)
    count = 0
    for start in range(0, len(drawings), batch):
        chosen = torch.arange(start, min(start + batch, len(drawings)), device=drawings.things.device)
        latents = vae.encode(drawings.render(chosen, side)).latent_dist.mode().double().cpu()
        sums += torch.stack([latents.sum(), latents.square().sum()])
        count += latents.numel()
    mean = (sums[0] / count).item()
    spread = (sums[1] / count - mean**2).sqrt().item()
    return 1 / spread, mean


@torch.no_grad()
def reconstructed(vae: Any, drawings: Drawings, side: int, batch: int) -> tuple[list[NDArray[np.uint8]], list[float]]:
    """Every picture [S, S, 3] decoded from the middle of its posterior, in 8 bits, and its PSNR in dB."""
    kept: list[NDArray[np.uint8]] = []
    psnr: list[float] = []
    for chosen in torch.arange(len(drawings), device=drawings.things.device).split(batch):
        pictures = drawings.render(chosen, side)
        drawn = vae.decode(vae.encode(pictures).latent_dist.mode(), return_dict=False)[0]
        first, second = (((image.clamp(-1, 1) + 1) * 127.5).round() for image in (pictures, drawn))
        error = (first - second).square().mean(dim=(1, 2, 3)).clamp(min=1e-6)
        psnr += (10 * torch.log10(255**2 / error)).tolist()
        kept += list(second.to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy())
    return kept, psnr
