"""The rewritten ERNIE-Image blocks on a small real transformer: diffusers' bits, and reasons where they decline."""

import copy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from diffusers import ErnieImageTransformer2DModel
from torch import nn

from fuseproof.fastpaths import mount
from fuseproof.fastpaths.interpreter_rounding import exact_rounding
from fuseproof.fastpaths.kernels.launching import is_interpreted
from fuseproof.fastpaths.sites import ernie_image, side_by_side
from fuseproof.fastpaths.sites.ernie_image import blocks
from fuseproof.fastpaths.user_sites import load_user_sites
from tests.fastpaths.other_releases import forward_with
from tests.fastpaths.small_ernie import HEIGHT, TEXT, WIDTH, forwards, prompt, small_pipe, step

eager_attend = blocks.attend


@pytest.fixture
def pipe():
    return small_pipe()


def state_of(mounted, site="stream_blocks"):
    return mounted.report()["sites"][site]


def same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("batch", [1, 2])
def test_every_call_has_the_bits_of_eager_and_every_block_is_verified_once(batch, dtype):
    pipe = small_pipe(dtype)
    eager = forwards(pipe, batch=batch)
    with mount(pipe) as mounted:
        fused = forwards(pipe, batch=batch)
    assert same(eager, fused)
    counts = tuple(state_of(mounted)[key] for key in ("state", "verified_keys", "calls_fused"))
    assert ("fused", 2 + 1, 3 * 2) == counts, "two blocks, and the whole forward once"
    assert same(eager, forwards(pipe, batch=batch))


@pytest.mark.parametrize(
    "config",
    [
        {"patch_size": 2, "in_channels": 4, "out_channels": 4},
        {"hidden_size": 96, "num_attention_heads": 2, "rope_axes_dim": (16, 16, 16)},
        {"text_in_dim": 256},
    ],
    ids=["patches-of-two", "narrow-heads", "no-text-projection"],
)
def test_other_geometries_keep_every_bit(config):
    pipe = small_pipe(**config)
    request = {
        "hidden_states": torch.randn(2, config.get("in_channels", 16), HEIGHT, WIDTH),
        "timestep": torch.tensor([700.0, 700.0]),
        "text_bth": torch.randn(2, TEXT, pipe.transformer.text_in_dim),
        "text_lens": torch.tensor([3, TEXT]),
    }
    with torch.no_grad():
        eager = pipe.transformer(**request)
        with mount(pipe) as mounted:
            fused = pipe.transformer(**request)
    assert type(eager) is type(fused)
    assert torch.equal(eager.sample, fused.sample)
    assert "fused" == state_of(mounted)["state"]


def test_what_a_request_keeps_is_computed_once(pipe):
    request, seen = prompt(2), []
    for name in ("text_proj", "pos_embed"):
        module = getattr(pipe.transformer, name)
        forward = type(module).forward
        module.forward = lambda *args, m=module, f=forward, n=name: (seen.append(n), f(m, *args))[1]
    with torch.no_grad(), mount(pipe) as mounted:
        assert state_of(mounted, "text_projection")["reason"].startswith("text_proj has a hook or another forward")
    for name in ("text_proj", "pos_embed"):
        del getattr(pipe.transformer, name).forward
    with torch.no_grad(), mount(pipe) as mounted:
        for seed in range(3):
            pipe.transformer(**step(seed, 2), **request)
        for site in ernie_image.HOISTING_SITES:
            assert (2, 1) == (state_of(mounted, site)["calls_fused"], state_of(mounted, site)["calls_eager"])


@torch.no_grad()
@pytest.mark.parametrize("written", ["text_bth", "text_lens", "text_proj.weight"])
def test_what_was_written_to_is_computed_again(pipe, written):
    request = prompt(2)
    with mount(pipe):
        pipe.transformer(**step(0, 2), **request)
        target = request.get(written)
        target = pipe.transformer.text_proj.weight if target is None else target
        target.mul_(2) if target.is_floating_point() else target.sub_(1)
        fused = pipe.transformer(**step(0, 2), **request).sample
    assert torch.equal(pipe.transformer(**step(0, 2), **request).sample, fused)


@torch.no_grad()
def test_pictures_of_as_many_rows_in_another_shape_have_their_own_angles(pipe):
    request, sizes = prompt(), [(4, 6), (6, 4), (2, 12)]
    eager = [pipe.transformer(**step(0, size=size), **request).sample for size in sizes]
    with mount(pipe):
        fused = [pipe.transformer(**step(0, size=size), **request).sample for size in sizes]
    assert same(eager, fused)


def test_kernels_decline_on_a_cpu_and_say_so(pipe):
    with mount(pipe, quality="high") as mounted:
        forwards(pipe, 1)
    for site in ernie_image.KERNELS_OF_SITE:
        assert ("declined", "the model is on cpu; Triton kernels need a CUDA device") == (
            state_of(mounted, site)["state"],
            state_of(mounted, site)["reason"],
        )
    for site in ernie_image.APPROXIMATE_SITES:
        assert "the model is on cpu; approximate forms need a CUDA device" == state_of(mounted, site)["reason"]


@pytest.mark.parametrize("site", ["qk_norm_rotate_half", "rotary_angles", "image_rows"])
def test_asking_for_any_site_asks_for_the_blocks_it_works_in(pipe, site):
    eager = forwards(pipe, 1)
    with mount(pipe, sites=site) as mounted:
        assert same(eager, forwards(pipe, 1))
    assert "fused" == state_of(mounted)["state"]
    assert "off" == state_of(mounted, "packed_projections")["state"]


def test_names_and_values_of_the_state_dict_stay(pipe, tmp_path):
    before = {name: value.clone() for name, value in pipe.transformer.state_dict().items()}
    with mount(pipe):
        mounted = pipe.transformer.state_dict()
        assert list(before) == list(mounted)
        assert all(torch.equal(before[name], mounted[name]) for name in before)
        pipe.transformer.save_pretrained(tmp_path)
    saved = ErnieImageTransformer2DModel.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(before[name], saved[name]) for name in before)


def test_weights_loaded_while_mounted_are_the_ones_that_run_and_a_copy_is_plain(pipe):
    other = {name: value * 1.25 for name, value in pipe.transformer.state_dict().items()}
    with mount(pipe):
        forwards(pipe, 1)
        pipe.transformer.load_state_dict(other, strict=True)
        fused = forwards(pipe, 1)
        copied = SimpleNamespace(transformer=copy.deepcopy(pipe.transformer))
    assert same(forwards(pipe, 1), fused)
    assert same(forwards(copied, 1), fused)


def hook_a_block(pipe):
    pipe.transformer.layers[1].register_forward_pre_hook(lambda module, inputs: None)


def adapt_a_linear(pipe):
    class Adapter(nn.Linear):
        pass

    pipe.transformer.layers[0].mlp.up_proj.__class__ = Adapter


def give_a_bias(pipe):
    pipe.transformer.layers[0].self_attention.to_q.bias = nn.Parameter(torch.zeros(256))


def set_another_processor(pipe):
    class Another:
        _attention_backend = _parallel_config = None

    pipe.transformer.layers[1].self_attention.processor = Another()


def make_half(pipe):
    pipe.transformer.to(torch.float16)


def drop_a_norm(pipe):
    pipe.transformer.layers[0].self_attention.norm_q = None


def change_an_eps(pipe):
    pipe.transformer.layers[1].self_attention.norm_k.eps = 0.5


def tie(pipe):
    pipe.transformer.layers[1].mlp.up_proj.weight = pipe.transformer.layers[1].mlp.gate_proj.weight


def replace_the_forward(pipe):
    eager = pipe.transformer.forward
    pipe.transformer.forward = lambda *args, **kwargs: eager(*args, **{**kwargs, "return_dict": False})


DECLINES = {
    "a hooked block": (hook_a_block, "layers.1 has a hook or another forward"),
    "an adapted linear": (adapt_a_linear, "layers.0.mlp.up_proj is Adapter, which the rewritten"),
    "a bias": (give_a_bias, "layers.0.self_attention.to_q is not a plain Linear without bias"),
    "another processor": (set_another_processor, "layers.1.self_attention.processor is Another"),
    "fp16": (make_half, "weights are float16; the rewritten blocks need bfloat16 or float32"),
    "no query norm": (drop_a_norm, "layers.0.self_attention.norm_q and norm_k are NoneType and RMSNorm"),
    "two eps": (change_an_eps, "eps of layers.1.self_attention.norm_q and norm_k are 1e-06, 0.5"),
    "a tied weight": (tie, "layers.1.mlp.up_proj.weight is tied to layers.1.mlp.gate_proj.weight"),
    "a replaced forward": (replace_the_forward, "the transformer's own forward was replaced"),
}


@pytest.mark.parametrize("case", DECLINES)
def test_a_model_that_is_not_the_plain_one_declines_at_mount_by_name(pipe, case):
    change, reason = DECLINES[case]
    change(pipe)
    with mount(pipe) as mounted:
        assert "declined" == state_of(mounted)["state"]
        assert state_of(mounted)["reason"].startswith(reason)
        assert "declined" == state_of(mounted, "text_projection")["state"]


def replace_a_module(pipe):
    pipe.transformer.layers[0].mlp.linear_fc2 = nn.Linear(512, 256, bias=False)


def move_the_weights(pipe):
    pipe.transformer.to(torch.float64).to(torch.float32)


CHANGES = {
    "a hook": (hook_a_block, "layers.1 has a hook or another forward"),
    "a module replaced": (replace_a_module, "layers.0.mlp.linear_fc2 was replaced by Linear"),
    "weights moved": (move_the_weights, "layers.0.adaLN_sa_ln.weight has moved since mounting"),
    "another eps": (change_an_eps, "layers.1.self_attention.norm_k.eps changed"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_what_happens_to_the_model_while_mounted_is_noticed_at_the_next_call(pipe, case):
    change, reason = CHANGES[case]
    with mount(pipe) as mounted:
        forwards(pipe, 1)
        change(pipe)
        mounted.restart_counting()
        fused = forwards(pipe, 1)
        assert state_of(mounted)["state"] == "declined"
        assert state_of(mounted)["reason"].startswith(reason)
    assert same(forwards(pipe, 1), fused)


@pytest.mark.parametrize("name", ["x_embedder", "final_norm", "final_linear"])
def test_hooks_around_the_blocks_are_heard_whenever_they_come(pipe, name):
    with mount(pipe) as mounted:
        forwards(pipe, 1)
        handle = getattr(pipe.transformer, name).register_forward_hook(lambda module, inputs, output: output * 1.5)
        fused = forwards(pipe, 1)
        assert "fused" == state_of(mounted)["state"]
    assert same(forwards(pipe, 1), fused)
    handle.remove()
    assert not same(forwards(pipe, 1), fused)


ODD_CALLS = {
    "one timestep for two": ({"timestep": torch.tensor([700.0])}, "batch sizes are 1, 2; the rewritten blocks need"),
    "a scalar timestep": ({"timestep": torch.tensor(700.0)}, "timestep has 0 dimensions; the rewritten blocks take 1"),
}


@torch.no_grad()
@pytest.mark.parametrize("case", ODD_CALLS)
def test_calls_that_the_blocks_do_not_take_run_eager_and_say_why(pipe, case):
    changes, reason = ODD_CALLS[case]

    def outcome():
        try:
            return forwards(pipe, 1, batch=2, **changes)[0]
        except (RuntimeError, AssertionError) as error:
            return str(error)

    eager = outcome()
    with mount(pipe) as mounted:
        fused = outcome()
        assert state_of(mounted)["reason"].startswith(reason)
    assert torch.equal(eager, fused) if isinstance(eager, torch.Tensor) else eager == fused


def test_gradients_are_the_eager_ones_after_a_key_was_verified(pipe):
    def gradient():
        pipe.transformer.zero_grad()
        pipe.transformer(**step(0), **prompt(), return_dict=False)[0].square().sum().backward()
        return pipe.transformer.layers[0].mlp.up_proj.weight.grad.clone()

    eager = gradient()
    with mount(pipe) as mounted:
        forwards(pipe, 1)
        fused = gradient()
        assert "gradients are recorded" in state_of(mounted)["reason"]
    assert torch.equal(eager, fused)


def test_a_block_with_wrong_bits_is_rejected_and_the_result_stays_exact(pipe, monkeypatch):
    eager = forwards(pipe, 2)
    monkeypatch.setattr(blocks, "attend", lambda *args: torch.nextafter(eager_attend(*args), torch.tensor(9.0)))
    with mount(pipe) as mounted:
        assert same(eager, forwards(pipe, 2))
    assert "rejected" == state_of(mounted)["state"]
    assert "not bit-exact" in state_of(mounted)["reason"]


def test_products_that_differ_side_by_side_run_apart_inside_verified_blocks(pipe, monkeypatch):
    eager = forwards(pipe, 2)
    apart = side_by_side.F.linear

    def linear(x, weight, bias=None):
        result = apart(x, weight, bias)
        return torch.nextafter(result, torch.tensor(9.0)) if len(weight) == 3 * 256 else result

    monkeypatch.setattr(side_by_side, "F", SimpleNamespace(linear=linear))
    with mount(pipe) as mounted:
        assert same(eager, forwards(pipe, 2))
    assert ("fused", "rejected") == (state_of(mounted)["state"], state_of(mounted, "packed_projections")["state"])
    assert 2 * 2 == state_of(mounted, "packed_projections")["calls_fused"], "gate and up still run as one"


def test_the_mask_is_handed_on_even_where_it_masks_nothing(pipe, monkeypatch):
    masks = []
    monkeypatch.setattr(blocks, "attend", lambda *args: (masks.append(args[4]), eager_attend(*args))[1])
    with mount(pipe):
        forwards(pipe, 1)
    assert all((1, 1, 1, HEIGHT * WIDTH + TEXT) == tuple(mask.shape) and bool(mask.all()) for mask in masks)
    assert 2 == len(masks)


def test_a_library_whose_forward_changed_around_its_blocks_runs_eager(pipe, monkeypatch):
    """Every block and held value still has eager's bits; only the whole tells."""
    changed = forward_with(ErnieImageTransformer2DModel, "text_lens.float().view(", "(text_lens.float() + 1).view(")
    monkeypatch.setattr(ErnieImageTransformer2DModel, "forward", changed)
    eager = forwards(pipe, 2)
    with mount(pipe) as mounted:
        assert same(eager, forwards(pipe, 2))
    assert "rejected" == state_of(mounted)["state"]
    assert 2 == state_of(mounted)["calls_eager"], "both calls of the transformer, none block by block"


@torch.no_grad()
def test_positions_do_not_take_the_default_dtype(monkeypatch):
    """bf16 holds no whole number above 256 exactly."""
    pipe, rows = small_pipe(num_layers=1), 300
    request = {
        **step(0),
        "text_bth": torch.randn(1, rows, 24, generator=torch.Generator().manual_seed(0)),
        "text_lens": torch.tensor([rows]),
        "return_dict": False,
    }
    with mount(pipe) as mounted:
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            fused = pipe.transformer(**request)[0]
            found = state_of(mounted)["state"]
        finally:
            torch.set_default_dtype(default)
    assert torch.equal(pipe.transformer(**request)[0], fused)
    assert "fused" == found


@torch.no_grad()
def test_an_embedding_hooked_into_another_dtype_is_joined_as_eager_joins_it():
    pipe = small_pipe(torch.bfloat16)
    model = pipe.transformer
    model.x_embedder.register_forward_hook(lambda module, args, output: output.float())
    model.text_proj.register_forward_hook(lambda module, args, output: output.float())
    with pytest.raises(RuntimeError) as eager:
        forwards(pipe, 1)
    with mount(pipe), pytest.raises(RuntimeError) as mounted:
        forwards(pipe, 1)
    assert str(eager.value) == str(mounted.value)


@torch.no_grad()
def test_sides_that_no_patch_divides_fail_as_eager_fails():
    pipe = small_pipe(patch_size=2, in_channels=4, out_channels=4)
    call = {**prompt(1), "hidden_states": torch.randn(1, 4, 5, 6), "timestep": torch.tensor([900.0])}
    with pytest.raises(RuntimeError) as eager:
        pipe.transformer(**call)
    with mount(pipe), pytest.raises(RuntimeError) as mounted:
        pipe.transformer(**call)
    assert str(eager.value) == str(mounted.value)


@pytest.fixture
def kernels_on_a_cpu(monkeypatch):
    if not is_interpreted():
        pytest.skip("kernels are compiled here, not interpreted")
    monkeypatch.setattr(ernie_image, "site_reasons", lambda transformer: {})


@pytest.mark.usefixtures("kernels_on_a_cpu")
def test_the_kernels_inside_the_blocks_keep_every_bit_in_the_interpreter():
    """bf16 on the CPU, kernels interpreted: what a gate accepts runs, what it does not is eager; the bits stay."""
    pipe = small_pipe(torch.bfloat16, num_layers=1)
    call = step(0, 2, torch.bfloat16, size=(1, 2))
    with exact_rounding():
        eager = forwards(pipe, 1, batch=2, **call)
        with mount(pipe) as mounted:
            assert same(eager * 2, [forwards(pipe, 1, batch=2, **call)[0] for _ in range(2)])
    assert state_of(mounted, "gated_residual")["calls_fused"] > 0
    assert [] == [
        site for site in ernie_image.KERNELS_OF_SITE if not (state_of(mounted, site)["calls_fused"] or
        state_of(mounted, site)["reason"])
    ]  # fmt: skip


SINGLE_PASS = Path(__file__).parents[2] / "data/single_pass_norms.py"


@pytest.mark.usefixtures("kernels_on_a_cpu")
@pytest.mark.parametrize("gate", ["enforce", "observe"])
def test_norms_that_round_once_are_rejected_at_first_sight_and_the_forward_stays_exact(gate):
    pipe, own = small_pipe(torch.bfloat16, num_layers=1), load_user_sites(SINGLE_PASS).sites
    call = step(0, 1, torch.bfloat16, size=(1, 2))
    with exact_rounding():
        eager = forwards(pipe, 1, **call)
        with mount(pipe, user_sites=own, gate=gate) as mounted:
            assert (gate == "enforce") == same(eager, forwards(pipe, 1, **call))
    for site in ("single_pass_norm", "single_pass_residual_norm"):
        found = state_of(mounted, site)
        if gate == "enforce":
            assert ("rejected", 0) == (found["state"], found["calls_fused"])
            assert "not bit-exact" in found["reason"]
        else:
            assert "observed" == found["state"]
