"""Tiny videos for tests, and campaigns whose slots wrote them as ``generate`` does."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from fuseproof.cli.video_file import frame_pixels, write_video
from fuseproof.harness.campaign.clip_outputs import clip_output
from fuseproof.harness.campaign.evidence import frames_listing
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.media.files import array_sha256, file_sha256
from tests.harness.campaign_builder import CampaignBuilder, Run

Raw = npt.NDArray[np.float32]


def raw_clip(frames: int = 4, size: int = 16, *, seed: int = 0) -> Raw:
    """float32 [T, H, W, 3] in 0..1: a bright square that moves over a slope."""
    row, column = np.mgrid[0:size, 0:size] / size
    slope = np.stack([row, column, 1 - row], axis=2) * 0.6 + 0.1 + seed * 0.01
    clip = np.stack([slope] * frames)
    for index in range(frames):
        clip[index, 2 + index : 6 + index, 3:9] += 0.2
    return clip.astype(np.float32)


def one_bit_changed(raw: Raw, frame: int) -> Raw:
    """A copy whose frame ``frame``, from 1, differs in the least bit of one value."""
    changed = raw.copy()
    changed.view(np.uint32)[frame - 1, 5, 5, 1] ^= 1
    return changed


def darkened(raw: Raw, frame: int) -> Raw:
    """A copy whose frame ``frame``, from 1, is half as bright."""
    changed = raw.copy()
    changed[frame - 1] /= 2
    return changed


def saved(path: Path, raw: Raw, *, fps: float = 16, quality: str = "maximum") -> Path:
    write_video(path, frame_pixels(raw), fps, quality)
    return path


def encoded(
    path: Path,
    pixels: npt.NDArray[np.uint8],
    *,
    pixel_format: str = "yuv420p",
    times: Sequence[int] | None = None,
    sound: npt.NDArray[np.float32] | None = None,
    codec: str = "libx264",
    degrees: int = 0,
) -> Path:
    """A video by PyAV: any pixel format, frames at any ``times`` (in sixteenths of a second), with ``sound`` [samples].

    Sound is stored without loss. Players turn it by ``degrees``.
    """
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska" if path.suffix == ".mkv" else "mp4") as container:
        stream = container.add_stream(codec, rate=Fraction(16))
        stream.height, stream.width = pixels.shape[1:3]
        stream.pix_fmt = pixel_format
        if degrees:
            stream.set_display_rotation(degrees)
        stream.codec_context.time_base = Fraction(1, 16)
        track = None if sound is None else container.add_stream("flac", rate=8000, layout="mono")
        for index, one in enumerate(pixels):
            frame = av.VideoFrame.from_ndarray(one, format="rgb24")
            frame.pts, frame.time_base = (index if times is None else times[index]), Fraction(1, 16)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if track is not None and sound is not None:
            samples = av.AudioFrame.from_ndarray((sound[None] * 32000).astype(np.int16), format="s16", layout="mono")
            samples.sample_rate, samples.pts = 8000, 0
            container.mux(track.encode(samples))
            container.mux(track.encode())
    path.write_bytes(buffer.getvalue())
    return path


class ClipCampaign(CampaignBuilder):
    """A campaign builder whose pictures are videos: each number of ``Run.pictures`` names one of ``raws``."""

    def __init__(self, directory: Path, raws: Mapping[int, Raw], *, keeps_raw: bool = False, **more: Any) -> None:
        super().__init__(directory, **more)
        self._raws = raws
        self._keeps_raw = keeps_raw
        self._stated: dict[Path, list[dict[str, Any]]] = {}
        self._files: dict[bytes, bytes] = {}

    def _save(self, path: Path, raw: Raw) -> None:
        """Equal pixels are one file, encoded once: nothing here rests on an encoder that repeats itself."""
        pixels = frame_pixels(raw).tobytes()
        if pixels in self._files:
            path.write_bytes(self._files[pixels])
        else:
            self._files[pixels] = saved(path, raw).read_bytes()

    def _outputs(self, run: Run, folder: Path) -> list[dict[str, Any]]:
        records = []
        for index, number in enumerate(run.pictures):
            path = folder / f"outputs/clip-{index}.mp4"
            raw = self._raws[number]
            self._save(path, raw)
            stated = {
                "path": f"outputs/{path.name}",
                "file_sha256": file_sha256(path),
                "pixels_sha256": array_sha256(frame_pixels(raw)),
                "raw_sha256": array_sha256(raw),
                "frames_sha256": [array_sha256(frame) for frame in raw],
                "frames": len(raw),
                "fps": 16.0,
            } | dict(run.output_overrides)
            self._stated.setdefault(folder, []).append(stated)
            if self._keeps_raw:
                (folder / "raw").mkdir(exist_ok=True)
                np.save(folder / f"raw/clip-{index}.npy", raw)
            records.append(json.loads(json.dumps(clip_output(path, stated["path"], stated).__dict__)))
        return records

    def write(self) -> Path:
        """Write the campaign, with every slot's frames and its dump's outputs."""
        for folder, stated in self._stated.items():
            record = SlotRecord.from_json(json.loads((folder / "result.json").read_text(encoding="utf-8")))
            (folder / "frames.sha256").write_text(frames_listing(record.outputs), encoding="utf-8")
            dump = json.loads((folder / "perf.json").read_text(encoding="utf-8"))
            (folder / "perf.json").write_text(json.dumps(dump | {"outputs": stated}, indent=1), encoding="utf-8")
        return super().write()
