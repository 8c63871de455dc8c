"""Hooks and sites of one's own beside the rewritten blocks are called; inside them, they make the blocks decline."""

from __future__ import annotations

import pytest
import torch

from fuseproof.fastpaths import UserSite, mount
from tests.fastpaths.small_model import forwards, small_pipe

AROUND = ("x_embedder", "norm_out", "norm_out.linear", "proj_out")
INSIDE = ("transformer_blocks.0", "transformer_blocks.0.norm2", "single_transformer_blocks.1.proj_out")


def exact(module, *arguments, **keywords):
    return type(module).forward(module, *arguments, **keywords)


@pytest.mark.parametrize("name", [*AROUND, "context_embedder", "time_embed"])
def test_a_site_beside_the_blocks_runs_and_the_blocks_stay_rewritten(name):
    pipe = small_pipe()
    expected = forwards(pipe)
    with mount(pipe, user_sites=[UserSite("mine", fused=exact, modules=name)]) as mounted:
        assert torch.equal(expected, forwards(pipe))
        sites = mounted.report()["sites"]
    assert ("fused", "fused") == (sites["mine"]["state"], sites["packed_blocks"]["state"])


@pytest.mark.parametrize("name", INSIDE)
def test_a_site_inside_the_blocks_makes_them_decline_by_name(name):
    pipe = small_pipe()
    with mount(pipe, user_sites=[UserSite("mine", fused=exact, modules=name)]) as mounted:
        packed = mounted.report()["sites"]["packed_blocks"]
    assert "declined" == packed["state"]
    assert f"{name} has a fast path of your own" in packed["reason"]


@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_hook_beside_the_blocks_is_heard(name, moment):
    pipe, heard = small_pipe(), []
    module = pipe.transformer.get_submodule(name)

    def hook(module, inputs, output):
        heard.append(name)
        return output * 2

    handle = module.register_forward_hook(hook)
    expected = forwards(pipe)
    if moment == "after":
        handle.remove()
    with mount(pipe) as mounted:
        if moment == "after":
            before = mounted.graph_target().state()
            module.register_forward_hook(hook)
            assert before != mounted.graph_target().state(), "a graph captured without it is not replayed"
        heard.clear()
        assert torch.equal(expected, forwards(pipe))
        assert heard
        assert "fused" == mounted.report()["sites"]["packed_blocks"]["state"]
