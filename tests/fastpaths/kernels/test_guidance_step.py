"""The interpreted kernel against a model of CUDA's order; where no norm is taken, against the reference itself."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch._subclasses.fake_tensor import FakeTensorMode

from fuseproof.fastpaths.kernels import guidance_step
from fuseproof.fastpaths.kernels.bfloat16 import widened

SHAPES = {"one-row": (1, 1), "below-a-block": (1, 13), "two-samples": (2, 17), "two-blocks": (1, 32)}
MODES = {
    "guided": (4.5, False, 0.0),
    "renormalised": (4.5, True, 0.0),
    "renormalised-at-least": (7.3, True, 0.3),
    "hardly-guided": (1.0001, True, 0.9),
}


def bits(tensor):
    return tensor.contiguous().view(torch.int16)


def sum_of_squares(x, ascending=False):
    """As torch.norm adds 64 bf16 values on CUDA: t and t + 32 first, then lanes fold 16, 8, 4, 2, 1; [..., 1] fp32."""
    squares = x.float().numpy() ** 2
    lanes = squares[..., :32] + squares[..., 32:]
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., 0::2] + lanes[..., 1::2] if ascending else lanes[..., :half] + lanes[..., half:]
    return lanes


def norm(x):
    return torch.from_numpy(np.sqrt(sum_of_squares(x))).bfloat16()


def model(velocity, velocity_uncond, latents, dt, guidance_scale, renormalise, renorm_min):
    """Every operation in fp32, rounded where eager rounds."""

    def rounded(x):
        return x.bfloat16().float()

    guided = velocity.float()
    if velocity_uncond is not None:
        uncond = velocity_uncond.float()
        guided = rounded(uncond + rounded(np.float32(guidance_scale) * rounded(guided - uncond)))
        if renormalise:
            at_least = rounded(norm(guided).float() + np.float32(1e-8))
            ratio = rounded(norm(velocity).float() / at_least)
            guided = rounded(guided * rounded(ratio.clamp(min=renorm_min, max=1.0)))
    return (latents.float() + rounded(rounded(dt) * guided)).bfloat16()


def random_tensors(batch, rows, seed=0):
    """velocity, velocity_uncond, latents, dt; rows of very different length, steps longer than the latents."""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, rows, 64)

    def normal(*size):
        return torch.randn(size, generator=generator)

    velocity = (normal(*shape) * normal(batch, rows, 1).exp()).bfloat16()
    uncond = (velocity.float() + 0.3 * normal(*shape)).bfloat16()
    return velocity, uncond, (0.1 * normal(*shape)).bfloat16(), torch.tensor(-0.7312739)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_guided(shape, mode):
    arguments = (*random_tensors(*shape), *mode)
    assert guidance_step.reject_reason(*arguments) is None
    assert torch.equal(bits(model(*arguments)), bits(guidance_step.fused(*arguments)))


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_without_an_unconditional_velocity_only_the_step_remains(mode):
    velocity, _, latents, dt = random_tensors(1, 19)
    actual = guidance_step.fused(velocity, None, latents, dt, *mode)
    assert torch.equal(bits(guidance_step.reference(velocity, None, latents, dt, *mode)), bits(actual))


def test_without_renormalisation_cpu_eager_agrees():
    arguments = (*random_tensors(2, 19), 4.5, False, 0.0)
    assert torch.equal(bits(guidance_step.reference(*arguments)), bits(guidance_step.fused(*arguments)))


@triton.jit
def _sums_kernel(x_ptr, out_ptr, FOLD: tl.constexpr):  # noqa: N803 - a compile-time argument
    row = tl.arange(0, 16)[:, None]
    x = widened(tl.load(x_ptr + row * 64 + tl.arange(0, 64)[None, :]))
    tl.store(out_ptr + row, guidance_step.sum_of_squares(x, 16, FOLD))


@pytest.mark.parametrize(("fold", "is_ascending"), [("halves", False), ("neighbours", True)])
def test_the_order_of_the_folds_shows_in_the_sums(fold, is_ascending):
    """In fp32 the order changes every third sum; in bf16 about one norm in 200,000."""
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    sums = torch.full((16, 1), float("nan"))
    _sums_kernel[(1,)](x, sums, FOLD=fold, enable_fp_fusion=False)
    assert torch.equal(torch.from_numpy(sum_of_squares(x, is_ascending)), sums)
    assert not torch.equal(torch.from_numpy(sum_of_squares(x, not is_ascending)), sums)


def test_the_reference_is_the_pipeline_and_the_scheduler():
    from diffusers import FlowMatchEulerDiscreteScheduler

    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(7)
    scheduler.set_begin_index(0)
    velocity, uncond, latents, _ = random_tensors(1, 5)
    guided = uncond + 4.5 * (velocity - uncond)
    conditional_norm = torch.norm(velocity, dim=-1, keepdim=True)
    scale = conditional_norm / (torch.norm(guided, dim=-1, keepdim=True) + 1e-8)
    guided = guided * scale.clamp(min=0.0, max=1.0)
    wanted = scheduler.step(guided, scheduler.timesteps[0], latents, return_dict=False)[0]
    dt = scheduler.sigmas[1] - scheduler.sigmas[0]
    assert torch.equal(bits(wanted), bits(guidance_step.reference(velocity, uncond, latents, dt, 4.5, True, 0.0)))


def test_strided_rows_and_unchanged_inputs():
    wide = torch.full((4, 2, 23, 96), float("nan"), dtype=torch.bfloat16)
    tensors = random_tensors(2, 11)
    views = [wide[i, :, 5:16, 16:80].copy_(x) for i, x in enumerate(tensors[:3])]
    before = wide.clone()
    arguments = (*views, tensors[3], 4.5, True, 0.0)
    first, second = guidance_step.fused(*arguments), guidance_step.fused(*arguments)
    assert torch.equal(bits(model(*tensors, 4.5, True, 0.0)), bits(first))
    assert torch.equal(bits(first), bits(second))
    assert torch.equal(bits(before), bits(wide))
    assert first.is_contiguous()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_special_values():
    """Rows of zeros, equal velocities, subnormals, products that round twice, huge values, infinities, NaN."""
    velocity, uncond, latents, dt = random_tensors(1, 8)
    velocity[0, 0] = uncond[0, 0] = 0.0
    velocity[0, 1] = uncond[0, 1]
    velocity[0, 2] = torch.arange(64, dtype=torch.int16).view(torch.bfloat16)
    uncond[0, 2] = -velocity[0, 2]
    velocity[0, 3] = uncond[0, 3] = torch.arange(0x0400, 0x0440, dtype=torch.int16).view(torch.bfloat16)
    latents[0, 2:4] = 0.0
    velocity[0, 4] *= 2e38
    uncond[0, 5, 7] = float("inf")
    velocity[0, 6, 9] = float("nan")
    arguments = (velocity, uncond, latents, dt, 4.5, True, 0.0)
    wanted, actual = model(*arguments), guidance_step.fused(*arguments)
    assert torch.equal(wanted.isnan(), actual.isnan())
    assert torch.equal(bits(wanted)[~wanted.isnan()], bits(actual)[~wanted.isnan()])
    assert [False] * 4 == actual[0, :4].isnan().any(dim=1).tolist()
    assert [True, False] == actual[0, 6:].isnan().any(dim=1).tolist()


VELOCITY, UNCOND, LATENTS, DT = range(4)
REASONS = {
    "fp32": ("velocity is float32; the kernel needs bfloat16", VELOCITY, lambda x: x.float()),
    "two-dimensions": ("velocity has 2 dimensions; the kernel needs 3: [B, S, 64]", VELOCITY, lambda x: x[0]),
    "empty": ("velocity has shape [1, 0, 64]; the kernel needs at least one element", VELOCITY, lambda x: x[:, :0]),
    "channels": ("velocity has shape [1, 5, 32]; the kernel needs [1, 5, 64]", VELOCITY, lambda x: x[..., :32]),
    "uncond-rows": ("velocity_uncond has shape [1, 4, 64]; the kernel needs [1, 5, 64]", UNCOND, lambda x: x[:, :4]),
    "latents-device": ("latents is on meta; the other tensors are on cpu", LATENTS, lambda x: x.to("meta")),
    "latents-dtype": ("latents is float32; the kernel needs bfloat16", LATENTS, lambda x: x.float()),
    "last-dimension": (
        "velocity_uncond has strides [320, 1, 5]; the kernel needs a contiguous last dimension",
        UNCOND,
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    ),
    "dt-dimensions": (
        "dt is [1] float32 on cpu; the kernel needs one float32 number, without dimensions, on cpu",
        DT,
        lambda x: x[None],
    ),
    "dt-dtype": (
        "dt is [] float64 on cpu; the kernel needs one float32 number, without dimensions, on cpu",
        DT,
        lambda x: x.double(),
    ),
    "dt-device": (
        "dt is [] float32 on meta; the kernel needs one float32 number, without dimensions, on cpu",
        DT,
        lambda x: x.to("meta"),
    ),
}


@pytest.mark.parametrize(("expected_reason", "position", "change"), REASONS.values(), ids=REASONS)
def test_reject_reasons(expected_reason, position, change):
    tensors = list(random_tensors(1, 5))
    tensors[position] = change(tensors[position])
    assert expected_reason == guidance_step.reject_reason(*tensors, 4.5, True, 0.0)


@pytest.mark.parametrize(("expected_value", "renorm_min"), [("1.5", 1.5), ("nan", float("nan"))], ids=["1.5", "nan"])
def test_a_floor_above_the_ceiling_is_declined(expected_value, renorm_min):
    reason = guidance_step.reject_reason(*random_tensors(1, 5), 4.5, True, renorm_min)
    assert f"renorm_min is {expected_value}; the kernel needs at most 1" == reason


def test_without_the_interpreter_cpu_tensors_are_declined(monkeypatch):
    from triton import knobs

    monkeypatch.setattr(knobs.runtime, "interpret", False)
    reason = guidance_step.reject_reason(*random_tensors(1, 5), 4.5, True, 0.0)
    assert reason == "velocity is on cpu; the kernel needs a CUDA device"


@pytest.mark.parametrize("guided", [True, False], ids=["guided", "not-guided"])
def test_the_operator_is_functional_and_has_a_fake(guided):
    velocity, uncond, latents, dt = random_tensors(1, 5)
    arguments = (velocity, uncond if guided else None, latents, dt, 4.5, True, 0.0)
    operator = torch.ops.fuseproof.guidance_step
    assert torch.equal(bits(model(*arguments)), bits(operator(*arguments)))
    torch.library.opcheck(operator.default, arguments, test_utils=("test_schema", "test_faketensor"))
    with FakeTensorMode() as mode:
        out = operator(*(mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments))
    assert ((1, 5, 64), torch.bfloat16) == (tuple(out.shape), out.dtype)
    with pytest.raises(ValueError, match="latents is float32"):
        operator(*arguments[:2], latents.float(), *arguments[3:])


def test_traffic_counts_everything_once():
    arguments = (*random_tensors(1, 5), 4.5, True, 0.0)
    assert 4 * 5 * 128 == guidance_step.traffic_bytes(*arguments)
    assert 3 * 5 * 128 == guidance_step.traffic_bytes(arguments[0], None, *arguments[2:])
