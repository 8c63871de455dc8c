import pytest
import torch

from fuseproof.fastpaths import Gate
from fuseproof.fastpaths.telling_values import CONSTANT, NOT_FINITE, untelling_because

CASES = {
    "two values": (None, torch.tensor([1.0, 2.0])),
    "NaN in one place": (NOT_FINITE, torch.tensor([1.0, 2.0, float("nan")])),
    "infinite": (NOT_FINITE, torch.tensor([1.0, float("-inf")])),
    "zeros": (CONSTANT, torch.zeros(3, dtype=torch.bfloat16)),
    "one tensor of two varies": (None, (torch.zeros(3), torch.tensor([1.0, 2.0]))),
    "one varies, one is not finite": (NOT_FINITE, (torch.tensor([1.0, 2.0]), torch.tensor([float("inf")]))),
    "a single value": (None, torch.ones(1)),
    "integers": (None, torch.zeros(3, dtype=torch.int32)),
    "empty": (None, torch.empty(0)),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_result_can_tell(case):
    reason, result = CASES[case]
    assert reason == untelling_because(result)


@pytest.mark.parametrize("value", [0.0, float("nan")])
@torch.no_grad()
def test_a_first_sight_that_shows_nothing_leaves_the_key_undecided(value):
    gate = Gate("site")
    empty = torch.full((4,), value)
    assert empty is gate.run("key", empty.clone, lambda: empty)
    assert (0, 1, 0, {}) == (gate.calls_fused, gate.calls_eager, gate.verified_keys(), gate.rejections)
    assert "shows nothing" in next(iter(gate.eager_causes))
    wrong = torch.arange(4.0)
    assert torch.equal(wrong + 1, gate.run("key", lambda: wrong, lambda: wrong + 1))
    assert ["key"] == list(gate.rejections)
