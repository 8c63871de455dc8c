"""The rewritten blocks on a small real transformer: diffusers' bits, its state dict, and reasons where they decline."""

import copy
from types import SimpleNamespace

import pytest
import torch
from diffusers import LongCatImageTransformer2DModel
from torch import nn

from fuseproof.fastpaths import mount
from fuseproof.fastpaths.interpreter_rounding import exact_rounding
from fuseproof.fastpaths.kernels.launching import is_interpreted
from fuseproof.fastpaths.sites import longcat_image
from fuseproof.fastpaths.sites.longcat_image import blocks, steps_ahead
from tests.fastpaths.other_releases import forward_with

TEXT, IMAGE = 3, 5
eager_attend = blocks.attend


def make_pipe(dtype=torch.float32, heads=2):
    torch.manual_seed(0)
    transformer = LongCatImageTransformer2DModel(
        in_channels=16, num_layers=2, num_single_layers=2, attention_head_dim=128, num_attention_heads=heads,
        joint_attention_dim=8, pooled_projection_dim=8, axes_dims_rope=[16, 56, 56],
    ).eval()  # fmt: skip
    return SimpleNamespace(transformer=transformer.to(dtype))


@pytest.fixture
def pipe():
    return make_pipe()


def arguments(batch=1, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "hidden_states": torch.randn(batch, IMAGE, 16, generator=generator).to(dtype),
        "encoder_hidden_states": torch.randn(batch, TEXT, 8, generator=generator).to(dtype),
        "timestep": torch.full((batch,), 0.7, dtype=dtype),
        "img_ids": torch.rand(IMAGE, 3, generator=generator),
        "txt_ids": torch.zeros(TEXT, 3),
        "return_dict": False,
    }


@torch.no_grad()
def velocity(pipe, **changes):
    return pipe.transformer(**(arguments() | changes))[0]


def state_of(mounted, site="packed_blocks"):
    return mounted.report()["sites"][site]


@pytest.mark.parametrize("batch", [1, 2])
@torch.no_grad()
def test_every_call_has_the_bits_of_eager(pipe, batch):
    """Whatever the gates decide: on a CPU the library may sum a wider matrix of two samples in another order."""
    eager = [pipe.transformer(**arguments(batch, seed=seed))[0] for seed in range(3)]
    with mount(pipe):
        fused = [pipe.transformer(**arguments(batch, seed=seed))[0] for seed in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(eager, fused, strict=True))


def test_every_block_is_verified_once_and_runs_rewritten_from_then_on(pipe):
    with mount(pipe) as mounted:
        for seed in range(3):
            velocity(pipe, **arguments(seed=seed))
    assert "fused" == state_of(mounted)["state"]
    assert 4 + 1 == state_of(mounted)["verified_keys"], "four blocks, and the whole forward once"
    assert 3 * 4 == state_of(mounted)["calls_fused"]


@torch.no_grad()
def test_the_output_object_is_diffusers_own(pipe):
    eager = pipe.transformer(**(arguments() | {"return_dict": True}))
    with mount(pipe):
        fused = pipe.transformer(**(arguments() | {"return_dict": True}))
    assert type(eager) is type(fused)
    assert torch.equal(eager.sample, fused.sample)


def test_kernels_decline_on_a_cpu_and_say_so(pipe):
    with mount(pipe) as mounted:
        velocity(pipe)
    for site in longcat_image.KERNELS_OF_SITE:
        assert "declined" == state_of(mounted, site)["state"]
        assert "the model is on cpu; Triton kernels need a CUDA device" == state_of(mounted, site)["reason"]


def test_asking_for_a_kernel_asks_for_the_blocks_it_works_in(pipe):
    with mount(pipe, sites="qk_norm_rope") as mounted:
        velocity(pipe)
    assert "fused" == state_of(mounted)["state"]
    assert "off" == state_of(mounted, "modulation")["state"]


def test_names_and_values_of_the_state_dict_stay(pipe, tmp_path):
    before = {name: value.clone() for name, value in pipe.transformer.state_dict().items()}
    with mount(pipe):
        mounted = pipe.transformer.state_dict()
        assert list(before) == list(mounted)
        assert all(torch.equal(before[name], mounted[name]) for name in before)
        pipe.transformer.save_pretrained(tmp_path)
    saved = LongCatImageTransformer2DModel.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(before[name], saved[name]) for name in before)


def test_weights_loaded_while_mounted_are_the_ones_that_run(pipe):
    other = {name: value * 1.25 for name, value in pipe.transformer.state_dict().items()}
    with mount(pipe):
        velocity(pipe)
        pipe.transformer.load_state_dict(other, strict=True)
        fused = velocity(pipe)
    assert torch.equal(velocity(pipe), fused)


def test_a_copy_of_a_mounted_model_is_a_plain_model(pipe):
    with mount(pipe):
        velocity(pipe)
        copied = SimpleNamespace(transformer=copy.deepcopy(pipe.transformer))
    assert torch.equal(velocity(pipe), velocity(copied))


def hook_a_block(pipe):
    pipe.transformer.transformer_blocks[1].register_forward_pre_hook(lambda module, inputs: None)


def adapt_a_linear(pipe):
    class Adapter(nn.Linear):
        pass

    pipe.transformer.single_transformer_blocks[0].attn.to_q.__class__ = Adapter


def fuse_projections(pipe):
    for block in pipe.transformer.transformer_blocks:
        block.attn.fused_projections = True


def set_another_processor(pipe):
    class Another:
        _attention_backend = _parallel_config = None

    pipe.transformer.single_transformer_blocks[1].attn.processor = Another()


def make_half(pipe):
    pipe.transformer.to(torch.float16)


def replace_the_forward(pipe):
    eager = pipe.transformer.forward
    pipe.transformer.forward = lambda *args, **kwargs: eager(*args, **{**kwargs, "return_dict": False})


DECLINES = {
    "a hooked block": (hook_a_block, "transformer_blocks.1 has a hook or another forward"),
    "an adapted linear": (adapt_a_linear, "single_transformer_blocks.0.attn.to_q is Adapter, which the rewritten"),
    "fused projections": (fuse_projections, "transformer_blocks.0.attn has fused projections"),
    "another processor": (set_another_processor, "single_transformer_blocks.1.attn.processor is Another"),
    "fp16": (make_half, "weights are float16; the rewritten blocks need bfloat16 or float32"),
    "a replaced forward": (replace_the_forward, "the transformer's own forward was replaced"),
}


@pytest.mark.parametrize("case", DECLINES)
def test_a_model_that_is_not_the_plain_one_declines_at_mount_by_name(pipe, case):
    change, reason = DECLINES[case]
    change(pipe)
    with mount(pipe) as mounted:
        assert "declined" == state_of(mounted)["state"]
        assert state_of(mounted)["reason"].startswith(reason)


def replace_a_module(pipe):
    pipe.transformer.transformer_blocks[0].ff.net[2] = nn.Linear(1024, 256)


def move_the_weights(pipe):
    pipe.transformer.to(torch.float64).to(torch.float32)


CHANGES = {
    "a hook": (hook_a_block, "transformer_blocks.1 has a hook or another forward"),
    "a module replaced": (replace_a_module, "transformer_blocks.0.ff.net.2 was replaced by Linear"),
    "weights moved": (move_the_weights, "transformer_blocks.0.norm1.linear.weight has moved since mounting"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_what_happens_to_the_model_while_mounted_is_noticed_at_the_next_call(pipe, case):
    change, reason = CHANGES[case]
    with mount(pipe) as mounted:
        velocity(pipe)
        change(pipe)
        mounted.restart_counting()
        fused = velocity(pipe)
        assert state_of(mounted)["state"] == "declined"
        assert state_of(mounted)["reason"].startswith(reason)
    assert torch.equal(velocity(pipe), fused)


def test_gradients_are_the_eager_ones_after_a_key_was_verified(pipe):
    def gradient():
        pipe.transformer.zero_grad()
        pipe.transformer(**arguments())[0].square().sum().backward()
        return pipe.transformer.transformer_blocks[0].attn.to_q.weight.grad.clone()

    eager = gradient()
    with mount(pipe) as mounted:
        velocity(pipe)
        fused = gradient()
        assert "gradients are recorded" in state_of(mounted)["reason"]
    assert torch.equal(eager, fused)


def test_autocast_runs_eager(pipe):
    with torch.autocast("cpu", torch.bfloat16):
        eager = velocity(pipe)
        with mount(pipe) as mounted:
            fused = velocity(pipe)
    assert torch.equal(eager, fused)
    assert "autocast is on (1 call(s))" == state_of(mounted)["reason"]


@torch.no_grad()
def test_a_library_whose_forward_changed_around_its_blocks_runs_eager(pipe, monkeypatch):
    changed = forward_with(LongCatImageTransformer2DModel, "= self.proj_out(", "= 2 * self.proj_out(")
    monkeypatch.setattr(LongCatImageTransformer2DModel, "forward", changed)
    eager = velocity(pipe)
    with mount(pipe) as mounted:
        assert all(torch.equal(eager, velocity(pipe)) for _ in range(2))
    assert "rejected" == state_of(mounted)["state"]
    assert 2 == state_of(mounted)["calls_eager"], "both calls of the transformer, none block by block"


def test_a_block_with_wrong_bits_is_rejected_and_the_result_stays_exact(pipe, monkeypatch, caplog):
    eager = velocity(pipe)
    monkeypatch.setattr(blocks, "attend", lambda *args: torch.nextafter(eager_attend(*args), torch.tensor(9.0)))
    with mount(pipe) as mounted:
        fused = [velocity(pipe) for _ in range(2)]
    assert all(torch.equal(eager, result) for result in fused)
    assert "rejected" == state_of(mounted)["state"]
    assert "not bit-exact" in state_of(mounted)["reason"]
    assert "fast path packed_blocks rejected" in caplog.text


def test_an_exception_at_first_sight_rejects_the_block_and_restores_its_input(pipe, monkeypatch):
    eager = velocity(pipe)

    def fail(self, stream, *args):
        stream.hidden.fill_(float("nan"))
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(blocks.SingleBlock, "run", fail)
    with mount(pipe) as mounted:
        assert torch.equal(eager, velocity(pipe))
    assert "RuntimeError at first sight: no such kernel" in state_of(mounted)["reason"]


def test_an_exception_after_verification_fails_the_request(pipe, monkeypatch):
    def fail(self, stream, *args):
        raise RuntimeError("the device is gone")

    with mount(pipe):
        velocity(pipe)
        monkeypatch.setattr(blocks.JointBlock, "run", fail)
        with pytest.raises(RuntimeError, match="the device is gone"):
            velocity(pipe)


def test_verifying_every_call_finds_what_goes_wrong_later(pipe, monkeypatch):
    with mount(pipe, verifies_every_call=True) as mounted:
        eager = velocity(pipe)
        assert "fused" == state_of(mounted)["state"]
        monkeypatch.setattr(blocks, "attend", lambda *args: eager_attend(*args) * 1.5)
        assert torch.equal(eager, velocity(pipe))
        assert "rejected" == state_of(mounted)["state"]


def test_the_kernels_inside_the_blocks_keep_every_bit_in_the_interpreter(monkeypatch):
    """bf16 on the CPU, kernels interpreted: what a gate accepts runs, what it does not is eager; the bits stay."""
    if not is_interpreted():
        pytest.skip("kernels are compiled here, not interpreted")
    monkeypatch.setattr(longcat_image, "site_reasons", lambda transformer: {})
    pipe = make_pipe(torch.bfloat16)
    request = arguments(dtype=torch.bfloat16)
    with torch.no_grad(), exact_rounding():
        eager = pipe.transformer(**request)[0]
        with mount(pipe) as mounted:
            fused = [pipe.transformer(**request)[0] for _ in range(2)]
    assert all(torch.equal(eager, result) for result in fused)
    assert state_of(mounted, "gated_residual")["calls_fused"] > 0


@pytest.fixture
def works_ahead(monkeypatch):
    """On a CPU one row of 64 has other bits than one row alone; blocks of one row make the mechanism's own test."""
    monkeypatch.setattr(steps_ahead, "pays", lambda transformer: True)
    monkeypatch.setattr(steps_ahead, "ROWS", 1)


@pytest.mark.usefixtures("works_ahead")
@torch.no_grad()
def test_announced_steps_are_computed_at_once_and_known_by_their_tensors(pipe):
    steps = [torch.tensor([value]) for value in (0.9, 0.5, 0.2)]
    eager = [velocity(pipe, timestep=step) for step in steps for _ in range(2)]
    with mount(pipe) as mounted:
        mounted.announce_steps(steps)
        fused = [velocity(pipe, timestep=step) for step in steps for _ in range(2)]
        for site in ("timestep_embedding", "modulation"):
            assert (6, 0) == (state_of(mounted, site)["calls_fused"], state_of(mounted, site)["calls_eager"])
        other = velocity(pipe, timestep=torch.tensor([0.5]))
    assert all(torch.equal(a, b) for a, b in zip(eager, fused, strict=True))
    assert torch.equal(eager[2], other)


@torch.no_grad()
def test_steps_whose_bits_differ_when_computed_at_once_are_rejected_and_computed_one_by_one(pipe, monkeypatch):
    monkeypatch.setattr(steps_ahead, "pays", lambda transformer: True)
    exact = steps_ahead.ModulationTable.fused
    monkeypatch.setattr(
        steps_ahead.ModulationTable, "fused", lambda self, temb: exact(self, temb) * (1.5 if len(temb) > 1 else 1.0)
    )
    steps = [torch.tensor([0.9]), torch.tensor([0.5])]
    eager = [velocity(pipe, timestep=step) for step in steps]
    with mount(pipe) as mounted:
        mounted.announce_steps(steps)
        fused = [velocity(pipe, timestep=step) for step in steps]
    assert all(torch.equal(a, b) for a, b in zip(eager, fused, strict=True))
    assert "rejected" == state_of(mounted, "modulation")["state"]


@pytest.mark.usefixtures("works_ahead")
@torch.no_grad()
@pytest.mark.parametrize("written", ["a weight", "a timestep"])
def test_what_was_computed_ahead_is_dropped_when_its_sources_are_written(pipe, written):
    steps = [torch.tensor([0.9]), torch.tensor([0.5])]
    with mount(pipe) as mounted:
        mounted.announce_steps(steps)
        velocity(pipe, timestep=steps[0])
        target = pipe.transformer.norm_out.linear.weight if written == "a weight" else steps[1]
        target.mul_(1.5)
        fused = velocity(pipe, timestep=steps[1])
    assert torch.equal(velocity(pipe, timestep=steps[1]), fused)
