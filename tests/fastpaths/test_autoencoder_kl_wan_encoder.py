"""The encoder's sites on small real AutoencoderKLWans: every bit and stride stays, whatever is encoded."""

import pytest
import torch

from fuseproof.fastpaths.kernels import average_downsample_add
from fuseproof.fastpaths.sites.autoencoder_kl_wan.paths import LAYOUT
from tests.fastpaths.kernels.conftest import exact_rounding  # noqa: F401 - a fixture: the interpreter rounds exactly
from tests.fastpaths.kernels.wan_models import bits
from tests.fastpaths.small_wan_vae import (
    BLOCKS,
    DOWNSAMPLING,
    Installed,
    as_cuda,  # noqa: F401 - a fixture
    decode,
    encode,
    few_channels,  # noqa: F401 - a fixture
    large_tiles,  # noqa: F401 - a fixture
    latents,
    make_vae,
    video,
)

pytestmark = pytest.mark.timeout(300)
CASES = {  # frames, samples, dtype of the weights, autocast
    "a-picture": (1, 1, torch.bfloat16, False),
    "two-chunks": (5, 1, torch.bfloat16, False),
    "three-chunks": (9, 1, torch.bfloat16, False),
    "odd-frames": (7, 1, torch.bfloat16, False),
    "two-samples": (5, 2, torch.bfloat16, False),
    "fp32": (5, 1, torch.float32, False),
    "autocast": (5, 1, torch.float32, True),
    "autocast-of-pictures": (1, 2, torch.float32, True),
}


def assert_same(expected, actual):
    assert (expected.dtype, expected.stride()) == (actual.dtype, actual.stride())
    assert torch.equal(bits(expected), bits(actual))


def rejected(gates):
    return {key: one.reason for gate in gates.values() for key, one in gate.rejections.items()}


def check(geometry, frames, samples, dtype, autocast, seeds=(0,)):
    vae = make_vae(geometry, dtype)
    size = 8 if geometry == "wan-2.2" else 16
    clips = [video(frames, size, dtype, samples, seed) for seed in seeds]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        eager = [encode(vae, clip) for clip in clips]
        with Installed(vae) as gates:
            for clip, wanted in zip(clips, eager, strict=True):
                assert_same(wanted, encode(vae, clip))
    assert {} == rejected(gates)
    assert [0, 0] == [gates[site].calls_eager for site in (BLOCKS, DOWNSAMPLING)]
    assert 0 < gates[DOWNSAMPLING].calls_fused


@pytest.mark.usefixtures("as_cuda")
@pytest.mark.parametrize(("frames", "samples", "dtype", "autocast"), CASES.values(), ids=CASES)
def test_residual_encoders_keep_every_bit(frames, samples, dtype, autocast):
    check("wan-2.2", frames, samples, dtype, autocast, (0, 1) if (frames, samples, autocast) == (5, 1, False) else (0,))


@pytest.mark.usefixtures("as_cuda")
@pytest.mark.parametrize("geometry", ["wan-2.1", "deeper"])
def test_other_geometries(geometry):
    check(geometry, 5, 1, torch.bfloat16, False)


@pytest.mark.usefixtures("as_cuda")
def test_downsampling_alone_and_everything_but_it():
    vae = make_vae()
    eager = encode(vae, video())
    for sites in ((DOWNSAMPLING,), (BLOCKS,)):
        with Installed(vae, sites) as gates:
            assert_same(eager, encode(vae, video()))
        assert {} == rejected(gates)
        assert 0 < gates[sites[0]].calls_fused


@pytest.mark.usefixtures("as_cuda")
def test_a_wrong_mean_is_rejected(monkeypatch):
    vae = make_vae()
    eager, right = encode(vae, video()), average_downsample_add.fused
    monkeypatch.setattr(average_downsample_add, "fused", lambda *call: right(*call).mul_(1.5))
    with Installed(vae) as gates:
        assert_same(eager, encode(vae, video()))
    assert 0 == gates[DOWNSAMPLING].calls_fused
    assert all("not bit-exact" in reason for reason in rejected(gates).values())


@pytest.mark.usefixtures("as_cuda")
def test_both_coders_meet_the_same_block():
    vae = make_vae("wan-2.1")  # the middle blocks of both coders have the same channels
    clip, z = video(1, size=4), latents(frames=1)
    eager = encode(vae, clip), decode(vae, z)
    with Installed(vae) as gates:
        for _ in range(2):
            assert_same(eager[0], encode(vae, clip))
            assert_same(eager[1], decode(vae, z))
    assert {} == rejected(gates)
    assert {} == gates[BLOCKS].eager_causes


@pytest.mark.usefixtures("as_cuda")
def test_a_second_mount_with_the_same_gates_asks_eager_for_its_layouts():
    vae = make_vae()
    eager = encode(vae, video(1))
    first = Installed(vae)
    with first as gates:
        encode(vae, video(1))
    gates[BLOCKS].restart_counting()
    again = Installed(vae, (), lambda empty: empty.update(gates))
    with again:
        for _ in range(3):  # what eager hands on has other strides, which are other keys
            gates[BLOCKS].restart_counting()
            assert_same(eager, encode(vae, video(1)))
            assert {LAYOUT} >= set(gates[BLOCKS].eager_causes)
    assert 0 == gates[BLOCKS].calls_eager


@pytest.mark.usefixtures("as_cuda")
def test_turned_weights_are_dropped_after_every_encode_also_on_an_exception(monkeypatch):
    vae, clip = make_vae(), video()
    eager = encode(vae, clip)
    installed = Installed(vae)
    with installed:
        held = installed.installation.held[0]
        sizes = []
        encode(vae, clip)
        assert 0 == len(held)
        with monkeypatch.context() as patch:

            def failing(*_, **__):
                sizes.append(len(held))
                raise RuntimeError("out of memory")

            patch.setattr(installed.gates[DOWNSAMPLING], "run", failing)
            with pytest.raises(RuntimeError, match="out of memory"):
                encode(vae, clip)
        assert (0, 1) == (len(held), len(sizes))
        assert 0 < sizes[0]
        assert_same(eager, encode(vae, clip))
