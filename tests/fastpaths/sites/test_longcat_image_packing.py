"""Packing moves weights: only such as nobody can tell it of, and back again at the unmount."""

import io

import pytest
import torch
from torch import nn

from fuseproof.fastpaths import mount
from fuseproof.fastpaths.sites import longcat_image, packing
from tests.fastpaths.small_model import forwards, small_pipe


def attention(pipe):
    return pipe.transformer.transformer_blocks[0].attn


def tie(pipe):
    attention(pipe).to_k.weight = attention(pipe).to_q.weight


def tie_to_a_weight_of_another_kind(pipe):
    attention(pipe).to_q.weight.data = pipe.transformer.norm_out.linear.weight.data[:128]


def make_column_major(pipe):
    weight = attention(pipe).to_v.weight
    weight.data = weight.data.t().contiguous().t()


def share(pipe):
    attention(pipe).to_v.weight.share_memory_()


def weigh_a_norm(pipe):
    pipe.transformer.norm_out.norm = nn.LayerNorm(128, eps=1e-6)


def change_an_eps(pipe):
    attention(pipe).norm_k.eps = 0.5


REASONS = {
    "attn.to_k.weight is tied to transformer_blocks.0.attn.to_q.weight": tie,
    "shares memory with": tie_to_a_weight_of_another_kind,
    "attn.to_v.weight has strides (1, 128); packed weights are contiguous": make_column_major,
    "attn.to_v.weight lies in memory that processes share": share,
    "norm_out.norm has a weight": weigh_a_norm,
    "eps of transformer_blocks.0.attn.norm_q, norm_k, norm_added_q and norm_added_k are 1e-06, 0.5": change_an_eps,
}


@pytest.mark.parametrize("reason", REASONS)
def test_weights_and_norms_that_packed_blocks_cannot_take_decline(reason):
    pipe = small_pipe()
    REASONS[reason](pipe)
    before = [(weight.data_ptr(), weight.stride()) for weight in pipe.transformer.parameters()]
    expected = forwards(pipe, 1)
    with mount(pipe) as mounted:
        assert torch.equal(expected, forwards(pipe, 1))
        packed = mounted.report()["sites"]["packed_blocks"]
    assert "declined" == packed["state"]
    assert reason in packed["reason"]
    assert before == [(weight.data_ptr(), weight.stride()) for weight in pipe.transformer.parameters()]


def saved_bytes(module):
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    return buffer.tell()


@pytest.mark.parametrize("inference", [False, True])
def test_unmounted_every_weight_has_memory_of_its_own_again(inference):
    pipe = small_pipe()
    linear = attention(pipe).to_q
    before = saved_bytes(linear)
    with torch.inference_mode(inference):
        mounted = mount(pipe)
        assert saved_bytes(linear) > before, "mounted, it is a view of a wider buffer"
        mounted.unmount()
    assert before == saved_bytes(linear)
    storages = [weight.untyped_storage().data_ptr() for weight in pipe.transformer.parameters()]
    assert len(set(storages)) == len(storages)
    assert not any(weight.is_inference() for weight in pipe.transformer.parameters())


def test_a_weight_that_was_moved_while_mounted_is_left_where_it_is():
    linears = [nn.Linear(4, 4) for _ in range(2)]
    packed = packing.pack(linears)
    linears[0].weight.data = moved = torch.ones(4, 4)
    packing.unpack_all([packed])
    assert moved.data_ptr() == linears[0].weight.data_ptr()
    assert 4 * 4 * 4 == linears[1].weight.untyped_storage().nbytes()


def test_a_block_that_ran_in_an_approximate_form_counts_once(monkeypatch):
    monkeypatch.setattr(longcat_image, "_approximate_reasons", lambda transformer: {})
    pipe = small_pipe(torch.bfloat16)
    with mount(pipe, quality="extra-high", sites="linear_gelu") as mounted:
        for times in (1, 2):
            forwards(pipe, 1)
            counted = mounted.report()["sites"]["packed_blocks"]
            assert 3 * times == counted["calls_fused"] + counted["calls_eager"], "three blocks a forward"


def test_linears_with_and_without_a_bias_are_not_packed_together():
    with pytest.raises(ValueError, match="some of these linears have a bias and some have none"):
        packing.pack([nn.Linear(4, 4), nn.Linear(4, 4, bias=False)])


def test_linears_without_a_bias_are_packed_and_unpacked():
    linears = [nn.Linear(4, 3, bias=False), nn.Linear(4, 2, bias=False)]
    before = [linear.weight.detach().clone() for linear in linears]
    packed = packing.pack(linears)
    x = torch.randn(1, 5, 4)
    out = torch.empty(1, 5, 5)
    packing.linear_into(packed.weight, packed.bias, x, out)
    assert packed.bias is None
    assert torch.equal(torch.nn.functional.linear(x, packed.weight), out)
    packed.unpack()
    assert all(torch.equal(old, linear.weight) for old, linear in zip(before, linears, strict=True))
    assert 2 == len({linear.weight.untyped_storage().data_ptr() for linear in linears})
