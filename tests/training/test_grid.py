"""The grid for README: prompts that the model has the words for, one file of at most 300 kB whatever is drawn."""

from __future__ import annotations

import errno
import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from training import evaluate, grid
from training.captions import lexicon


def noise(count: int, side: int = 256) -> list[np.ndarray]:
    return list(np.random.RandomState(0).randint(0, 256, (count, side, side, 3)).astype(np.uint8))


def test_every_word_of_the_prompts_is_one_of_the_captions() -> None:
    words = {word.lower() for prompt in grid.PROMPTS for word in re.findall(r"[A-Za-z]+", prompt)}
    known = {word.lower() for entry in lexicon() for word in re.findall(r"[A-Za-z]+", entry)}
    assert set() == words - known - {"k"}
    assert 8 == len(set(grid.PROMPTS))


def test_noise_fits_too_at_a_lower_quality() -> None:
    content = grid.encoded(grid.sheet(noise(8), grid.PROMPTS))
    assert 0 < len(content) <= grid.LARGEST_BYTES
    with Image.open(io.BytesIO(content)) as drawn:
        assert ("JPEG", True) == (drawn.format, drawn.width > 4 * 256)


def test_what_cannot_be_made_small_enough_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "LARGEST_BYTES", 1000)
    with pytest.raises(ValueError, match="1000 are the most"):
        grid.encoded(grid.sheet(noise(8, 32), grid.PROMPTS))


def test_each_picture_stands_over_its_own_caption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def draw(pipe: object, texts: tuple[str, ...], **sampling: int) -> list[np.ndarray]:
        asked.extend(texts)
        return [np.full((64, 64, 3), 20 * number, np.uint8) for number in range(len(texts))]

    monkeypatch.setattr(evaluate, "load", lambda folder, device: None)
    monkeypatch.setattr(evaluate, "draw", draw)
    (tmp_path / "model_index.json").write_text("{}")
    assert 0 == grid.main([f"--checkpoint={tmp_path}", f"--output={tmp_path / 'new' / 'grid.jpg'}"])
    assert list(grid.PROMPTS) == asked
    assert "8 prompts" in capsys.readouterr().out
    with Image.open(tmp_path / "new" / "grid.jpg") as drawn:
        height = 64 + grid.MARGIN + grid.CAPTION_ROWS * grid.LINE_HEIGHT
        middle = drawn.convert("L").getpixel((grid.MARGIN + 32 + 2 * (64 + grid.MARGIN), grid.MARGIN + 32 + height))
    assert 20 * 6 == pytest.approx(middle, abs=4)


def test_what_lay_there_stays_where_the_new_one_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_room(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    (tmp_path / "model_index.json").write_text("{}")
    (tmp_path / "out").mkdir()
    output = tmp_path / "out" / "grid.jpg"
    output.write_bytes(b"old")
    monkeypatch.setattr(evaluate, "load", lambda folder, device: None)
    monkeypatch.setattr(evaluate, "draw", lambda pipe, texts, **sampling: noise(len(texts), 8))
    monkeypatch.setattr(Path, "replace", no_room)
    assert 1 == grid.main([f"--checkpoint={tmp_path}", f"--output={output}"])
    assert "No space left on device" in capsys.readouterr().err
    assert (b"old", [output]) == (output.read_bytes(), list(output.parent.iterdir()))
