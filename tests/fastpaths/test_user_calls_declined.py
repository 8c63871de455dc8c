"""A site of one's own is not asked where a call is no real one, even for arguments that it has run fused on."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fuseproof.fastpaths.gates import undecidable_because
from tests.fastpaths.placed_sites import Scaled, called, eager, place


def fake(operation, x):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return called(operation, mode.from_tensor(x)).shape


def fake_after_its_mode(operation, x):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        made = mode.from_tensor(x)
    return called(operation, made).shape


def mapped(operation, x):
    return torch.func.vmap(lambda row: called(operation, row))(torch.stack([x, x])).shape[1:]


def on_meta(operation, x):
    operation.module.to("meta")
    return called(operation, x.to("meta")).shape


CALLS = {
    "a torch dispatch mode is active": fake,
    "called with a FakeTensor": fake_after_its_mode,
    "a torch.func transform": mapped,
    "called with a tensor on the meta device": on_meta,
}


@torch.no_grad()
@pytest.mark.parametrize("reason", CALLS)
def test_such_a_call_is_left_to_eager(reason):
    asked, x = [], torch.randn(4, 8)
    operation = place(Scaled(), lambda module, x: asked.append(1) or eager(module, x))
    for _ in range(2):
        called(operation, x)
    before = len(asked)
    assert (4, 8) == tuple(CALLS[reason](operation, x))
    assert before == len(asked)
    assert [True] == [reason in found for found in operation.gate.declined]


@torch.no_grad()
def test_a_gate_decides_nothing_where_torch_does_something_else():
    assert undecidable_because() is None
    with FakeTensorMode():
        assert "a torch dispatch mode is active" == undecidable_because()
