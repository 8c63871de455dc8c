"""A picture drawn in the terminal itself, where that can show one; anywhere else nothing.

What a terminal can do is told by its name in the environment alone. Asking it, which is the only way to learn of
sixels, would leave the answer in the user's shell wherever it comes late: over a slow line, in a multiplexer. kitty and
ghostty take PNGs by kitty's protocol, iTerm2 and WezTerm by iTerm2's; any other with 256 colours or more gets half
blocks, two pixels a cell. Logs, pipes, ``TERM=dumb``, ``NO_COLOR`` and CI get nothing: the path says it all there.
"""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO

if TYPE_CHECKING:
    from PIL.Image import Image
    from rich.text import Text

Way = Literal["kitty", "iterm", "cells"]

KITTY_TERMS = ("xterm-kitty", "xterm-ghostty")
ITERM_PROGRAMS = ("iTerm.app", "WezTerm")
NO_TERMS = ("", "dumb", "unknown")
MULTIPLEXERS = ("TMUX", "STY")
MOST_COLUMNS = 64
LARGEST_SIDE = 512
KITTY_CHUNK = 4096
HALF_BLOCK = "▀"


def show_picture(path: Path, environment: Mapping[str, str], stream: TextIO | None = None) -> bool:
    """Draw the PNG at ``path`` on ``stream`` (stdout), if that is a terminal that can show it; whether it was drawn."""
    stream = sys.stdout if stream is None else stream
    way = way_of(environment, stream)
    if way is None or path.suffix.lower() != ".png":
        return False
    from PIL import Image

    try:
        with Image.open(path) as opened:
            picture = opened.convert("RGB")
    except OSError:
        return False
    picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    if way == "cells":
        _print_cells(picture, stream)
    else:
        stream.write((_kitty if way == "kitty" else _iterm)(_png(picture)) + "\n")
        stream.flush()
    return True


def way_of(environment: Mapping[str, str], stream: TextIO) -> Way | None:
    """How a picture can be drawn on ``stream``; None where it is no terminal, or none that is known to show one."""
    term, program = environment.get("TERM", ""), environment.get("TERM_PROGRAM", "")
    is_ci = environment.get("CI", "").lower() not in ("", "0", "false")
    if not stream.isatty() or term in NO_TERMS or environment.get("NO_COLOR") or is_ci:
        return None
    is_inside_another = any(environment.get(name) for name in MULTIPLEXERS) or term.startswith(("screen", "tmux"))
    if not is_inside_another:
        if term in KITTY_TERMS:
            return "kitty"
        # ssh forwards LC_TERMINAL and no TERM_PROGRAM; where both are there, the second one is the nearer terminal.
        if program in ITERM_PROGRAMS or (not program and environment.get("LC_TERMINAL") == "iTerm2"):
            return "iterm"
    has_colours = environment.get("COLORTERM") in ("truecolor", "24bit") or "256color" in term
    is_unicode = (stream.encoding or "").lower().replace("-", "") == "utf8"
    return "cells" if has_colours and is_unicode else None


def _png(picture: Image) -> str:
    """The picture as a PNG in base64."""
    content = io.BytesIO()
    picture.save(content, "PNG")
    return base64.b64encode(content.getvalue()).decode("ascii")


def _kitty(content: str) -> str:
    """kitty's protocol: a PNG in pieces, shown at the cursor, no answer wanted."""
    pieces = [content[start : start + KITTY_CHUNK] for start in range(0, len(content), KITTY_CHUNK)]
    told = []
    for number, piece in enumerate(pieces):
        head = "a=T,f=100," if number == 0 else ""
        told.append(f"\x1b_G{head}q=2,m={int(number < len(pieces) - 1)};{piece}\x1b\\")
    return "".join(told)


def _iterm(content: str) -> str:
    """iTerm2's protocol: one file, shown inline."""
    return f"\x1b]1337;File=inline=1;preserveAspectRatio=1:{content}\x07"


def _print_cells(picture: Image, stream: TextIO) -> None:
    """Two pixels a cell, the upper one in the foreground; rich finds the nearest of the terminal's colours."""
    from rich.console import Console

    console = Console(file=stream)
    columns = min(MOST_COLUMNS, console.width, picture.width)
    rows = max(1, round(columns * picture.height / picture.width / 2))
    for line in _cells(picture.resize((columns, 2 * rows))):
        console.print(line, no_wrap=True, crop=True, highlight=False)


def _cells(picture: Image) -> Iterator[Text]:
    from rich.color import Color
    from rich.style import Style
    from rich.text import Text

    pixels = picture.load()
    assert pixels is not None, "the picture was made here"
    for top in range(0, picture.height, 2):
        line = Text()
        for column in range(picture.width):
            upper, lower = (Color.from_rgb(*pixels[column, row]) for row in (top, top + 1))  # type: ignore[misc]
            line.append(HALF_BLOCK, Style(color=upper, bgcolor=lower))
        yield line
