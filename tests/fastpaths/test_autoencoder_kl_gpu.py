"""On the card: the VAE's kernels against torch's own, and the real geometry against diffusers' eager coding."""

import pytest
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL

from fuseproof.fastpaths.bits import bit_difference
from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.kernels import channels_last_copy, conv_bias_residual, group_norm_silu
from fuseproof.fastpaths.sites import autoencoder_kl

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]
EPS = 1e-6
NORMS, CONVOLUTIONS = autoencoder_kl.SITES
# Channels, height, width of every norm in a decode of 1024 x 1024 and of the lowest level of 848 x 1264, and odd ones.
PLANES = {
    "lowest-level": (512, 128, 128),
    "second-level": (512, 256, 256),
    "third-level-first-norm": (512, 512, 512),
    "third-level": (256, 512, 512),
    "last-level-first-norm": (256, 1024, 1024),
    "last-level": (128, 1024, 1024),
    "lowest-level-of-1264": (512, 106, 158),
    "last-level-of-1264": (128, 848, 1264),
    "odd": (96, 33, 35),
    "one-warp-a-group": (64, 3, 5),
}
NARROW_FIRST = {"a first convolution of 3 channels has other bits channels-last; it needs 8 or more": 2}
"""What an encoder declines in two codings."""
SIZES = {"512": (512, 512), "1024": (1024, 1024), "848x1264": (848, 1264)}


def assert_bits(expected, actual):
    assert expected.stride() == actual.stride()
    difference = bit_difference(expected, actual)
    assert (0.0, 0) == (difference.differing_share, difference.largest_ulp)


def normal(*shape, seed=0):
    """Normal numbers whose scale and mean differ from channel to channel, bf16."""
    generator = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn(shape, device="cuda", generator=generator)
    per_channel = (1, shape[1], 1, 1)
    x *= torch.randn(per_channel, device="cuda", generator=generator).exp()
    return (x + torch.randn(per_channel, device="cuda", generator=generator)).bfloat16()


def vectors(channels):
    generator = torch.Generator("cuda").manual_seed(1)
    both = (torch.randn(2, channels, device="cuda", generator=generator) * 0.3 + 1).bfloat16()
    return [vector.clone() for vector in both]  # each at an aligned address of its own, as parameters are


def poisoned(x, layout=torch.contiguous_format):
    return torch.full_like(x, float("nan")).contiguous(memory_format=layout)


@pytest.fixture(scope="module")
def rounds():
    return group_norm_silu.rounds_statistics(torch.device("cuda"))


@pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels-last"])
@pytest.mark.parametrize("plane", PLANES.values(), ids=PLANES)
def test_group_norm_silu(plane, channels_last, rounds):
    x, (weight, bias) = normal(1, *plane), vectors(plane[0])
    arguments = (x, weight, bias, 32, EPS, True, channels_last, rounds)
    assert group_norm_silu.reject_reason(*arguments) is None
    expected = group_norm_silu.reference(*arguments)
    out = poisoned(x, torch.channels_last if channels_last else torch.contiguous_format)
    assert_bits(expected, group_norm_silu.fused(*arguments, out=out))
    assert_bits(expected, group_norm_silu.fused(*arguments))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda x: x + 300, id="large-mean"),
        pytest.param(lambda x: x * 1e-3, id="variance-near-eps"),
        pytest.param(lambda x: x * 1e-30, id="variance-far-below-eps"),
        pytest.param(lambda x: x * 1e15, id="large"),
        pytest.param(lambda x: (x > 0.5).bfloat16(), id="two-values"),
        pytest.param(lambda x: x * 0, id="zeros"),
    ],
)
@pytest.mark.parametrize("samples", [1, 2])
def test_group_norm_of_other_values(samples, change, rounds):
    x, (weight, bias) = change(normal(samples, 512, 64, 60)).contiguous(), vectors(512)
    arguments = (x, weight, bias, 32, EPS, False, False, rounds)
    assert_bits(F.group_norm(x, 32, weight, bias, EPS), group_norm_silu.fused(*arguments, out=poisoned(x)))


def test_silu_over_every_bf16_value():
    x = torch.arange(65536, dtype=torch.int32, device="cuda").to(torch.int16).view(torch.bfloat16)
    affine = torch.tensor([[1.0], [-0.0]], device="cuda")
    out = torch.empty_like(x)
    group_norm_silu._rows_kernel[(16, 1)](
        x, affine, out, 8192, 1, UNIT=8, BLOCK=4096, SILU=True, INTERPRETED=False, num_warps=8, enable_fp_fusion=False
    )
    finite = x.isfinite()
    assert 65280 == int(finite.sum())
    assert_bits(F.silu(x)[finite], out[finite])


LAYOUTS = {
    "bias": (False, False, False, False),
    "bias-from-channels-last": (True, False, False, False),
    "residual": (False, True, False, False),
    "residual-from-channels-last": (True, True, False, False),
    "shortcut-from-channels-last": (True, True, True, False),
    "all-channels-last": (True, True, True, True),
}


@pytest.mark.parametrize("plane", [(512, 106, 158), (256, 512, 512), (3, 848, 1264), (96, 33, 35)], ids=str)
@pytest.mark.parametrize(("turned", "has_residual", "has_shortcut", "residual_turned"), LAYOUTS.values(), ids=LAYOUTS)
def test_conv_bias_residual(plane, turned, has_residual, has_shortcut, residual_turned):
    x, residual = normal(2, *plane), normal(2, *plane, seed=2)
    bias, residual_bias = vectors(plane[0])
    x = x.contiguous(memory_format=torch.channels_last) if turned else x
    residual = residual.contiguous(memory_format=torch.channels_last) if residual_turned else residual
    arguments = (x, bias, residual if has_residual else None, residual_bias if has_shortcut else None)
    assert conv_bias_residual.reject_reason(*arguments) is None
    expected = conv_bias_residual.reference(*arguments)
    out = poisoned(expected, torch.channels_last if residual_turned else torch.contiguous_format)
    assert_bits(expected, conv_bias_residual.fused(*arguments, out=out))


def test_a_factor_as_torch_divides():
    x, residual, (bias, _) = normal(1, 64, 32, 32), normal(1, 64, 32, 32, seed=2), vectors(64)
    arguments = (x, bias, residual, None, 2**0.5)
    assert_bits(conv_bias_residual.reference(*arguments), conv_bias_residual.fused(*arguments))


@pytest.mark.parametrize(("factor", "border"), [(1, 0), (2, 0), (1, 1)], ids=["as-it-is", "doubled", "bordered"])
@pytest.mark.parametrize("plane", [(512, 106, 158), (256, 512, 512), (3, 848, 1264), (96, 33, 35)], ids=str)
def test_channels_last_copy(plane, factor, border):
    x = normal(2, *plane)
    assert channels_last_copy.reject_reason(x, factor, border) is None
    assert_bits(channels_last_copy.reference(x, factor, border), channels_last_copy.fused(x, factor, border))


@pytest.fixture(scope="module")
def vae():
    """FLUX's and LongCat's geometry, 83.8 M seeded random weights."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=(128, 256, 512, 512),
            layers_per_block=2,
            latent_channels=16,
            norm_num_groups=32,
            sample_size=1024,
            use_quant_conv=False,
            use_post_quant_conv=False,
        )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.to(torch.bfloat16).eval()


class Installed:
    """The sites in a VAE, without the pipeline around it."""

    def __init__(self, vae, sites=autoencoder_kl.SITES):
        assert autoencoder_kl.reject_reason(vae) is None
        assert {} == autoencoder_kl.site_reasons(vae)
        self.gates = {name: Gate(name) for name in sites}
        self.installation = autoencoder_kl.install(vae, self.gates)

    def __enter__(self):
        return self.gates

    def __exit__(self, *_):
        for replacement in reversed(self.installation.replacements):
            replacement.take_off()


@torch.no_grad()
def decode(vae, size, seed):
    generator = torch.Generator("cuda").manual_seed(seed)
    z = torch.randn(1, 16, size[0] // 8, size[1] // 8, device="cuda", generator=generator).bfloat16()
    return vae.decode(z, return_dict=False)[0]


@torch.no_grad()
def encode(vae, size, seed):
    generator = torch.Generator("cuda").manual_seed(seed)
    pixels = 2 * torch.rand(1, 3, *size, device="cuda", generator=generator).bfloat16() - 1
    return vae.encode(pixels).latent_dist.parameters


@pytest.mark.parametrize("coding", [decode, encode])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_the_real_geometry(size, coding, vae):
    eager = [coding(vae, size, seed) for seed in range(2)]
    assert all(tensor.isfinite().all() for tensor in eager)
    with Installed(vae) as gates:
        fused = [coding(vae, size, seed) for seed in range(2)]
    assert [] == [rejection.reason for gate in gates.values() for rejection in gate.rejections.values()]
    declined = NARROW_FIRST if coding is encode else {}
    assert declined == gates[NORMS].declined | gates[CONVOLUTIONS].declined
    assert sum(declined.values()) == gates[NORMS].calls_eager + gates[CONVOLUTIONS].calls_eager
    assert 0 < gates[NORMS].verified_keys() <= gates[NORMS].calls_fused
    assert 0 < gates[CONVOLUTIONS].verified_keys() < gates[CONVOLUTIONS].calls_fused
    for expected, actual in zip(eager, fused, strict=True):
        assert_bits(expected, actual)


@pytest.mark.parametrize("site", autoencoder_kl.SITES)
def test_each_site_alone(site, vae):
    eager = decode(vae, (512, 512), 3)
    with Installed(vae, (site,)) as gates:
        assert_bits(eager, decode(vae, (512, 512), 3))
        assert_bits(eager, decode(vae, (512, 512), 3))
    assert {} == gates[site].rejections
    assert 0 < gates[site].calls_fused


def test_two_samples(vae):
    with torch.no_grad():
        z = torch.randn(2, 16, 32, 32, device="cuda", generator=torch.Generator("cuda").manual_seed(0)).bfloat16()
        eager = vae.decode(z, return_dict=False)[0]
        with Installed(vae) as gates:
            assert_bits(eager, vae.decode(z, return_dict=False)[0])
    assert {} == gates[NORMS].rejections | gates[CONVOLUTIONS].rejections
