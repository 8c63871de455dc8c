"""On the card: the Wan VAE's kernels against torch's own, and the real geometry against diffusers' eager decoding."""

import pytest
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import AvgDown3D, DupUp3D, WanRMS_norm

from fuseproof.fastpaths.approximation import ApproximateGate
from fuseproof.fastpaths.bits import bit_difference
from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.kernels import (
    average_downsample_add,
    bordered_frames,
    causal_conv_input,
    channel_norms,
    duplicate_upsample_add,
    nearest_upsample,
    wan_norm_silu,
)
from fuseproof.fastpaths.sites import autoencoder_kl_wan

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]
BF16, FP32 = torch.bfloat16, torch.float32
SHAPES = {
    "first-level": (1, 1024, 1, 30, 52),
    "second-level": (1, 1024, 2, 60, 104),
    "third-level": (1, 1024, 4, 120, 208),
    "last-level-first-norm": (1, 512, 4, 240, 416),
    "last-level": (1, 256, 4, 240, 416),
    "odd": (2, 96, 3, 5, 7),
}
LAYOUTS = {"planes": False, "channels-last": True}
DTYPES = {"fp32": (FP32, FP32), "bf16": (BF16, BF16), "autocast": (BF16, FP32), "reverse": (FP32, BF16)}
WAN22 = {
    "base_dim": 160, "decoder_base_dim": 256, "z_dim": 48, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2,
    "temperal_downsample": [False, True, True], "is_residual": True, "in_channels": 12, "out_channels": 12,
    "patch_size": 2, "scale_factor_spatial": 16, "latents_mean": [0.0] * 48, "latents_std": [1.0] * 48,
}  # fmt: skip
GEOMETRIES = {"wan-2.1": {}, "wan-2.2": WAN22}


def assert_bits(expected, actual):
    difference = bit_difference(expected, actual)
    assert (0.0, 0) == (difference.differing_share, difference.largest_ulp)


def numbers(*shape, dtype=FP32, seed=0):
    return torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(seed)).to(dtype)


def in_layout(x, last):
    return x.contiguous(memory_format=torch.channels_last_3d) if last else x


def norm_of(channels, dtype):
    norm = WanRMS_norm(channels, images=False).to("cuda", dtype)
    norm.gamma.data.copy_(numbers(channels, 1, 1, 1, seed=1))
    return norm


@torch.no_grad()
@pytest.mark.parametrize("last", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize(("x_dtype", "gamma_dtype"), DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_norms_behind_torchs_sums_and_in_one_pass(shape, x_dtype, gamma_dtype, last):
    norm, x = norm_of(shape[1], gamma_dtype), in_layout(numbers(*shape, dtype=x_dtype), last)
    x[..., 0, :] = 0.0
    wanted = F.silu(norm(x))
    denominator = x.float().norm(2, 1, keepdim=True).clamp_min(1e-12).contiguous()
    actual = wan_norm_silu.fused(x, denominator, norm.gamma, None, norm.scale)
    assert wanted.stride() == actual.stride()
    assert_bits(wanted, actual)
    order = channel_norms.order_on(x, last)
    if order is not None:
        numbers_of_order = (order.lanes, order.blocks, order.vector)
        rest = (norm.scale, True, 2, 1, 1, True, x_dtype == BF16, numbers_of_order)
        padded, _ = causal_conv_input.fused(x, norm.gamma, None, None, None, *rest)
        assert_bits(wanted.to(padded.dtype).contiguous(), padded[:, :, 2:, 1:-1, 1:-1].contiguous())


@torch.no_grad()
@pytest.mark.parametrize("last", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_torch_sums_bf16_as_it_is_in_the_order_of_fp32(shape, last):
    x = in_layout(numbers(*shape, dtype=BF16), last)
    with torch.autocast("cuda", torch.bfloat16):
        assert_bits(x.float().norm(2, 1, keepdim=True).clamp_min(channel_norms.EPS), channel_norms.denominators(x))


@pytest.mark.parametrize("to_bf16", [False, True], ids=["as-promoted", "to-bf16"])
@pytest.mark.parametrize("gamma_dtype", [BF16, FP32], ids=["bf16-weights", "fp32-weights"])
def test_every_finite_bf16_value(gamma_dtype, to_bf16):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(BF16)
    x = every[every.isfinite()].view(1, 3, 1, 136, 160).cuda()
    for factor, scale in ((1.0, 1.0), (0.7, 3**0.5), (1e-12, 1.0), (3e5, 1.0), (1e30, 1.0)):
        gamma = torch.tensor([1.0, -1.3, 3e-5], device="cuda").to(gamma_dtype).view(3, 1, 1, 1)
        call = (x, torch.full((1, 1, 1, 136, 160), factor, device="cuda"), gamma, None, scale, True, to_bf16)
        assert_bits(wan_norm_silu.reference(*call), wan_norm_silu.fused(*call))


@pytest.mark.parametrize("last", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("silu", [False, True], ids=["quotient", "silu"])
def test_any_fp32_pattern_over_any_positive_one(silu, last):
    generator = torch.Generator("cuda").manual_seed(0)
    patterns = torch.randint(-(2**31), 2**31, (1, 64, 4, 64, 64), device="cuda", generator=generator).to(torch.int32)
    x = in_layout(patterns.view(FP32), last)
    positive = torch.randint(0, 0x7F800000, (1, 1, 4, 64, 64), device="cuda", generator=generator).to(torch.int32)
    near = x[:, :1].abs().nan_to_num(1.0, 1.0) * 1.5
    for denominator in (positive.view(FP32), near.contiguous(), torch.ones_like(near).contiguous()):
        call = (x, denominator, torch.ones(64, 1, 1, 1, device="cuda"), None, 1.0, silu)
        assert_bits(wan_norm_silu.reference(*call), wan_norm_silu.fused(*call))


def test_subnormal_fp32_values():
    x = (torch.arange(1, 13, device="cuda") * 1e-41).view(1, 3, 1, 2, 2)
    call = (x, torch.ones(1, 1, 1, 2, 2, device="cuda"), torch.ones(3, 1, 1, 1, device="cuda"), None, 1.0)
    assert_bits(wan_norm_silu.reference(*call), wan_norm_silu.fused(*call))


def test_a_captured_graph_follows_changed_input_and_affine():
    x, gamma = numbers(1, 256, 2, 30, 52, dtype=BF16), numbers(256, 1, 1, 1, seed=1)
    denominator = x.float().norm(2, 1, keepdim=True).clamp_min(1e-12)
    wan_norm_silu.fused(x, denominator, gamma, None, 16.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = wan_norm_silu.fused(x, denominator, gamma, None, 16.0)
    x.copy_(numbers(*x.shape, seed=2))
    gamma.copy_(numbers(*gamma.shape, seed=3))
    graph.replay()
    assert_bits(wan_norm_silu.reference(x, denominator, gamma, None, 16.0), out)


@pytest.mark.parametrize("last", LAYOUTS.values(), ids=LAYOUTS)
def test_movement(last):
    x = in_layout(numbers(1, 512, 2, 60, 104, dtype=BF16), last)
    large, bias = in_layout(numbers(1, 256, 4, 120, 208, dtype=BF16, seed=1), last), numbers(256, seed=2)
    wanted = (large + bias.bfloat16().view(-1, 1, 1, 1)) + DupUp3D(512, 256, 2, 2)(x)
    assert_bits(wanted.contiguous(), duplicate_upsample_add.fused(large, bias, x, None, 2, 2, 0, last).contiguous())
    call = (x, numbers(512, seed=3), 2)
    assert_bits(nearest_upsample.reference(*call), nearest_upsample.fused(*call))
    cache = in_layout(numbers(1, 512, 2, 60, 104, dtype=BF16, seed=4), last)
    call = (x, None, None, cache, None, 1.0, False, 2, 1, 1, last, False, None)
    assert_bits(causal_conv_input.reference(*call), causal_conv_input.fused(*call))


def make_vae(geometry, dtype):
    torch.manual_seed(0)
    with torch.device("cuda"):
        vae = AutoencoderKLWan(**GEOMETRIES[geometry]).eval().to(dtype)
    with torch.no_grad():
        for parameter in vae.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return vae


@torch.no_grad()
@pytest.mark.parametrize("mode", ["autocast", "bf16", "fp32"])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_decoding_and_encoding_keep_every_bit(geometry, mode):
    vae = make_vae(geometry, BF16 if mode == "bf16" else FP32)
    dtype = BF16 if mode == "bf16" else FP32
    side = 16 * vae.spatial_compression_ratio
    z, video = numbers(1, vae.config.z_dim, 3, 16, 24, dtype=dtype), numbers(1, 3, 9, side, side, dtype=dtype, seed=1)

    def run():
        with torch.autocast("cuda", BF16, enabled=mode == "autocast"):
            return vae.decode(z).sample, vae.encode(video).latent_dist.parameters

    eager = run()
    gates = {name: Gate(name) for name in autoencoder_kl_wan.EXACT_SITES}
    installation = autoencoder_kl_wan.install(vae, gates)
    try:
        for _ in range(3):
            for wanted, actual in zip(eager, run(), strict=True):
                assert wanted.stride() == actual.stride()
                assert_bits(wanted, actual)
    finally:
        installation.take_off()
    assert 0 < gates["wan_vae_blocks"].calls_fused
    assert 0 < gates["wan_vae_downsampling"].calls_fused


@torch.no_grad()
@pytest.mark.parametrize("site", autoencoder_kl_wan.APPROXIMATE_SITES)
@pytest.mark.parametrize("mode", ["autocast", "fp32"])
def test_tiers_are_close(mode, site):
    vae = make_vae("wan-2.2", FP32)
    z, video = numbers(1, vae.config.z_dim, 2, 16, 24), numbers(1, 3, 5, 256, 256, seed=1)

    def run():
        with torch.autocast("cuda", BF16, enabled=mode == "autocast"):
            return vae.decode(z).sample, vae.encode(video).latent_dist.parameters

    eager = run()
    limit = autoencoder_kl_wan.LARGEST_ERROR_OF_SITE[site]
    close = ApproximateGate(site, quality=autoencoder_kl_wan.APPROXIMATE_SITES[site], largest_error=limit)
    installation = autoencoder_kl_wan.install(vae, {name: Gate(name) for name in autoencoder_kl_wan.EXACT_SITES})
    try:
        installation.choose({site: close}, in_all_threads=True)
        first, again = run(), run()
    finally:
        installation.take_off()
    assert {} == close.rejections
    for wanted, one, other in zip(eager, first, again, strict=True):
        assert_bits(one, other)
        assert wanted.dtype == one.dtype
        assert float((one.float() - wanted.float()).norm()) <= limit * float(wanted.float().norm())


@pytest.mark.parametrize("last", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=["bf16", "fp32"])
def test_downsampling(dtype, last):
    shortcut = in_layout(numbers(1, 160, 3, 120, 208, dtype=dtype), last)
    x, bias = in_layout(numbers(1, 320, 2, 60, 104, dtype=dtype, seed=1), last), numbers(320, seed=2)
    wanted = (x + bias.to(dtype).view(-1, 1, 1, 1)) + AvgDown3D(160, 320, 2, 2)(shortcut)
    actual = average_downsample_add.fused(x, bias, shortcut, 2, 2, last)
    assert_bits(wanted.contiguous(), actual.contiguous())
    assert_bits(bordered_frames.reference(shortcut, 1), bordered_frames.fused(shortcut, 1))
