"""On the card: query/key norm and rotation, GELU, guidance step, bit for bit against torch's own kernels."""

import pytest
import torch

from fuseproof.fastpaths.bits import bit_difference
from fuseproof.fastpaths.kernels import attention_mlp_gelu, gelu_tanh, guidance_step, qk_norm_rope

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
HEADS, WIDTH, MLP = 24, 3072, 12288
ROWS = (512, 859, 4096, 4608, 9233)


@pytest.fixture(autouse=True)
def exact_rounding():
    """In place of the interpreter's fixture of this name: these tests run compiled kernels."""


@pytest.fixture
def generator():
    return torch.Generator("cuda").manual_seed(0)


def normal(generator, *shape):
    """Normal numbers in rows of very different length, bf16."""
    lengths = torch.randn(*shape[:-1], 1, device="cuda", generator=generator).exp()
    return (torch.randn(shape, device="cuda", generator=generator) * lengths).bfloat16()


def poisoned(*shape):
    return torch.full(shape, float("nan"), dtype=torch.bfloat16, device="cuda")


def all_patterns(*shape):
    """Bit patterns of bf16 in order, from 0x0000 to 0xFFFF and again."""
    count = torch.Size(shape).numel()
    return torch.arange(count, device="cuda").remainder(65536).to(torch.int16).view(torch.bfloat16).reshape(shape)


def assert_bits(expected, actual):
    difference = bit_difference(expected, actual)
    assert (0.0, 0) == (difference.differing_share, difference.largest_ulp)


def qk_arguments(generator, query, key, text_rows):
    rows = query.shape[1]
    weights = [(1 + 0.2 * torch.randn(128, device="cuda", generator=generator)).bfloat16() for _ in range(4)]
    angles = 100 * torch.rand(rows, 128, device="cuda", generator=generator)
    text_weights = weights[2:] if text_rows else (None, None)
    return (query, key, *weights[:2], angles.cos(), angles.sin(), 1e-6, *text_weights, text_rows)


def assert_qk_exact(arguments, **outputs):
    """Expected values first: outputs may be the inputs."""
    assert qk_norm_rope.reject_reason(*arguments, **outputs) is None
    expected = qk_norm_rope.reference(*arguments)
    assert_bits(expected, qk_norm_rope.fused(*arguments, **outputs))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("text_rows", [0, 512], ids=["image", "text-and-image"])
def test_qk_norm_rope_in_place_in_a_packed_projection(rows, text_rows, generator):
    packed = normal(generator, 1, rows, 3, HEADS, 128)
    query, key, value = packed.unbind(2)
    before = value.clone()
    assert_qk_exact(qk_arguments(generator, query, key, text_rows), out_query=query, out_key=key)
    assert_bits(before, value)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("heads", [1, 5, 24, 32, 40])
def test_qk_norm_rope_from_separate_projections_into_joint_buffers(batch, heads, generator):
    query, key = (normal(generator, batch, 333, heads, 128) for _ in range(2))
    joint = poisoned(2, batch, 400, heads, 128)
    arguments = qk_arguments(generator, query, key, 7)
    assert_qk_exact(arguments, out_query=joint[0, :, 60:393], out_key=joint[1, :, 60:393])
    assert joint[:, :, :60].isnan().all()
    assert joint[:, :, 393:].isnan().all()


def test_qk_norm_rope_many_rows_of_even_numbers(generator):
    """9233 rows x 24 heads x 128 of plain normal values: a wrong order of additions shows in some of 28 million."""
    query, key = (torch.randn(1, 9233, HEADS, 128, device="cuda", generator=generator).bfloat16() for _ in range(2))
    arguments = qk_arguments(generator, query, key, 0)
    first = qk_norm_rope.fused(*arguments)
    assert_bits(qk_norm_rope.reference(*arguments), first)
    assert_bits(first, qk_norm_rope.fused(*arguments))


@pytest.mark.parametrize("order", ["ordered", "shuffled", "spread"])
def test_qk_norm_rope_over_all_patterns(order, generator):
    """Ordered: heads of like magnitude, subnormals to NaN. Shuffled: mostly infinite. Spread: finite, 12 binades."""
    query = all_patterns(1, 512, HEADS, 128)
    if order == "shuffled":
        query = query.flatten()[torch.randperm(query.numel(), device="cuda", generator=generator)].view(query.shape)
    if order == "spread":
        exponents = torch.randint(-6, 6, query.shape, device="cuda", generator=generator)
        query = torch.ldexp(torch.randn(query.shape, device="cuda", generator=generator), exponents).bfloat16()
    assert_qk_exact(qk_arguments(generator, query, query.flip(1), 3))


@pytest.mark.parametrize(
    "launch",
    [
        qk_norm_rope.Launch(tile=8, tiles=1),
        qk_norm_rope.Launch(tile=4, tiles=6, num_warps=2),
        qk_norm_rope.Launch(tile=4, tiles=2, num_warps=2),
        qk_norm_rope.Launch(tile=16, tiles=1, num_warps=8),
        qk_norm_rope.Launch(fold="halves"),
    ],
    ids=["8x1", "4x6-2-warps", "4x2-2-warps", "16x1-8-warps", "halves"],
)
def test_qk_norm_rope_other_launches(launch, generator, monkeypatch):
    monkeypatch.setattr(qk_norm_rope, "_LAUNCH", launch)
    query, key = (normal(generator, 1, 859, HEADS, 128) for _ in range(2))
    assert_qk_exact(qk_arguments(generator, query, key, 512))


@pytest.mark.parametrize("tanh", ["exp", "libdevice"])
@pytest.mark.parametrize("kind", ["finite", "other"])
def test_gelu_over_all_patterns(tanh, kind, monkeypatch):
    """65,280 finite values, then infinities and NaN (whose payload torch and Triton both replace)."""
    monkeypatch.setattr(gelu_tanh, "_LAUNCH", gelu_tanh.Launch(tanh=tanh))
    x = all_patterns(1, 1, 65536)
    chosen = x.isfinite() if kind == "finite" else ~x.isfinite()
    assert {"finite": 65280, "other": 256}[kind] == int(chosen.sum())
    expected, actual = gelu_tanh.reference(x), gelu_tanh.fused(x, out=poisoned(1, 1, 65536))
    assert_bits(expected[chosen], actual[chosen])


@pytest.mark.parametrize("rows", ROWS)
def test_gelu_in_place(rows, generator):
    x = normal(generator, 1, rows, MLP)
    expected = gelu_tanh.reference(x)
    assert gelu_tanh.fused(x, out=x) is x
    assert_bits(expected, x)


@pytest.mark.parametrize("columns", [8, 1000, 2047, 2049, 15360])
def test_gelu_odd_widths_and_strided_rows(columns, generator):
    buffer = poisoned(2, 33, 20000)
    x = buffer[..., 16 : 16 + columns].copy_(normal(generator, 2, 33, columns))
    out = poisoned(2, 33, columns + 24)
    assert_bits(gelu_tanh.reference(x), gelu_tanh.fused(x, out=out[..., 8 : 8 + columns]).contiguous())
    assert out[..., :8].isnan().all()
    assert out[..., 8 + columns :].isnan().all()


@pytest.mark.parametrize("rows", ROWS)
def test_attention_mlp_gelu_in_the_packed_projection(rows, generator):
    """As a single block has it: query, key, value and MLP in one projection, attention over the value."""
    packed = normal(generator, 1, rows, 3 * WIDTH + MLP)
    attention, before = normal(generator, 1, rows, WIDTH), packed.clone()
    expected = attention_mlp_gelu.reference(attention, before[..., 3 * WIDTH :])
    out = packed[..., 2 * WIDTH :]
    assert attention_mlp_gelu.reject_reason(attention, packed[..., 3 * WIDTH :], out) is None
    attention_mlp_gelu.fused(attention, packed[..., 3 * WIDTH :], out=out)
    assert_bits(expected, out.contiguous())
    assert_bits(before[..., : 2 * WIDTH].contiguous(), packed[..., : 2 * WIDTH].contiguous())


def test_attention_mlp_gelu_odd_widths(generator):
    attention, mlp = normal(generator, 2, 77, 200), normal(generator, 2, 77, 1003)
    actual = attention_mlp_gelu.fused(attention, mlp, poisoned(2, 77, 1203))
    assert_bits(attention_mlp_gelu.reference(attention, mlp), actual)


GUIDANCE = {
    "guided": (4.5, False, 0.0),
    "renormalised": (4.5, True, 0.0),
    "renormalised-at-least": (7.3, True, 0.3),
    "hardly-guided": (1.0001, True, 0.9),
}


@pytest.mark.parametrize("mode", GUIDANCE.values(), ids=GUIDANCE)
@pytest.mark.parametrize("rows", [1, 13, 512, 4096, 4212, 100_000])
def test_guidance_step(rows, mode, generator):
    """100,000 rows: about one norm in 200,000 would show another order of additions."""
    velocity, latents = normal(generator, 1, rows, 64), 0.1 * normal(generator, 1, rows, 64)
    uncond = velocity + 0.3 * torch.randn(velocity.shape, device="cuda", generator=generator).bfloat16()
    dt = torch.tensor(-0.7312739, device="cuda")
    for arguments in ((velocity, uncond, latents, dt, *mode), (velocity, None, latents, dt, *mode)):
        assert guidance_step.reject_reason(*arguments) is None
        assert_bits(guidance_step.reference(*arguments), guidance_step.fused(*arguments))


def test_guidance_norms_of_a_million_rows(generator):
    """Nothing but the norms: equal velocities, latents zero, dt one."""
    exponents = torch.randint(-3, 4, (4, 250_000, 64), device="cuda", generator=generator)
    velocity = torch.ldexp(torch.randn(exponents.shape, device="cuda", generator=generator), exponents).bfloat16()
    one = torch.tensor(1.0, device="cuda")
    arguments = (velocity, 0.9 * velocity, torch.zeros_like(velocity), one, 4.5, True, 0.0)
    assert_bits(guidance_step.reference(*arguments), guidance_step.fused(*arguments))


@pytest.mark.parametrize("mode", GUIDANCE.values(), ids=GUIDANCE)
@pytest.mark.parametrize("against", ["itself", "zero", "next", "normal"])
def test_guidance_step_over_all_patterns(against, mode, generator):
    """Rows of like magnitude, subnormals to NaN: products that are rounded twice, norms of zero, overflow."""
    velocity = all_patterns(1, 1024, 64)
    uncond = {
        "itself": velocity.clone(),
        "zero": torch.zeros_like(velocity),
        "next": velocity.roll(1, dims=-1),
        "normal": normal(generator, 1, 1024, 64),
    }[against]
    latents = all_patterns(1, 1024, 64).flip(-1) if against == "next" else torch.zeros_like(velocity)
    dt = torch.tensor(-0.7312739, device="cuda")
    for arguments in ((velocity, uncond, latents, dt, *mode), (velocity, None, latents, dt, *mode)):
        assert_bits(guidance_step.reference(*arguments), guidance_step.fused(*arguments))


def test_guidance_step_on_rows_of_a_longer_sequence(generator):
    """An editing model's velocity is the head of a longer sequence; both samples keep their own stride."""
    long = [normal(generator, 2, 9000, 64) for _ in range(2)]
    latents, dt = normal(generator, 2, 4212, 64), torch.tensor(-0.7312739, device="cuda")
    arguments = (long[0][:, :4212], long[1][:, :4212], latents, dt, 4.5, True, 0.0)
    assert_bits(guidance_step.reference(*arguments), guidance_step.fused(*arguments))


def test_every_operator_compiles_without_a_break(generator):
    query, key = (normal(generator, 1, 64, HEADS, 128) for _ in range(2))
    arguments = qk_arguments(generator, query, key, 7)
    x = normal(generator, 1, 64, 256)

    @torch.compile(fullgraph=True)
    def compiled(x, *arguments):
        query, key = torch.ops.fuseproof.qk_norm_rope(*arguments)
        both = torch.ops.fuseproof.attention_mlp_gelu(query.flatten(2), torch.ops.fuseproof.gelu_tanh(x))
        return query, key, both

    actual = compiled(x, *arguments)
    expected_query, expected_key = qk_norm_rope.reference(*arguments)
    both = attention_mlp_gelu.reference(expected_query.flatten(2), gelu_tanh.reference(x))
    assert_bits((expected_query, expected_key, both), actual)
