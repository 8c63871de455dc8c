import gc
import threading
import weakref

import pytest
import torch

from fuseproof.fastpaths.hoisting import ENTRIES_HELD, HeldResults, are_countable


def held_one():
    held, source, result = HeldResults(), torch.ones(3), torch.zeros(3)
    held.hold("key", (source,), result)
    return held, source, result


def test_only_the_very_same_tensors_hit():
    held, source, result = held_one()
    assert held.find("key", (source,)).result is result
    assert held.find("key", (source.clone(),)) is None, "an equal tensor is another tensor"
    assert held.find("other key", (source,)) is None


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda source, result: source.mul_(2), id="source-written"),
        pytest.param(lambda source, result: source[1:].zero_(), id="source-written-through-a-view"),
        pytest.param(lambda source, result: result.add_(1), id="result-written"),
        pytest.param(lambda source, result: setattr(source, "data", torch.ones(3)), id="source-given-other-memory"),
        pytest.param(lambda source, result: setattr(source, "data", source.data.bfloat16()), id="source-cast"),
    ],
)
def test_a_tensor_that_is_no_longer_what_it_was_misses(change):
    held, source, result = held_one()
    change(source, result)
    assert held.find("key", (source,)) is None


def test_a_held_source_stays_alive_so_its_identity_cannot_be_reused():
    held = HeldResults()
    held.hold("key", (torch.ones(3),), torch.zeros(3))
    gc.collect()
    for _ in range(100):
        assert held.find("key", (torch.ones(3),)) is None


def test_it_is_bounded_and_clearing_drops_every_reference():
    held = HeldResults()
    sources = [torch.ones(1) for _ in range(ENTRIES_HELD + 3)]
    for tensor in sources:
        held.hold("key", (tensor,), torch.zeros(1))
    assert len(held) == ENTRIES_HELD
    watch = weakref.ref(sources[-1])
    held.clear()
    sources.clear()
    del tensor
    gc.collect()
    assert watch() is None


def test_threads_hold_their_own():
    held, source, _ = held_one()
    seen = []
    thread = threading.Thread(target=lambda: seen.append(held.find("key", (source,))))
    thread.start()
    thread.join()
    assert [None] == seen


def test_inference_tensors_carry_no_count():
    with torch.inference_mode():
        made = torch.ones(2)
    assert (True, False) == (are_countable([torch.ones(2)]), are_countable([torch.ones(2), made]))


def test_memory_that_a_source_left_is_not_given_to_another_while_its_result_is_held():
    held, source = HeldResults(), torch.ones(1 << 16)
    held.hold("key", (source,), torch.zeros(3))
    for _ in range(20):
        source.data = (source.data * 0.5).clone()
        assert held.find("key", (source,)) is None


def test_a_transposed_source_is_another_one():
    held, source, _ = HeldResults(), torch.ones(2, 2), None
    held.hold("key", (source,), torch.zeros(3))
    source.data = source.data.t()
    assert held.find("key", (source,)) is None


def test_results_made_under_inference_mode_are_not_held():
    held, source = HeldResults(), torch.ones(2)
    with torch.inference_mode():
        held.hold("key", (source,), source * 2)
    assert 0 == len(held)


def test_with_a_source_gone_the_result_is_let_go_but_the_key_stays_known():
    held, kept, passing = HeldResults(), torch.ones(2), torch.ones(3)
    held.hold("key", (kept, passing), torch.zeros(4))
    entry = held.find("key", (kept, passing))
    result = weakref.ref(entry.result)
    del passing
    assert result() is None
    assert held.find("key", (kept, torch.ones(3))) is None
    assert held.knows("key")
