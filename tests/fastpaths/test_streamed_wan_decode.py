"""The Wan VAE's sites in a clip that is decoded chunk by chunk: fused, with the bits of one eager call."""

import pytest
import torch

from fuseproof.pipelines.streamed_decode import StreamedDecoder
from tests.fastpaths.kernels.conftest import exact_rounding  # noqa: F401 - a fixture: the interpreter rounds exactly
from tests.fastpaths.kernels.wan_models import bits
from tests.fastpaths.small_wan_vae import (
    BLOCKS,
    UPSAMPLING,
    Installed,
    as_cuda,  # noqa: F401 - a fixture
    decode,
    few_channels,  # noqa: F401 - a fixture
    large_tiles,  # noqa: F401 - a fixture
    latents,
    make_vae,
    video,
)

pytestmark = pytest.mark.timeout(300)


@torch.no_grad()
def in_chunks(vae, z, lengths, between=lambda: None):
    decoder = StreamedDecoder(vae, z.shape, z.dtype, z.device)
    chunks = []
    for chunk in z.split(lengths, 2):
        chunks.append(decoder.decode(chunk))
        between()
    assert decoder.is_as_at_once()
    return torch.cat(chunks, 2)


@pytest.mark.usefixtures("as_cuda")
def test_a_mounted_vae_decodes_chunks_fused_with_the_bits_of_one_eager_call():
    vae, z = make_vae(), latents(frames=4)
    eager = decode(vae, z)
    with Installed(vae) as gates:
        streamed = in_chunks(vae, z, (2, 2))
        assert {} == {key: one.reason for gate in gates.values() for key, one in gate.rejections.items()}
        assert {BLOCKS: 4 * 8, UPSAMPLING: 4} == {name: gates[name].calls_fused for name in (BLOCKS, UPSAMPLING)}
    assert torch.equal(bits(eager), bits(streamed))


@pytest.mark.usefixtures("as_cuda")
def test_an_image_that_is_encoded_in_between_changes_nothing():
    vae, z = make_vae(), latents(frames=2)
    eager = decode(vae, z)
    with Installed(vae), torch.no_grad():
        streamed = in_chunks(vae, z, (1, 1), between=lambda: vae.encode(video(frames=1)))
    assert torch.equal(bits(eager), bits(streamed))
