"""``python -m training.grid`` (``make grid``): eight fixed prompts and what the embedded model draws, in one file.

Two rows of four, each picture over its prompt: a JPEG at the best quality of which it is not larger than 300 kB.
"""

from __future__ import annotations

import argparse
import io
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fuseproof.errors import FuseproofError
from fuseproof.harness.atomic_files import write_bytes_atomically
from training.options import finite_number, require_checkpoint, require_writable, seed, told, whole_number

PROMPTS = (
    "a red circle above a blue square on a white background",
    "a small green triangle to the left of a large yellow star on a black background",
    "a striped purple diamond in the middle on a gray background",
    'a large orange letter "K" on a cyan background',
    "a small white circle inside a large brown square on a green background",
    "a pink ring below a black cross on a yellow background",
    "from left to right: a red square, a yellow circle and a blue triangle, white background",
    "a dotted cyan circle in the upper left corner on a purple background",
)
COLUMNS = 4
LARGEST_BYTES = 300_000
QUALITIES = (95, 92, 88, 84, 80, 75, 70, 60, 50)
MARGIN = 12
CAPTION_ROWS = 3
LINE_HEIGHT = 18
FONT_SIZE = 14
LETTERS_A_LINE = 36

Picture = NDArray[np.uint8]


def sheet(pictures: Sequence[Picture], captions: Sequence[str]) -> Image.Image:
    """The pictures [S, S, 3] in rows of four, each over its caption, on white."""
    side = pictures[0].shape[0]
    width, height = side + MARGIN, side + MARGIN + CAPTION_ROWS * LINE_HEIGHT
    rows = -(-len(pictures) // COLUMNS)
    drawn = Image.new("RGB", (COLUMNS * width + MARGIN, rows * height + MARGIN), "white")
    pen, font = ImageDraw.Draw(drawn), ImageFont.load_default(FONT_SIZE)
    for number, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
        left, top = MARGIN + number % COLUMNS * width, MARGIN + number // COLUMNS * height
        drawn.paste(Image.fromarray(picture), (left, top))
        pen.rectangle((left - 1, top - 1, left + side, top + side), outline="lightgray")
        for line, text in enumerate(textwrap.wrap(caption, LETTERS_A_LINE)[:CAPTION_ROWS]):
            pen.text((left, top + side + 4 + line * LINE_HEIGHT), text, fill="black", font=font)
    return drawn


def encoded(drawn: Image.Image) -> bytes:
    """A JPEG of at most 300 kB; a ValueError where even the lowest quality is larger."""
    for quality in QUALITIES:
        content = io.BytesIO()
        drawn.save(content, "JPEG", quality=quality, optimize=True)
        if content.tell() <= LARGEST_BYTES:
            return content.getvalue()
    raise ValueError(f"the grid has {content.tell()} bytes at quality {quality}; {LARGEST_BYTES} are the most")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    from training.evaluate import EMBEDDED

    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    options.add_argument("--checkpoint", default=EMBEDDED, help="a folder, or embedded:longcat-image")
    options.add_argument("--steps", type=whole_number(1), default=20, help="of denoising")
    options.add_argument("--guidance", type=finite_number(0), default=4.5, help="scale")
    options.add_argument("--seed", type=seed, default=0, help="of the first prompt; the others count from it")
    options.add_argument("--output", type=Path, default=Path("docs/embedded-grid.jpg"), help="the JPEG")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Draw, write, and print the path."""
    chosen = parser().parse_args(arguments)
    return told(lambda: _draw(chosen))


def _draw(chosen: argparse.Namespace) -> int:
    from training.evaluate import checkpoint_folder, draw, load

    folder = require_checkpoint(checkpoint_folder(chosen.checkpoint))
    if chosen.output.is_dir():
        raise FuseproofError(f"--output: {chosen.output} is a folder.", next_step="Name the JPEG to be written.")
    require_writable(chosen.output.parent)
    pipe = load(folder, torch.device("cpu"))
    sampling = {"steps": chosen.steps, "guidance": chosen.guidance, "first_seed": chosen.seed}
    pictures = list(draw(pipe, PROMPTS, batch=1, **sampling))
    content = encoded(sheet(pictures, PROMPTS))
    write_bytes_atomically(chosen.output, content)
    sys.stdout.write(f"{chosen.output}: {len(PROMPTS)} prompts, {len(content) / 1e3:.0f} kB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
