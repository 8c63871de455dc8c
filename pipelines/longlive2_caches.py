"""What LongLive 2 remembers of a clip while it makes the next chunk: keys and values, in memory that never moves.

A chunk of 8 latent frames sees itself and the clean frames before it, 32 frames in all: once there are more, the first
8 (the sink) and the latest stay. Keys are stored turned to their absolute positions, so that nothing is turned twice.

Frames lie in the buffers in the order of the clip, the chunk at work last::

    sink | older frames | chunk at work | free until the window is full

The chunk at work writes its keys and values into its place in every forward, and the pass over its clean latents, the
last, leaves there what later chunks see. What a forward attends to is therefore one contiguous slice from the first
token on, at the same addresses in every forward of a chunk and, once the window is full, in every chunk. Room for a
chunk is made once, before its first forward, by moving what stays towards the sink.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

CHUNK_FRAMES = 8
WINDOW_FRAMES = 32
SINK_FRAMES = 8


@dataclass
class LongLive2Caches:
    """One clip's memory; ``reset`` makes it that of another one of the same size.

    ``keys`` and ``values``: for each block [B, frames x tokens, heads, head channels].
    ``cosine`` and ``sine``: [1, chunk tokens, 1, head channels] of the chunk at work, fp32 as a model is loaded.
    ``plane``: rows and columns of a frame's tokens.
    ``text_keys`` and ``text_values``: for each block [B, text tokens, heads, head channels]; none before the first
    chunk. ``held_frames`` of the buffers are clean ones; ``next_frame`` is the number of the frame that follows them.
    """

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    cosine: torch.Tensor
    sine: torch.Tensor
    plane: tuple[int, int]
    sink_frames: int = SINK_FRAMES
    held_frames: int = 0
    next_frame: int = 0
    text_keys: list[torch.Tensor] = field(default_factory=list)
    text_values: list[torch.Tensor] = field(default_factory=list)
    _chunk_frames: int = 0
    _text: torch.Tensor | None = None
    _text_version: int = -1

    @property
    def tokens_per_frame(self) -> int:
        """Tokens of one latent frame."""
        return self.plane[0] * self.plane[1]

    @property
    def window_frames(self) -> int:
        """How many frames a chunk sees at most, its own among them."""
        return self.keys[0].shape[1] // self.tokens_per_frame

    @property
    def chunk_frames(self) -> int:
        """How many frames one chunk has at most."""
        return self.cosine.shape[1] // self.tokens_per_frame

    @property
    def chunk_place(self) -> slice:
        """The tokens of the buffers that belong to the chunk at work; it attends to everything up to their end."""
        end_frame = self.held_frames + self._chunk_frames
        return slice(self.held_frames * self.tokens_per_frame, end_frame * self.tokens_per_frame)

    def reset(self) -> None:
        """Forget the clip and its text; the memory stays where it is."""
        self.held_frames = self.next_frame = self._chunk_frames = 0
        self._text = None

    def begin_chunk(self, start_frame: int, frames: int) -> bool:
        """Make room for a chunk of ``frames`` latent frames from ``start_frame`` on; False if it is at work already.

        A ValueError for a chunk that does not follow the clean frames written so far, and for one that is too long.
        """
        if start_frame != self.next_frame:
            raise ValueError(
                f"a chunk from frame {start_frame} does not follow the {self.next_frame} frames written so far; "
                "the pass over a chunk's clean latents (write=True) ends it"
            )
        if self._chunk_frames:
            if frames != self._chunk_frames:
                raise ValueError(f"the chunk at work has {self._chunk_frames} frames, and this forward {frames}")
            return False
        if frames > self.chunk_frames:
            raise ValueError(f"{frames} frames in one chunk; {self.chunk_frames} at most were expected")
        overflow = self.held_frames + frames - self.window_frames
        if overflow > self.held_frames - min(self.held_frames, self.sink_frames):
            raise ValueError(
                f"{frames} frames do not fit into a window of {self.window_frames} beside a sink of {self.sink_frames}"
            )
        if overflow > 0:
            self._drop_frames_behind_sink(overflow)
        self._chunk_frames = frames
        return True

    def commit_chunk(self) -> None:
        """Keep what the chunk at work wrote last: later chunks see it."""
        self.held_frames += self._chunk_frames
        self.next_frame += self._chunk_frames
        self._chunk_frames = 0

    def holds_text(self, text: torch.Tensor) -> bool:
        """Whether the text's keys and values are those of ``text``, this very tensor and unchanged."""
        return self._text is text and self._text_version == _version_of(text)

    def write_text(self, text: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor]) -> None:
        """Keep ``keys`` and ``values`` of ``text``, in the memory of those of an earlier text if they fit there."""
        fits = len(self.text_keys) == len(keys) and self.text_keys[0].shape == keys[0].shape
        if fits:
            for kept, new in zip((*self.text_keys, *self.text_values), (*keys, *values), strict=True):
                kept.copy_(new)
        else:
            self.text_keys, self.text_values = list(keys), list(values)
        self._text, self._text_version = text, _version_of(text)

    def _drop_frames_behind_sink(self, frames: int) -> None:
        """Move the frames behind the sink ``frames`` towards it, over the oldest; the sink stays."""
        step = frames * self.tokens_per_frame
        begin, end = self.sink_frames * self.tokens_per_frame, self.held_frames * self.tokens_per_frame
        for buffer in (*self.keys, *self.values):
            # Piece by piece, so that no piece overlaps its target and none needs memory of its own.
            for start in range(begin, end - step, step):
                length = min(step, end - step - start)
                buffer[:, start : start + length] = buffer[:, start + step : start + step + length]
        self.held_frames -= frames


def _version_of(tensor: torch.Tensor) -> int:
    """How often ``tensor`` was changed in place; one made in inference mode does not count."""
    return -1 if tensor.is_inference() else tensor._version
