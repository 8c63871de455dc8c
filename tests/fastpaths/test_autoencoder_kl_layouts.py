"""Which convolutions may go channels-last: those whose bits were seen to agree on a card."""

import pytest
from torch import nn

from fuseproof.fastpaths.sites.autoencoder_kl.layouts import narrow_reason

ONE_SIDE = "may have other bits channels-last; it needs 64 or more on one side"
CASES = {
    "released-first-of-the-decoder": (None, [(16, 512)]),
    "released-last-of-the-decoder": (None, [(128, 3)]),
    "released-block": (None, [(128, 128), (128, 128)]),
    "released-last-of-the-encoder": (None, [(512, 32)]),
    "first-of-an-encoder": (
        "a first convolution of 3 channels has other bits channels-last; it needs 8 or more",
        [(3, 128)],
    ),
    "8-to-8": (f"a convolution of 8 to 8 channels {ONE_SIDE}", [(8, 8)]),
    "8-to-16": (f"a convolution of 8 to 16 channels {ONE_SIDE}", [(8, 16)]),
    "8-to-3": (f"a convolution of 8 to 3 channels {ONE_SIDE}", [(8, 3)]),
    "the-second-of-a-block": (f"a convolution of 16 to 16 channels {ONE_SIDE}", [(64, 16), (16, 16)]),
    "just-wide-enough": (None, [(8, 64), (64, 8)]),
    "just-not": (f"a convolution of 63 to 63 channels {ONE_SIDE}", [(63, 63)]),
}


@pytest.mark.parametrize(("expected", "channels"), CASES.values(), ids=CASES)
def test_narrow_reason(expected, channels):
    assert expected == narrow_reason(*(nn.Conv2d(inputs, outputs, 3, device="meta") for inputs, outputs in channels))
