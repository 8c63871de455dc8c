"""The rewritten Wan blocks on a small real transformer: diffusers' bits, and reasons where they decline."""

import copy
from types import SimpleNamespace

import pytest
import torch
from diffusers import WanTransformer3DModel
from torch import nn

from fuseproof.fastpaths import mount
from fuseproof.fastpaths.interpreter_rounding import exact_rounding
from fuseproof.fastpaths.kernels import across_heads_norm, table_gated_residual_layernorm, table_layernorm_modulate
from fuseproof.fastpaths.kernels.launching import is_interpreted
from fuseproof.fastpaths.sites import side_by_side, wan_transformer
from fuseproof.fastpaths.sites.wan_transformer import blocks, forward
from tests.fastpaths.kernels.wan_transformer_models import norms_of_cuda
from tests.fastpaths.other_releases import forward_with
from tests.fastpaths.small_wan import FRAMES, HEIGHT, TOKENS, WIDTH, forwards, prompt, small_pipe, step

eager_attend = forward.attend
KINDS = ("text", "image", "three", "mixed", "sample")


@pytest.fixture
def pipe():
    return small_pipe()


def state_of(mounted, site="video_blocks"):
    return mounted.report()["sites"][site]


def same(left, right):
    return all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_every_call_has_the_bits_of_eager_and_every_block_is_verified_once(batch, dtype, kind):
    pipe = small_pipe(dtype)
    eager = forwards(pipe, batch=batch, kind=kind)
    with mount(pipe) as mounted:
        fused = forwards(pipe, batch=batch, kind=kind)
    assert same(eager, fused)
    counts = tuple(state_of(mounted)[key] for key in ("state", "verified_keys", "calls_fused"))
    assert ("fused", 2 + 1, 3 * 2) == counts, "two blocks, and the whole forward once"
    assert same(eager, forwards(pipe, batch=batch, kind=kind))


def test_a_clip_from_an_image_is_another_kind_of_call_and_compared_whole_too(pipe):
    with mount(pipe) as mounted:
        forwards(pipe, 1, kind="text")
        assert 2 + 1 == state_of(mounted)["verified_keys"]
        forwards(pipe, 2, kind="image")
        assert 2 * (2 + 1) == state_of(mounted)["verified_keys"]


@pytest.mark.parametrize(
    "config",
    [{"patch_size": (1, 1, 2)}, {"num_attention_heads": 3, "attention_head_dim": 24}, {"out_channels": 6}],
    ids=["flat-patches", "narrow-heads", "more-channels-out"],
)
@torch.no_grad()
def test_other_geometries_keep_every_bit(config):
    pipe = small_pipe(**config)
    call = {**step(0, kind="sample"), "encoder_hidden_states": prompt()}
    eager = pipe.transformer(**call)
    with mount(pipe) as mounted:
        fused = pipe.transformer(**call)
    assert type(eager) is type(fused)
    assert torch.equal(eager.sample, fused.sample)
    assert "fused" == state_of(mounted)["state"]


def test_what_a_request_keeps_is_computed_once(pipe):
    with mount(pipe) as mounted:
        forwards(pipe)
        for site in ("text_keys_values", "rotary_grid"):
            assert (2, 1) == (state_of(mounted, site)["calls_fused"], state_of(mounted, site)["calls_eager"])


@torch.no_grad()
def test_two_texts_by_turns_and_a_new_one_have_their_own_keys_and_values(pipe):
    texts = [prompt(seed=seed) for seed in (1, 2, 1, 3)]
    turns = [texts[0], texts[1], texts[0], texts[1], texts[2], texts[3]]

    def results():
        return [pipe.transformer(**step(0), encoder_hidden_states=text).sample for text in turns]

    eager = results()
    with mount(pipe) as mounted:
        assert same(eager, results())
        assert 2 == state_of(mounted, "text_keys_values")["calls_fused"], "only the very same tensor is known again"
        mounted.end_request()
        mounted.restart_counting()
        assert same(eager[:1], results()[:1])
        assert 2 == state_of(mounted, "text_keys_values")["calls_fused"], "nothing was left of the request before"


@torch.no_grad()
@pytest.mark.parametrize(
    "written",
    [
        "text",
        "condition_embedder.text_embedder.linear_1.weight",
        "blocks.1.attn2.to_k.weight",
        "condition_embedder.time_proj.bias",
        "blocks.0.scale_shift_table",
        "scale_shift_table",
        "blocks.0.attn1.to_v.weight",
    ],
)
def test_what_was_written_to_is_computed_again(pipe, written):
    call = {**step(0, kind="image"), "encoder_hidden_states": prompt()}
    with mount(pipe):
        before = pipe.transformer(**call).sample
        target = call["encoder_hidden_states"] if written == "text" else pipe.transformer.get_parameter(written)
        target.mul_(2)
        fused = pipe.transformer(**call).sample
    assert torch.equal(pipe.transformer(**call).sample, fused)
    assert not torch.equal(before, fused)


@torch.no_grad()
def test_clips_of_as_many_tokens_in_another_shape_have_their_own_grid(pipe):
    sizes = [(FRAMES, HEIGHT, WIDTH), (FRAMES, WIDTH, HEIGHT), (WIDTH, HEIGHT, FRAMES + 1)]
    calls = [{**step(0), "hidden_states": torch.randn(1, 4, *size)} for size in sizes]
    calls = [{**call, "timestep": torch.full((1,), 700)} for call in calls]
    eager = [pipe.transformer(**call, encoder_hidden_states=prompt()).sample for call in calls]
    with mount(pipe):
        assert same(eager, [pipe.transformer(**call, encoder_hidden_states=prompt()).sample for call in calls])


def test_kernels_decline_on_a_cpu_and_say_so(pipe):
    with mount(pipe) as mounted:
        forwards(pipe, 1)
    for site in wan_transformer.KERNELS_OF_SITE:
        assert ("declined", "the model is on cpu; Triton kernels need a CUDA device") == (
            state_of(mounted, site)["state"],
            state_of(mounted, site)["reason"],
        )


@pytest.mark.parametrize("site", ["across_heads_norm_rope", "rotary_grid", "timestep_rows", "packed_qkv"])
def test_asking_for_any_site_asks_for_the_blocks_it_works_in(pipe, site):
    eager = forwards(pipe, 1, kind="image")
    with mount(pipe, sites=site) as mounted:
        assert same(eager, forwards(pipe, 1, kind="image"))
    assert "fused" == state_of(mounted)["state"]
    assert "off" == state_of(mounted, "text_keys_values")["state"]


def test_names_and_values_of_the_state_dict_stay(pipe, tmp_path):
    before = {name: value.clone() for name, value in pipe.transformer.state_dict().items()}
    with mount(pipe):
        mounted = pipe.transformer.state_dict()
        assert list(before) == list(mounted)
        assert all(torch.equal(before[name], mounted[name]) for name in before)
        pipe.transformer.save_pretrained(tmp_path)
    saved = WanTransformer3DModel.from_pretrained(tmp_path).state_dict()
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
    pipe.transformer.blocks[1].register_forward_pre_hook(lambda module, inputs: None)


def hook_the_embedder(pipe):
    pipe.transformer.condition_embedder.register_forward_hook(lambda module, inputs, output: output)


def adapt_a_linear(pipe):
    class Adapter(nn.Linear):
        pass

    pipe.transformer.blocks[0].ffn.net[0].proj.__class__ = Adapter


def set_another_processor(pipe):
    class Another:
        _attention_backend = _parallel_config = None

    pipe.transformer.blocks[1].attn2.processor = Another()


def fuse_projections(pipe):
    pipe.transformer.blocks[0].attn1.fuse_projections()


def make_half(pipe):
    pipe.transformer.to(torch.float16)


def cast_the_tables(pipe):
    pipe.transformer = small_pipe(torch.bfloat16).transformer
    nn.Module.to(pipe.transformer, torch.bfloat16)


def change_an_eps(pipe):
    pipe.transformer.blocks[1].attn1.norm_k.eps = 0.5


def tie(pipe):
    pipe.transformer.blocks[1].attn1.to_q.weight = pipe.transformer.blocks[1].attn1.to_k.weight


def replace_the_forward(pipe):
    eager = pipe.transformer.forward
    pipe.transformer.forward = lambda *args, **kwargs: eager(*args, **{**kwargs, "return_dict": False})


def leave_the_cross_norm_out(pipe):
    pipe.transformer = small_pipe(cross_attn_norm=False).transformer


def attend_to_images(pipe):
    pipe.transformer = small_pipe(image_dim=8, added_kv_proj_dim=256).transformer


DECLINES = {
    "a hooked block": (hook_a_block, "blocks.1 has a hook or another forward"),
    "a hooked embedder": (hook_the_embedder, "condition_embedder has a hook or another forward"),
    "an adapted linear": (adapt_a_linear, "blocks.0.ffn.net.0.proj is Adapter, which the rewritten"),
    "another processor": (set_another_processor, "blocks.1.attn2.processor is Another"),
    "fused projections": (fuse_projections, "blocks.0.attn1 has fused projections"),
    "fp16": (make_half, "weights are float16; the rewritten blocks need bfloat16 or float32"),
    "tables in bf16": (cast_the_tables, "scale_shift_table is bfloat16; the rewritten blocks need it in float32"),
    "two eps": (change_an_eps, "eps of blocks.1.attn1.norm_q and norm_k are 1e-06, 0.5"),
    "a tied weight": (tie, "blocks.1.attn1.to_k.weight is tied to blocks.1.attn1.to_q.weight"),
    "a replaced forward": (replace_the_forward, "the transformer's own forward was replaced"),
    "no cross norm": (leave_the_cross_norm_out, "blocks.0.norm2 is not an FP32LayerNorm with weight"),
    "image embeddings": (attend_to_images, "condition_embedder.image_embedder is there"),
}


@pytest.mark.parametrize("case", DECLINES)
def test_a_model_that_is_not_the_plain_one_declines_at_mount_by_name(pipe, case):
    change, reason = DECLINES[case]
    change(pipe)
    with mount(pipe) as mounted:
        assert "declined" == state_of(mounted)["state"]
        found = state_of(mounted)["reason"]
        assert found.startswith(reason), found
        assert "declined" == state_of(mounted, "text_keys_values")["state"]


@pytest.mark.parametrize(
    ("site", "name"), [("text_keys_values", "text_embedder"), ("timestep_rows", "time_embedder.linear_1")]
)
def test_a_hook_inside_the_embedder_is_called_and_its_effect_not_held(pipe, site, name):
    module = pipe.transformer.condition_embedder.get_submodule(name)
    module.register_forward_hook(lambda module, inputs, output: output * 1.5)
    eager = forwards(pipe, 2, kind="image")
    with mount(pipe) as mounted:
        assert same(eager, forwards(pipe, 2, kind="image"))
        assert "whose effect would be held" in state_of(mounted, site)["reason"]
        assert "fused" == state_of(mounted)["state"]


def replace_a_module(pipe):
    pipe.transformer.blocks[0].ffn.net[2] = nn.Linear(384, 256)


def move_the_weights(pipe):
    table = pipe.transformer.blocks[0].scale_shift_table
    table.data = table.data.clone()


CHANGES = {
    "a hook": (hook_a_block, "blocks.1 has a hook or another forward"),
    "a module replaced": (replace_a_module, "blocks.0.ffn.net.2 was replaced by Linear"),
    "weights moved": (move_the_weights, "blocks.0.scale_shift_table has moved since mounting"),
    "another eps": (change_an_eps, "blocks.1.attn1.norm_k.eps changed"),
    "a hook on the embedder": (hook_the_embedder, "condition_embedder has a hook or another forward"),
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
        found = state_of(mounted)["reason"]
        assert found.startswith(reason), found
    assert same(forwards(pipe, 1), fused)


@pytest.mark.parametrize("name", ["patch_embedding", "norm_out", "proj_out"])
@pytest.mark.parametrize("kind", ["image", "sample"])
def test_hooks_around_the_blocks_are_heard_whenever_they_come(pipe, name, kind):
    with mount(pipe) as mounted:
        forwards(pipe, 1, kind=kind)
        handle = getattr(pipe.transformer, name).register_forward_hook(lambda module, inputs, output: output * 1.5)
        fused = forwards(pipe, 1, kind=kind)
        assert "fused" == state_of(mounted)["state"]
    assert same(forwards(pipe, 1, kind=kind), fused)
    handle.remove()
    assert not same(forwards(pipe, 1, kind=kind), fused)


ODD_CALLS = {
    "too few timesteps": ({"timestep": torch.full((1, 5), 7.0)}, "timestep tells 5 tokens their step, and there are"),
    "a scalar timestep": (
        {"timestep": torch.tensor(700)},
        "timestep has 0 dimensions; the rewritten blocks take 1 or 2",
    ),
    "odd sides": (
        {"hidden_states": torch.zeros(1, 4, 3, 5, 6), "timestep": torch.tensor([7])},
        "latents are 3 x 5 x 6",
    ),
    "a scale for adapters": ({"attention_kwargs": {"scale": 0.5}}, "attention_kwargs has scale; the rewritten"),
    "an image": ({"encoder_hidden_states_image": torch.zeros(1, 2, 8)}, "encoder_hidden_states_image is given"),
    "another dtype": (
        {"hidden_states": torch.zeros(1, 4, 3, 4, 6, dtype=torch.float64)},
        "hidden_states is torch.float64",
    ),
}


@pytest.mark.parametrize("case", ODD_CALLS)
def test_calls_that_the_blocks_do_not_take_run_eager_and_say_why(pipe, case):
    changes, reason = ODD_CALLS[case]

    def outcome():
        try:
            return forwards(pipe, 1, **changes)[0]
        except (RuntimeError, AssertionError, TypeError, IndexError) as error:
            return str(error)

    eager = outcome()
    with mount(pipe) as mounted:
        fused = outcome()
        found = state_of(mounted)["reason"]
        assert found.startswith(reason), found
    assert torch.equal(eager, fused) if isinstance(eager, torch.Tensor) else eager == fused


def test_gradients_are_the_eager_ones_after_a_key_was_verified(pipe):
    def gradient():
        pipe.transformer.zero_grad()
        pipe.transformer(**step(0), encoder_hidden_states=prompt()).sample.square().sum().backward()
        return pipe.transformer.blocks[0].ffn.net[2].weight.grad.clone()

    eager = gradient()
    with mount(pipe) as mounted:
        forwards(pipe, 1)
        fused = gradient()
        assert "gradients are recorded" in state_of(mounted)["reason"]
    assert torch.equal(eager, fused)


def test_a_block_with_wrong_bits_is_rejected_and_the_result_stays_exact(pipe, monkeypatch):
    eager = forwards(pipe, 2)
    monkeypatch.setattr(forward, "attend", lambda *args: torch.nextafter(eager_attend(*args), torch.tensor(9.0)))
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
    assert ("fused", "rejected") == (state_of(mounted)["state"], state_of(mounted, "packed_qkv")["state"])


def test_a_library_whose_forward_changed_around_its_blocks_runs_eager(pipe, monkeypatch):
    """Every block and held value still has eager's bits; only the whole tells."""
    changed = forward_with(WanTransformer3DModel, "hidden_states = self.proj_out(hidden_states)",
                           "hidden_states = self.proj_out(hidden_states) * 2")  # fmt: skip
    monkeypatch.setattr(WanTransformer3DModel, "forward", changed)
    eager = forwards(pipe, 2)
    with mount(pipe) as mounted:
        assert same(eager, forwards(pipe, 2))
    assert "rejected" == state_of(mounted)["state"]
    assert 2 == state_of(mounted)["calls_eager"], "both calls of the transformer, none block by block"


@torch.no_grad()
def test_one_block_by_itself_takes_an_attention_of_its_callers(pipe):
    """What a causal model needs: its own attention, keys and values of its own, and no norm for a next block."""
    model, seen = pipe.transformer, []
    with mount(pipe) as mounted:
        rewritten = mounted.graph_target().owner
        inputs = rewritten.prepare(**step(0, kind="image"), encoder_hidden_states=prompt())
        _, context, keys_values, cosine, sine, temb, projection, rows = inputs
        hidden = torch.randn(1, TOKENS, 256, generator=torch.Generator().manual_seed(0))
        one, told = rewritten.blocks[0], blocks.Step(temb, projection, rows, cosine, sine, None)

        def attend(query, key, value):
            seen.append(tuple(query.shape))
            return forward._self_attention(one)(query, key, value)

        found = blocks.wan_block(one, hidden, told, attend, forward._cross_attention(one, keys_values[0]))
        expected = model.blocks[0](hidden, context, projection[:, rows], (cosine, sine))
    assert torch.equal(expected, found)
    assert [(1, TOKENS, 2, 128)] == seen


@pytest.fixture
def kernels_on_a_cpu(monkeypatch):
    if not is_interpreted():
        pytest.skip("kernels are compiled here, not interpreted")
    monkeypatch.setattr(wan_transformer, "site_reasons", lambda transformer: {})


SHORT = {"hidden_states": torch.randn(1, 4, 2, 2, 4, generator=torch.Generator().manual_seed(3)).bfloat16()}


@pytest.mark.usefixtures("kernels_on_a_cpu")
@pytest.mark.parametrize(("told", "layers"), [([700.0] * 4, 1), ([0.0, 0.0, 700.0, 700.0], 2)], ids=["text", "image"])
def test_the_kernels_inside_the_blocks_keep_every_bit_in_the_interpreter(told, layers, monkeypatch):
    """bf16 on the CPU with a card's norms, kernels interpreted: all but the GELU have eager's bits."""
    pipe, call = small_pipe(torch.bfloat16, num_layers=layers), {**SHORT, "timestep": torch.tensor([told])}
    norms_of_cuda(monkeypatch)
    with exact_rounding():
        eager = forwards(pipe, 1, **call)
        with mount(pipe) as mounted:
            assert same(eager * 2, [forwards(pipe, 1, **call)[0] for _ in range(2)])
    kernels = [site for site in wan_transformer.KERNELS_OF_SITE if site != "gelu_tanh"]
    assert dict.fromkeys(kernels, "fused") == {site: state_of(mounted, site)["state"] for site in kernels}


def off_by_one_bit(kernel):
    fused = kernel.fused

    def wrong(*args, **kwargs):
        result = fused(*args, **kwargs)
        (result[0] if isinstance(result, tuple) else result).view(torch.int16)[0, 0, 0] ^= 1
        return result

    return wrong


@pytest.mark.usefixtures("kernels_on_a_cpu")
@pytest.mark.parametrize(
    ("kernel", "site"),
    [
        (table_layernorm_modulate, "table_layernorm_modulate"),
        (table_gated_residual_layernorm, "table_gated_residual"),
        (across_heads_norm, "across_heads_norm_rope"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_kernel_is_rejected_at_first_sight_and_the_forward_stays_exact(monkeypatch, kernel, site):
    pipe, call = small_pipe(torch.bfloat16, num_layers=1), {**SHORT, "timestep": torch.full((1, 4), 700.0)}
    monkeypatch.setattr(kernel, "fused", off_by_one_bit(kernel))
    with exact_rounding():
        eager = forwards(pipe, 1, **call)
        with mount(pipe) as mounted:
            assert same(eager * 2, [forwards(pipe, 1, **call)[0] for _ in range(2)])
    assert "rejected" == state_of(mounted, site)["state"]
    assert "not bit-exact" in state_of(mounted, site)["reason"]
