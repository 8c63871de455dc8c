"""Frames in host memory: the values of diffusers' own conversion, in one array, in order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers.video_processor import VideoProcessor

from fuseproof.errors import FuseproofError
from fuseproof.pipelines.host_frames import HostFrames

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("lengths", [(5,), (2, 3), (1, 1, 3)], ids=str)
def test_chunks_are_what_diffusers_makes_of_the_whole(dtype: torch.dtype, lengths: tuple[int, ...]) -> None:
    processor = VideoProcessor(vae_scale_factor=8)
    decoded = (1.2 * torch.randn(1, 3, 5, 6, 8, generator=torch.Generator().manual_seed(1))).to(dtype)
    frames = HostFrames(5, 6, 8, CPU)
    chunks = decoded.split(lengths, 2)
    assert list(lengths) == [frames.add(processor.postprocess_video(one, output_type="pt")[0]) for one in chunks]
    expected = processor.postprocess_video(decoded, output_type="np")[0]
    clip = frames.clip()
    assert (expected.dtype, expected.shape, True) == (clip.dtype, clip.shape, clip.flags["C_CONTIGUOUS"])
    assert expected.tobytes() == clip.tobytes()


def test_a_clip_that_is_not_whole_is_none() -> None:
    frames = HostFrames(2, 4, 4, CPU)
    frames.add(torch.zeros(1, 3, 4, 4))
    with pytest.raises(FuseproofError, match=r"decoded 1 frames of 4x4 .* 2 frames of 4x4"):
        frames.clip()
    for more in (torch.ones(2, 3, 4, 4), torch.ones(1, 3, 8, 8), torch.ones(1, 12, 4, 4)):
        with pytest.raises(FuseproofError, match="1 frames of 4x4 pixels of 3 channels was expected"):
            frames.add(more)
    frames.add(torch.ones(1, 3, 4, 4))
    assert [0.0, 1.0] == [float(np.max(frame)) for frame in frames.clip()]
