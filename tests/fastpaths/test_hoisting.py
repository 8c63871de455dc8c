import gc
import weakref

import torch

from fuseproof.fastpaths.hoisting import ENTRIES_HELD, HeldResults


def test_only_the_very_same_objects_hit():
    held = HeldResults()
    prompt = torch.ones(3)
    held.hold("key", (prompt,), "result")
    assert "result" == held.find("key", (prompt,)).result
    assert held.find("key", (prompt.clone(),)) is None, "an equal tensor is another tensor"
    assert held.find("other key", (prompt,)) is None


def test_a_held_input_stays_alive_so_its_identity_cannot_be_reused():
    held = HeldResults()
    held.hold("key", (torch.ones(3),), "stale")
    gc.collect()
    for _ in range(100):
        assert held.find("key", (torch.ones(3),)) is None


def test_it_is_bounded_and_clearing_drops_every_reference():
    held = HeldResults()
    inputs = [torch.ones(1) for _ in range(ENTRIES_HELD + 3)]
    for tensor in inputs:
        held.hold("key", (tensor,), "result")
    assert len(held) == ENTRIES_HELD
    watch = weakref.ref(inputs[-1])
    held.clear()
    inputs.clear()
    del tensor
    gc.collect()
    assert watch() is None
