"""Scenes and captions as tensors, drawn once a run; the stage ``data`` draws them while the VAE is trained."""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from training.data import Drawings
from training.described import CAPTIONS_EACH, Described, draw_described
from training.folders import Run
from training.state import save_whole
from training.text_stage import Prompts
from training.tokens import build_tokenizer

MADE_BY = ("captions", "described", "edits", "rendering", "scenes", "subsets", "tokens", "vocabulary")
"""The modules here that decide what the data are."""


@dataclass(frozen=True)
class Dataset:
    """N scenes and their prompts, ``CAPTIONS_EACH`` rows of these a scene."""

    drawings: Drawings
    prompts: Prompts

    @classmethod
    def of(cls, described: Sequence[Described]) -> Dataset:
        """On the CPU."""
        device = torch.device("cpu")
        drawings = Drawings.of([item.scene for item in described], device)
        return cls(drawings, Prompts.of(described, build_tokenizer(), device))

    def first(self, count: int, device: torch.device) -> Dataset:
        """The first ``count`` scenes, on ``device``."""
        captions = count * CAPTIONS_EACH
        drawings = Drawings(self.drawings.backgrounds[:count].to(device), self.drawings.things[:count].to(device))
        prompts = Prompts(self.prompts.ids[:captions].to(device), self.prompts.answers[:captions].to(device))
        return Dataset(drawings, prompts)

    def save(self, path: Path) -> None:
        """Write it to ``path``, by a rename."""
        path.parent.mkdir(parents=True, exist_ok=True)
        save_whole({**vars(self.drawings), **vars(self.prompts)}, path)

    @classmethod
    def load(cls, path: Path) -> Dataset:
        """What :meth:`save` wrote."""
        kept = torch.load(path, map_location="cpu", weights_only=True)
        return cls(Drawings(kept["backgrounds"], kept["things"]), Prompts(kept["ids"], kept["answers"]))


def code_key() -> str:
    """Eight hex digits over the source of ``MADE_BY``: data of other code have another name, and are not read."""
    source = b"".join((Path(__file__).parent / f"{name}.py").read_bytes() for name in MADE_BY)
    return f"{zlib.crc32(source):08x}"


def prepared(run: Run, options: argparse.Namespace, device: torch.device) -> Dataset:
    """The run's scenes, as many as ``options`` say: read where they have been drawn, else drawn and kept.

    They depend on seed and subset alone, never on the number of workers; more of them begin with the same ones.
    """
    path = run.folder / "data" / f"drawn-{code_key()}-{options.data_seed}-{options.subset}.pt"
    if path.is_file():
        kept = Dataset.load(path)
        if len(kept.drawings) >= options.scenes:
            return kept.first(options.scenes, device)
    drawn = Dataset.of(draw_described(options.data_seed, options.scenes, options.workers, subset=options.subset))
    drawn.save(path)
    return drawn.first(options.scenes, device)
