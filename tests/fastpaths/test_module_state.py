"""Whatever is done to a model, or around a call, while fast paths are mounted: eager's bits, and a reason by name."""

import types

import diffusers.models.transformers.transformer_longcat_image as library
import pytest
import torch
from diffusers import LongCatImageTransformer2DModel
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fuseproof.fastpaths import mount
from fuseproof.fastpaths.foreign_code import foreign_reason
from fuseproof.fastpaths.module_state import Guard, Snapshot, call_reason
from tests.fastpaths.small_model import CONFIG, IMAGE, TEXT, forwards, small_pipe

HELD = ("context_embedder", "pos_embed", "time_embed")


@pytest.fixture(scope="module")
def mounted_pipe():
    pipe = small_pipe()
    with mount(pipe) as mounted:
        forwards(pipe)
        yield pipe, mounted


def halved(result):
    return tuple(part * 0.5 for part in result) if isinstance(result, tuple) else result * 0.5


class Halved(library.LongCatImageAttnProcessor):
    def __call__(self, *args, **kwargs):
        return halved(super().__call__(*args, **kwargs))


def attribute(path, key, value):
    def change(model, patch):
        patch.setattr(model.get_submodule(path), key, value)

    return change


def replaced_linear(path):
    def change(model, patch):
        parent, _, name = path.rpartition(".")
        old = model.get_submodule(path)
        other = nn.Linear(old.in_features, old.out_features)
        patch.setitem(model.get_submodule(parent)._modules, name, other)

    return change


def swap_two_blocks(model, patch):
    blocks = model.single_transformer_blocks
    patch.setitem(blocks._modules, "0", blocks[1])
    patch.setitem(blocks._modules, "1", blocks[0])


def append_a_block(model, patch):
    patch.setitem(model.single_transformer_blocks._modules, "2", model.single_transformer_blocks[0])


def delete_a_block(model, patch):
    patch.delitem(model.single_transformer_blocks._modules, "1")


def hook_inside_time_embed(model, patch):
    patch.setitem(model.time_embed.timestep_embedder._forward_hooks, 7, lambda module, inputs, output: output * 2)


def transpose_a_weight(model, patch):
    weight = model.transformer_blocks[0].attn.to_q.weight
    patch.setattr(weight, "data", weight.data.t())


def patch_the_processor_class(model, patch):
    own = library.LongCatImageAttnProcessor.__call__
    patch.setattr(library.LongCatImageAttnProcessor, "__call__", lambda self, *a, **k: halved(own(self, *a, **k)))


def patch_a_library_function(model, patch):
    rotate = library.apply_rotary_emb
    patch.setattr(library, "apply_rotary_emb", lambda *args, **kwargs: rotate(*args, **kwargs) * 0.5)


def patch_a_module_class(model, patch):
    eager = nn.GELU.forward
    patch.setattr(nn.GELU, "forward", lambda self, x: eager(self, x) * 0.5)


CHANGES = {
    "transformer_blocks.0.attn.processor changed": attribute("transformer_blocks.0.attn", "processor", Halved()),
    "x_embedder was replaced by Linear": replaced_linear("x_embedder"),
    "proj_out was replaced by Linear": replaced_linear("proj_out"),
    "single_transformer_blocks.0 was replaced": swap_two_blocks,
    "single_transformer_blocks.2 was added": append_a_block,
    "single_transformer_blocks.1 was taken out": delete_a_block,
    "pos_embed.theta changed": attribute("pos_embed", "theta", 500),
    "time_embed.time_proj.flip_sin_to_cos changed": attribute("time_embed.time_proj", "flip_sin_to_cos", False),
    "time_embed.timestep_embedder has a hook": hook_inside_time_embed,
    "transformer_blocks.0.attn.norm_k.eps changed": attribute("transformer_blocks.0.attn.norm_k", "eps", 0.5),
    "transformer_blocks.0.norm2_context.eps changed": attribute("transformer_blocks.0.norm2_context", "eps", 0.5),
    "single_transformer_blocks.0.act_mlp.approximate": attribute(
        "single_transformer_blocks.0.act_mlp", "approximate", "none"
    ),
    "transformer_blocks.0.attn.to_q.weight has another layout": transpose_a_weight,
    "LongCatImageAttnProcessor.__call__ was replaced": patch_the_processor_class,
    "GELU.forward was replaced": patch_a_module_class,
    "transformer_longcat_image.apply_rotary_emb was replaced": patch_a_library_function,
}


@pytest.mark.parametrize("reason", CHANGES)
def test_a_change_to_the_model_makes_every_site_decline_until_it_is_undone(mounted_pipe, monkeypatch, reason):
    pipe, mounted = mounted_pipe
    model = pipe.transformer
    with monkeypatch.context() as patch:
        CHANGES[reason](model, patch)
        mounted.restart_counting()
        result = forwards(pipe, 1)
        sites = mounted.report()["sites"]
        mine = vars(model).pop("forward")
        held = {name: vars(model.get_submodule(name)).pop("forward") for name in HELD}
        try:
            expected = forwards(pipe, 1)
        finally:
            model.forward = mine
            for name, forward in held.items():
                model.get_submodule(name).forward = forward
    assert torch.equal(expected, result)
    for site in ("packed_blocks", "context_embedding", "rotary_tables", "timestep_embedding"):
        assert (0, 1) == (sites[site]["calls_fused"], sites[site]["calls_eager"])
        assert reason in sites[site]["reason"]
    mounted.restart_counting()
    forwards(pipe, 1)
    assert 3 == mounted.report()["sites"]["packed_blocks"]["calls_fused"], "undone, it runs fused again"


class Doubling(TorchFunctionMode):
    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return result * 2 if function is nn.functional.linear else result


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_what_is_active_around_a_call_is_noticed():
    assert call_reason() is None
    with torch.device("cpu"):
        assert call_reason() is None, "a default device is no other arithmetic"
    with Doubling():
        assert "torch function mode Doubling" in call_reason()
    with Passing():
        assert "dispatch mode" in call_reason()
    handle = nn.modules.module.register_module_forward_hook(lambda module, inputs, output: None)
    assert "a hook for all modules" in call_reason()
    handle.remove()
    seen = []
    torch.vmap(lambda x: seen.append(call_reason()) or x)(torch.ones(2))
    torch.jit.trace(lambda x: seen.append(call_reason()) or x * 2, torch.ones(2))
    assert "torch.func" in seen[0]
    assert "torch.jit" in seen[1]


def test_a_function_mode_keeps_its_effect_while_mounted(mounted_pipe):
    pipe, mounted = mounted_pipe
    with Doubling():
        expected = forwards(small_pipe(), 1)
        mounted.restart_counting()
        result = forwards(pipe, 1)
    assert torch.equal(expected, result)
    assert "Doubling is active" in mounted.report()["sites"]["packed_blocks"]["reason"]


class LongCatLike(LongCatImageTransformer2DModel):
    pass


LongCatLike.__name__ = LongCatLike.__qualname__ = "LongCatImageTransformer2DModel"


def subclass_of_the_same_name(pipe, patch):
    pipe.transformer.__class__ = LongCatLike


def patched_class(pipe, patch):
    eager = LongCatImageTransformer2DModel.forward
    patch.setattr(LongCatImageTransformer2DModel, "forward", lambda self, *a, **k: (eager(self, *a, **k)[0] * 0.9,))


def forward_of_ones_own(pipe, patch):
    def twice(self, hidden_states, timestep, **others):
        early = self.time_embed(timestep * 500, hidden_states.dtype).mean()
        eager = LongCatImageTransformer2DModel.forward
        return (eager(self, hidden_states, timestep=timestep, **others)[0] + early,)

    pipe.transformer.forward = types.MethodType(twice, pipe.transformer)


FOREIGN = {
    "a subclass of the same name": (subclass_of_the_same_name, "LongCatImageTransformer2DModel, the sites need"),
    "a patched class": (patched_class, "whose forward was replaced (by"),
    "a forward of one's own": (forward_of_ones_own, "the transformer's own forward was replaced"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_transformer_with_other_code_than_diffusers_declines_at_mount(monkeypatch, case):
    change, reason = FOREIGN[case]
    pipe = small_pipe()
    change(pipe, monkeypatch)
    expected = forwards(pipe, 2)
    with mount(pipe) as mounted:
        assert torch.equal(expected, forwards(pipe, 2))
        sites = mounted.report()["sites"]
    for site in ("packed_blocks", "timestep_embedding"):
        assert "declined" == sites[site]["state"]
        assert reason in sites[site]["reason"]


def test_every_layer_of_a_decorated_forward_must_be_the_librarys(monkeypatch):
    import functools

    assert foreign_reason(LongCatImageTransformer2DModel(**CONFIG).named_modules()) is None
    eager = nn.GELU.forward

    @functools.wraps(eager)
    def wrapped(self, x):
        return eager(self, x) * 2

    monkeypatch.setattr(nn.GELU, "forward", wrapped)
    assert "act is GELU, whose forward was replaced" in foreign_reason([("act", nn.GELU())])


LAYOUTS = {
    "hidden_states has strides": {"hidden_states": torch.randn(1, IMAGE, 32)[..., :16]},
    "hidden_states has 2 dimensions": {"hidden_states": torch.randn(IMAGE, 16)},
    "the rewritten blocks need one batch size": {"hidden_states": torch.randn(2, IMAGE, 16)},
    "img_ids is a NoneType": {"img_ids": None},
}


@pytest.mark.parametrize("reason", LAYOUTS)
@torch.no_grad()
def test_inputs_of_another_layout_decline(mounted_pipe, reason):
    pipe, mounted = mounted_pipe
    arguments = {
        "hidden_states": torch.randn(1, IMAGE, 16), "encoder_hidden_states": torch.randn(1, TEXT, 8),
        "timestep": torch.tensor([0.5]), "img_ids": torch.rand(IMAGE, 3), "txt_ids": torch.zeros(TEXT, 3),
        "return_dict": False,
    } | LAYOUTS[reason]  # fmt: skip

    def run(transformer):
        try:
            return transformer(**arguments)[0]
        except (RuntimeError, TypeError) as error:  # what eager refuses is refused in eager's words
            return str(error)

    mounted.restart_counting()
    result, expected = run(pipe.transformer), run(small_pipe().transformer)
    assert type(expected) is type(result)
    assert torch.equal(expected, result) if isinstance(expected, torch.Tensor) else expected == result
    assert reason in mounted.report()["sites"]["packed_blocks"]["reason"]


def test_a_guard_that_is_not_sealed_lets_nothing_run():
    assert "the mount is not done yet" == Guard().reason()


def test_a_value_that_cannot_be_compared_is_another_value():
    module = nn.Sequential(nn.Linear(2, 2))
    module[0].scale = torch.ones(2)
    snapshot = Snapshot(module)
    assert snapshot.change() is None
    module[0].scale = torch.ones(2)
    assert "0.scale changed since the mount" == snapshot.change()
