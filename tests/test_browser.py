"""The screenshot step itself: it fails without a browser, on a blank page and on what the browser refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests import browser
from tests.browser import View
from tests.browser_keys import swipe_troubles

VIEWS = (
    View("light", is_dark=False, width=80, height=60),
    View("dark", is_dark=True, width=80, height=60),
    View("phone", is_dark=False, width=50, height=60),
)


def scene(view: View, level: int) -> Image.Image:
    """A picture with many colours around ``level``."""
    row = np.arange(view.width) % 64 + level
    return Image.fromarray(np.broadcast_to(row[None, :, None], (view.height, view.width, 3)).astype(np.uint8))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Image.Image]:
    """What a browser that is not there would draw, by view; a test replaces what it wants drawn otherwise."""
    pictures = {view.name: scene(view, 20 if view.is_dark else 180) for view in VIEWS}

    def run(words: list[str]) -> list[str]:
        target = next(Path(word.partition("=")[2]) for word in words if word.startswith("--screenshot="))
        if target.stem in pictures:
            pictures[target.stem].save(target, compress_level=1)
        return []

    monkeypatch.setattr(browser, "_run", run)
    monkeypatch.setattr(browser, "find_browser", lambda: "/opt/chromium")
    monkeypatch.setattr(browser, "swipe_troubles", lambda *_: [])
    return pictures


def test_without_a_browser_nothing_is_passed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert 1 == browser.main(tmp_path / "out", VIEWS)
    captured = capsys.readouterr()
    assert "" == captured.out
    assert captured.err.startswith("test-browser: nothing was checked: no Chromium here, none of chromium,")
    assert not (tmp_path / "out").exists()


def test_good_pictures_are_kept(
    drawn: dict[str, Image.Image], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 == browser.main(tmp_path / "out", VIEWS)
    assert ["dark.png", "light.png", "phone.png"] == sorted(path.name for path in (tmp_path / "out").iterdir())
    assert "" == capsys.readouterr().err


@pytest.mark.parametrize(
    ("sentence", "name", "picture"),
    [
        pytest.param("phone: no picture was written", "phone", None, id="no picture"),
        pytest.param(
            "light: the picture is blank: 1 colours", "light", Image.new("RGB", (80, 60), "white"), id="blank"
        ),
        pytest.param("the picture has 64x64 pixels, not 50x60", "phone", Image.new("RGB", (64, 64)), id="size"),
        pytest.param("the dark theme is not darker", "dark", scene(VIEWS[0], 190), id="one theme"),
    ],
)
def test_bad_pictures_fail(
    drawn: dict[str, Image.Image],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    sentence: str,
    name: str,
    picture: Image.Image | None,
) -> None:
    del drawn[name]
    if picture is not None:
        drawn[name] = picture
    assert 1 == browser.main(tmp_path / "out", VIEWS)
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert "" == captured.out


def test_a_swipe_that_does_not_move_fails(
    drawn: dict[str, Image.Image], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(browser, "swipe_troubles", lambda *_: ["swipe: ten arrows moved the edge to '', not 60%"])
    assert 1 == browser.main(tmp_path / "out", VIEWS)
    assert "test-browser: swipe: ten arrows moved" in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["exit 3", "exec 3<&- 4>&-; sleep 60"])
def test_a_browser_that_ends_is_a_trouble_not_a_hang(tmp_path: Path, ending: str) -> None:
    program = tmp_path / "browser"
    program.write_text(f"#!/bin/sh\n{ending}\n", encoding="utf-8")
    program.chmod(0o755)
    (trouble,) = swipe_troubles([str(program)], "file:///none.html", tmp_path)
    assert trouble.startswith("swipe: ")


@pytest.mark.parametrize(
    ("expected", "script"),
    [
        pytest.param([], "true", id="quiet"),
        pytest.param(["the browser exited with 3"], "exit 3", id="status"),
        pytest.param(
            ["[1:CONSOLE] Refused to load the image"], "echo '[1:CONSOLE] Refused to load the image' >&2", id="refused"
        ),
    ],
)
def test_what_the_browser_says_counts(expected: list[str], script: str) -> None:
    assert expected == browser._run(["/bin/sh", "-c", script])
