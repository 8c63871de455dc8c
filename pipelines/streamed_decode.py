"""Wan's VAE, chunk by chunk: latent frames are decoded as soon as they are denoised, with the bits of one whole call.

``AutoencoderKLWan.decode`` (diffusers 0.42.1) takes a clip's latents frame by frame through its decoder, which leaves
what the next frame needs in a list of its own convolutions' last inputs. Kept from call to call, that list makes a
chunk of frames come out as it does in the whole clip. Two operations are not frame by frame: the clamp behind, which is
elementwise, and the 1x1x1 convolution in front. Libraries choose how to convolve by the shape, so a chunk alone may
come out with other last bits: the convolution is given the whole clip each time, with zeros where nothing is denoised.
With the last chunk it has seen what one call sees, and every earlier result is compared with that
(:meth:`StreamedDecoder.is_as_at_once`).

The list is ours: whatever else the VAE does in between does not meet it, and nothing of the VAE has to be put back.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify

from fuseproof.fastpaths.bits import bits_equal

CONVOLUTION = "WanCausalConv3d"


def reject_reason(vae: Any) -> str | None:
    """Why this VAE decodes another way than frame by frame over whole frames; None where it does not."""
    return "the VAE decodes in tiles" if vae.use_tiling else None


class StreamedDecoder:
    """Decodes the latents of one clip in order, some of its frames at a time.

    ``shape`` [1, C, T, H, W], ``dtype`` and ``device`` are those of all its latents, as the VAE takes them.
    """

    def __init__(self, vae: Any, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> None:
        self._vae = vae
        self._latents = torch.zeros(shape, dtype=dtype, device=device)
        convolutions = sum(type(module).__name__ == CONVOLUTION for module in vae.decoder.modules())
        self._last_inputs: list[Any] = [None] * convolutions
        self._projected: list[torch.Tensor] = []
        self._next_frame = 0
        self._at_once: torch.Tensor | None = None

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """The next latent frames [1, C, t, H, W] to frames [1, 3, t', H', W'] in -1..1.

        The clip's first latent frame makes one frame, every other one four. A ValueError for frames beyond its end.
        """
        start, stop = self._next_frame, self._next_frame + latents.shape[2]
        if stop > self._latents.shape[2]:
            raise ValueError(f"latent frames {start} to {stop} of a clip of {self._latents.shape[2]}")
        self._latents[:, :, start:stop] = latents
        self._at_once = self._vae.post_quant_conv(self._latents)
        projected = self._at_once[:, :, start:stop]
        self._projected.append(projected)
        frames = [self._decode_frame(projected[:, :, place : place + 1]) for place in range(stop - start)]
        decoded = torch.cat(frames, 2)
        patch = self._vae.config.patch_size
        if patch is not None:
            decoded = unpatchify(decoded, patch_size=patch)
        return torch.clamp(decoded, min=-1.0, max=1.0)

    def is_as_at_once(self) -> bool:
        """Whether one call over the whole clip begins with the bits of our chunks; asked after the last of them.

        Waits for the device. What follows that beginning in one call is what we did, call by call.
        """
        return self._at_once is not None and bits_equal(torch.cat(self._projected, 2), self._at_once)

    def _decode_frame(self, projected: torch.Tensor) -> torch.Tensor:
        told = {"first_chunk": True} if self._next_frame == 0 else {}
        self._next_frame += 1
        frame: torch.Tensor = self._vae.decoder(projected, feat_cache=self._last_inputs, feat_idx=[0], **told)
        return frame
