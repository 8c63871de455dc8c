"""Trains the text encoder before anything is drawn: say the whole scene at any token after the prompt.

The pipeline pads every prompt to 512 tokens, and the transformer attends to all of them, without a mask. Each padding
token sees the whole prompt and nothing else. So these are asked, by linear heads that are thrown away afterwards, for
everything the caption says: how many things, which relation, and of each thing in its place shape, colour, pattern,
size. What the transformer then reads is the scene, whatever the wording and the order of words.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from training.captions import Claims
from training.data import batches
from training.described import Described
from training.optimizers import adamw
from training.progress import Progress
from training.state import Average, StageState
from training.tokens import LONGEST_PROMPT, Template, drawn_positions, embed_prompts, padded_ids
from training.vocabulary import COLOUR_NAMES, PATTERNS, PLACES, RELATIONS, SHAPES, SIZES

UNSAID = -100
SLOTS = 3
THING_QUESTIONS: dict[str, tuple[str, ...]] = {
    "shape": SHAPES,
    "colour": COLOUR_NAMES,
    "pattern": PATTERNS,
    "size": SIZES,
    "place": PLACES,
}
ALL_RELATIONS = (*RELATIONS, "any")
RANDOM_PADDING = 32
ASKED_PADDING = 8


def questions() -> list[tuple[str, int]]:
    """Every question and how many answers it has, in the order of :func:`answers`."""
    asked = [("things", SLOTS), ("relation", len(ALL_RELATIONS)), ("background", len(COLOUR_NAMES) + 1)]
    for slot in range(SLOTS):
        asked += [(f"{name} {slot}", len(names)) for name, names in THING_QUESTIONS.items()]
    return asked


def answers(claims: Claims) -> list[int]:
    """The right answer to each question, UNSAID where the caption leaves it open."""
    background = len(COLOUR_NAMES) if claims.background is None else COLOUR_NAMES.index(claims.background)
    found = [len(claims.things) - 1, ALL_RELATIONS.index(claims.relation), background]
    for slot in range(SLOTS):
        thing = claims.things[slot] if slot < len(claims.things) else None
        for name, names in THING_QUESTIONS.items():
            said = getattr(thing, name) if thing else None
            found.append(UNSAID if said is None else names.index(said))
    return found


class Heads(torch.nn.Module):
    """One linear layer for all questions, thrown away after the stage."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.sizes = [size for _, size in questions()]
        self.linear = torch.nn.Linear(hidden, sum(self.sizes))

    def forward(self, embeds: torch.Tensor) -> list[torch.Tensor]:
        """Logits of each question, [B, L, answers]."""
        return list(self.linear(embeds).split(self.sizes, dim=-1))


@dataclass(frozen=True)
class TextSettings:
    """How the text encoder is trained."""

    batch: int = 512
    rate: float = 2.0e-3
    decay: float = 0.998
    seed: int = 2
    log_every: int = 25


@dataclass(frozen=True)
class Prompts:
    """Captions on a device: ids [N, LONGEST_PROMPT] and answers [N, questions]; ``CAPTIONS_EACH`` rows a scene."""

    ids: torch.Tensor
    answers: torch.Tensor

    @classmethod
    def of(cls, described: Sequence[Described], tokenizer: Any, device: torch.device) -> Prompts:
        """All captions of all scenes."""
        captions = [caption for item in described for caption in item.captions]
        ids = padded_ids(tokenizer, [caption.text for caption in captions])
        right = torch.tensor([answers(caption.claims) for caption in captions])
        return cls(ids.to(device), right.to(device))


def new_state(text_encoder: Any, settings: TextSettings, device: torch.device) -> StageState:
    """A fresh state for the text encoder; the vision tower is left as it is."""
    text_encoder.model.visual.requires_grad_(False)
    heads = Heads(text_encoder.config.text_config.hidden_size).to(device)
    average = Average(copy.deepcopy(text_encoder), text_encoder, settings.decay)
    optimizer = adamw([(text_encoder, 1.0), (heads, 1.0)], 0.01, device)
    return StageState({"text_encoder": text_encoder, "heads": heads}, {"text_encoder": average}, optimizer)


def text_loss(
    text_encoder: Any, heads: Any, prompts: Prompts, rows: torch.Tensor, template: Template, step: int
) -> Any:
    """Mean cross-entropy over the questions that each caption answers, and the share that is answered right."""
    positions = drawn_positions(RANDOM_PADDING, step, rows.device)
    embeds = embed_prompts(text_encoder, prompts.ids[rows], positions, template)
    # The last of the random padding, and the first token after the longest prompt.
    asked = embeds[:, LONGEST_PROMPT - 1 :: (RANDOM_PADDING + 1) // ASKED_PADDING]
    losses, right = [], []
    for column, logits in enumerate(heads(asked.float())):
        target = prompts.answers[rows, column, None].expand(-1, asked.shape[1])
        said = target != UNSAID
        losses.append(
            functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=UNSAID, reduction="sum")
        )
        right.append(((logits.argmax(-1) == target) & said).sum())
    asked_count = (prompts.answers[rows] != UNSAID).sum() * asked.shape[1]
    return torch.stack(losses).sum() / asked_count, torch.stack(right).sum() / asked_count


def train_text(state: StageState, prompts: Prompts, template: Template, pace: Any, settings: TextSettings) -> None:
    """Train until ``pace`` says stop; DivergedError where the loss is no number."""
    text_encoder, heads = state.modules["text_encoder"], state.modules["heads"]
    device, progress = prompts.ids.device, Progress("text", settings.batch)
    for rows in batches(len(prompts.ids), settings.batch, settings.seed, pace.step, device):
        if pace.must_stop:
            return
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss, right = text_loss(text_encoder, heads, prompts, rows, template, pace.step)
        loss.backward()
        rate = pace.rate(settings.rate)
        state.optimizer.step(rate, 1.0)
        state.averages["text_encoder"].update(pace.step)
        if pace.step % settings.log_every == 0:
            losses = {"loss": loss.item(), "wrong": 1 - right.item()}
            state.note(pace, rate, losses)
            progress.tell(pace, losses)
        pace.step += 1
