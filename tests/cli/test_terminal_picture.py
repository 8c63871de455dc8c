"""A picture in the terminal: in those that name themselves; never a byte of it in a log, a pipe or a dumb terminal."""

from __future__ import annotations

import base64
import io
import re
from importlib import import_module
from pathlib import Path

import pytest
from PIL import Image

from fuseproof.cli.terminal_picture import show_picture, way_of
from tests.cli.desk import SMALL, Desk

COLOURS = {"TERM": "xterm-256color"}


class Screen(io.StringIO):
    """A stream that is, or is not, a terminal."""

    def __init__(self, *, is_terminal: bool = True, encoding: str = "utf-8") -> None:
        super().__init__()
        self._is_terminal, self._encoding = is_terminal, encoding

    def isatty(self) -> bool:
        return self._is_terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """Red above blue, too large to be sent as it is."""
    drawn = Image.new("RGB", (1024, 1024), "red")
    drawn.paste("blue", (0, 512, 1024, 1024))
    drawn.save(tmp_path / "p.png")
    return tmp_path / "p.png"


@pytest.mark.parametrize(
    ("expected", "environment"),
    [
        ("kitty", {"TERM": "xterm-kitty"}),
        ("kitty", {"TERM": "xterm-ghostty", "TERM_PROGRAM": "ghostty"}),
        ("iterm", {**COLOURS, "TERM_PROGRAM": "iTerm.app", "LC_TERMINAL": "iTerm2"}),
        ("iterm", {**COLOURS, "TERM_PROGRAM": "WezTerm"}),
        ("iterm", {**COLOURS, "LC_TERMINAL": "iTerm2"}),
        ("cells", {**COLOURS, "TERM_PROGRAM": "vscode", "LC_TERMINAL": "iTerm2"}),
        ("cells", {"TERM": "tmux-256color", "TMUX": "/tmp/tmux", "TERM_PROGRAM": "iTerm.app"}),
        ("cells", {"TERM": "xterm-256color", "STY": "1.pts", "LC_TERMINAL": "iTerm2"}),
        ("cells", {"TERM": "xterm-256color", "KITTY_WINDOW_ID": "1"}),
        ("cells", {"TERM": "foot", "COLORTERM": "truecolor"}),
        (None, {"TERM": "linux"}),
        (None, {"TERM": "xterm"}),
        (None, {"TERM": "dumb", "COLORTERM": "truecolor"}),
        (None, {"COLORTERM": "truecolor"}),
        (None, {"TERM": "xterm-kitty", "NO_COLOR": "1"}),
        (None, {"TERM": "xterm-kitty", "CI": "true"}),
        ("kitty", {"TERM": "xterm-kitty", "NO_COLOR": "", "CI": "false"}),
    ],
)
def test_the_way_is_told_by_names_alone(expected: str | None, environment: dict[str, str]) -> None:
    screen = Screen()
    assert expected == way_of(environment, screen)
    assert "" == screen.getvalue(), "nothing is asked of the terminal"


@pytest.mark.parametrize("term", ["xterm-kitty", "xterm-256color"])
@pytest.mark.parametrize("variables", [{}, {"FORCE_COLOR": "1"}], ids=["plain", "forced colour"])
def test_a_log_gets_not_a_byte(
    term: str, variables: dict[str, str], picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    log = Screen(is_terminal=False)
    assert not show_picture(picture, {"TERM": term, "COLORTERM": "truecolor", **variables}, log)
    assert "" == log.getvalue()


def test_a_terminal_without_unicode_gets_none() -> None:
    assert way_of(COLOURS, Screen(encoding="ascii")) is None


def sent(path: Path, environment: dict[str, str]) -> str:
    screen = Screen()
    assert show_picture(path, environment, screen)
    return screen.getvalue()


def test_kitty_gets_a_small_png_in_pieces_and_is_told_not_to_answer(picture: Path) -> None:
    pieces = re.findall(r"\x1b_G([^;]*);([^\x1b]*)\x1b\\", sent(picture, {"TERM": "xterm-kitty"}))
    assert "a=T,f=100," == pieces[0][0].partition("q=2")[0]
    assert all("q=2" in keys and len(piece) <= 4096 for keys, piece in pieces)
    assert ["0"] == [keys[-1] for keys, _ in pieces[-1:]] and {"1"} >= {keys[-1] for keys, _ in pieces[:-1]}
    with Image.open(io.BytesIO(base64.b64decode("".join(piece for _, piece in pieces)))) as shown:
        assert (512, 512) == shown.size


def test_iterm_gets_one_inline_file(picture: Path) -> None:
    found = re.fullmatch(
        r"\x1b]1337;File=inline=1;preserveAspectRatio=1:(.*)\x07\n", sent(picture, {**COLOURS, "LC_TERMINAL": "iTerm2"})
    )
    assert found is not None
    with Image.open(io.BytesIO(base64.b64decode(found[1]))) as shown:
        assert ("PNG", (255, 0, 0)) == (shown.format, shown.convert("RGB").getpixel((0, 0)))


def test_any_other_gets_half_blocks_in_its_own_colours(picture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "COLORTERM", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    lines = sent(picture, COLOURS).splitlines()
    cells = {line.count("▀") for line in lines}
    assert (1, len(lines)) == (len(cells), max(cells) // 2), "square, as the picture"
    assert ("38;5;" in lines[0], "\x1b[0m" in lines[0], lines[0] == lines[-1]) == (True, True, False)


@pytest.mark.parametrize("name", ["clip.mp4", "cut.png", "none.png"])
def test_what_is_no_whole_picture_is_not_shown(name: str, picture: Path, tmp_path: Path) -> None:
    if name != "none.png":
        (tmp_path / name).write_bytes(picture.read_bytes()[:100])
    screen = Screen()
    assert not show_picture(tmp_path / name, {"TERM": "xterm-kitty"}, screen)
    assert "" == screen.getvalue()


@pytest.mark.parametrize(("expected", "flags"), [(1, ["--show"]), (0, []), (0, ["--show", "--json"])])
def test_a_picture_is_shown_when_it_is_asked_for(
    expected: int, flags: list[str], desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Path] = []
    command = import_module("fuseproof.cli.generate")  # the package's own name for it is the command
    monkeypatch.setattr(command, "show_picture", lambda path, environment: shown.append(path))
    assert 0 == desk.run("--prompt=a", *SMALL, *flags)
    assert expected == len(shown)
    assert all(path.is_file() for path in shown)
    assert "\x1b" not in desk.out, "what it is written to here is no terminal"
