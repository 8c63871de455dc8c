"""Decoding Wan's latents chunk by chunk: the bits of one whole call, whatever the VAE does in between."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from fuseproof.fastpaths.bits import bits_equal
from fuseproof.pipelines.streamed_decode import StreamedDecoder, reject_reason
from fuseproof.pipelines.tiny.wan import small_vae

FRAMES = 8


@functools.cache
def vae_of(name: str, dtype: torch.dtype) -> Any:
    return small_vae(name == "2.2").to(dtype)


def latents_of(vae: Any, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, vae.config.z_dim, FRAMES, 2, 3, generator=generator).to(vae.dtype)


def decoder_for(vae: Any, latents: torch.Tensor) -> StreamedDecoder:
    return StreamedDecoder(vae, latents.shape, latents.dtype, latents.device)


@torch.no_grad()
def streamed(vae: Any, latents: torch.Tensor, lengths: tuple[int, ...]) -> tuple[list[torch.Tensor], StreamedDecoder]:
    decoder = decoder_for(vae, latents)
    return [decoder.decode(chunk) for chunk in latents.split(lengths, 2)], decoder


@pytest.mark.parametrize(
    ("name", "dtype", "lengths"),
    [
        *[("2.2", torch.float32, lengths) for lengths in ((8,), (4, 4), (1, 5, 2), (1,) * 8)],
        ("2.2", torch.bfloat16, (3, 5)),
        ("2.1", torch.float32, (1, 5, 2)),
    ],
    ids=str,
)
@torch.no_grad()
def test_chunks_have_the_bits_of_one_call(name: str, dtype: torch.dtype, lengths: tuple[int, ...]) -> None:
    vae = vae_of(name, dtype)
    latents = latents_of(vae)
    chunks, decoder = streamed(vae, latents, lengths)
    assert [4 * length - (3 if place == 0 else 0) for place, length in enumerate(lengths)] == [
        chunk.shape[2] for chunk in chunks
    ]
    assert bits_equal(torch.cat(chunks, 2), vae.decode(latents, return_dict=False)[0])
    assert decoder.is_as_at_once()


@torch.no_grad()
def test_what_the_vae_does_in_between_changes_nothing() -> None:
    vae = vae_of("2.2", torch.float32)
    latents = latents_of(vae)
    decoder = decoder_for(vae, latents)
    first = decoder.decode(latents[:, :, :4])
    vae.decode(latents_of(vae, seed=2), return_dict=False)
    vae.encode(torch.zeros(1, 3, 5, 32, 32))
    second = decoder.decode(latents[:, :, 4:])
    assert bits_equal(torch.cat([first, second], 2), vae.decode(latents, return_dict=False)[0])


@torch.no_grad()
def test_a_convolution_in_front_whose_bits_depend_on_what_comes_later_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    vae = vae_of("2.2", torch.float32)
    latents = latents_of(vae)
    eager = vae.post_quant_conv.forward
    calls = []

    def other_bits_the_second_time(whole: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = eager(whole)
        calls.append(whole.shape[2])
        result[0, 0, 0, 0, 0] *= 1 + 2**-23 * (len(calls) - 1)
        return result

    monkeypatch.setattr(vae.post_quant_conv, "forward", other_bits_the_second_time)
    _, decoder = streamed(vae, latents, (4, 4))
    assert [FRAMES, FRAMES] == calls
    assert not decoder.is_as_at_once()


@torch.no_grad()
def test_a_clip_that_is_not_whole_is_not_as_at_once_and_none_goes_on_behind_its_end() -> None:
    vae = vae_of("2.2", torch.float32)
    latents = latents_of(vae)
    _, decoder = streamed(vae, latents[:, :, :4], (4,))
    with pytest.raises(ValueError, match="latent frames 4 to 8 of a clip of 4"):
        decoder.decode(latents[:, :, 4:])
    beginning = decoder_for(vae, latents)
    beginning.decode(latents[:, :, :4])
    assert not beginning.is_as_at_once()


def test_tiles_are_no_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    vae = vae_of("2.2", torch.float32)
    assert reject_reason(vae) is None
    monkeypatch.setattr(vae, "use_tiling", True)
    assert "the VAE decodes in tiles" == reject_reason(vae)
