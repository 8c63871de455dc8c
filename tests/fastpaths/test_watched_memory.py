import pytest
import torch
from torch import nn

from fuseproof.fastpaths import watched_memory
from fuseproof.fastpaths.watched_memory import WatchedTensors, WatchedWeights, bit_sum


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8, torch.bool], ids=str)
@pytest.mark.parametrize("size", [1, 7, 8, 131])
def test_one_changed_element_changes_the_sum(dtype, size, monkeypatch):
    monkeypatch.setattr(watched_memory, "CHUNK_BYTES", 64)
    tensor = torch.zeros(size, dtype=dtype)
    before = bit_sum(tensor)
    assert before == bit_sum(tensor.clone())
    tensor[-1] = 1
    after = bit_sum(tensor)
    assert before != after
    tensor[-1] = 0
    tensor[0] = 1
    assert size == 1 or after != bit_sum(tensor), "where it changed counts"


def test_the_sum_sees_a_sign_of_zero_and_exchanged_values():
    assert bit_sum(torch.tensor([0.0, 1.0])) != bit_sum(torch.tensor([-0.0, 1.0]))
    assert bit_sum(torch.tensor([1.0, 0, 2.0, 0])) != bit_sum(torch.tensor([2.0, 0, 1.0, 0]))


def test_a_part_of_a_buffer_that_starts_anywhere():
    assert bit_sum(torch.arange(9, dtype=torch.int16)[1:]) == bit_sum(torch.arange(1, 9, dtype=torch.int16))
    assert bit_sum(torch.ones(3, 5).T) == bit_sum(torch.ones(5, 3))


def test_weights_inside_a_module_are_watched_by_name():
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    watched = WatchedWeights(module)
    assert watched.changed() is None
    module[1].running_mean += 1
    assert "1.running_mean" == watched.changed()


def test_a_tensor_without_memory_is_left_alone():
    watched = WatchedTensors([(0, torch.empty(3, device="meta")), ("x", torch.ones(2))])
    assert [] == watched.put_back()


def test_everything_that_changed_is_named_and_put_back():
    first, second = torch.ones(2), torch.ones(2, 2).T
    watched = WatchedTensors([(0, first), ("second", second)])
    second[0, 1] = -0.0
    assert ["second"] == watched.put_back()
    assert torch.equal(torch.ones(2, 2), second)
    assert [] == watched.changed()
