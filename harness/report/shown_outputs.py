"""An output as a reader sees it, or the sentence that says why it cannot be shown: a broken file breaks no report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fuseproof.errors import FuseproofError
from fuseproof.harness.media.clips import Clip, is_clip, load_clip
from fuseproof.harness.media.decoding import IMAGE_SUFFIXES, Picture, load_image
from fuseproof.harness.media.diff import shown_pixels
from fuseproof.harness.report.canvas import Pixels

BROWSER_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif"})


@dataclass(frozen=True)
class ShownOutput:
    """One output file, by its path relative to the campaign folder. Either ``picture`` or ``problem`` is None.

    Of a video ``picture`` is its frame ``frame``, counted from 1.
    """

    path: str
    picture: Picture | None
    problem: str | None
    frame: int | None = None

    @property
    def name(self) -> str:
        """The path, and which frame it is."""
        return self.path if self.frame is None else f"{self.path}, frame {self.frame}"

    @property
    def pixels(self) -> Pixels | None:
        """uint8 H x W x 3 at full size."""
        return None if self.picture is None else shown_pixels(self.picture)


class OutputReader:
    """Reads a campaign's outputs, each file once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._known: dict[tuple[str, int | None], ShownOutput] = {}
        self._clips: dict[str, Clip] = {}

    def read(self, path: str, frame: int | None = None) -> ShownOutput:
        """The output at ``path``, relative to the campaign folder; of a video frame ``frame``, else its first one."""
        if (path, frame) not in self._known:
            self._known[path, frame] = self._read(path, frame)
        return self._known[path, frame]

    def forget(self) -> None:
        """Free the memory of what was read."""
        self._known.clear()
        self._clips.clear()

    def _read(self, path: str, frame: int | None) -> ShownOutput:
        if is_clip(self.directory / path):
            return self._read_frame(path, 1 if frame is None else frame)
        suffix = PurePosixPath(path).suffix.lower()
        if suffix not in IMAGE_SUFFIXES:
            return ShownOutput(path, None, f"{path} is no picture that can be drawn ({suffix or 'no suffix'})")
        try:
            return ShownOutput(path, load_image(self.directory / path), None)
        except FuseproofError as error:
            return ShownOutput(path, None, error.message.replace(f"{self.directory}/", "").rstrip("."))

    def _read_frame(self, path: str, frame: int) -> ShownOutput:
        try:
            clip = self._clips.get(path) or load_clip(self.directory / path)
            self._clips[path] = clip
            if not 1 <= frame <= clip.frames:
                return ShownOutput(path, None, f"{path} has no frame {frame}, only {clip.frames}", frame)
            return ShownOutput(path, clip.picture(frame), None, frame)
        except FuseproofError as error:
            return ShownOutput(path, None, error.message.replace(f"{self.directory}/", "").rstrip("."), frame)
