"""Whatever is done to the VAE, or around a call of it: eager's bits, and a reason by name."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL
from diffusers.models.resnet import ResnetBlock2D
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from fuseproof.fastpaths import UserSite, mount
from fuseproof.fastpaths.kernels import group_norm_silu
from fuseproof.fastpaths.sites.autoencoder_kl import modules
from tests.fastpaths.kernels.conftest import exact_rounding  # noqa: F401 - a fixture: the interpreter rounds exactly
from tests.fastpaths.small_model import small_pipe
from tests.fastpaths.small_vae import (
    CONVOLUTIONS,
    NORMS,
    Installed,
    as_cuda,  # noqa: F401 - a fixture
    bits,
    decode,
    few_channels,  # noqa: F401 - a fixture
    few_steps,  # noqa: F401 - a fixture
    latents,
    make_vae,
)


@pytest.fixture
def vae():
    return make_vae()


class Adapted(nn.Module):
    """As adapters wrap a layer: its attributes are the layer's, its result is not."""

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base_layer"), name)

    def forward(self, x):
        return self.base_layer(x) * 1.5


def adapt(path):
    def change(vae, patch):
        parent, _, name = path.rpartition(".")
        patch.setitem(vae.get_submodule(parent)._modules, name, Adapted(vae.get_submodule(path)))

    return change


def hook(vae, patch):
    convolution = vae.decoder.mid_block.resnets[0].conv1
    patch.setitem(convolution._forward_hooks, 7, lambda module, inputs, output: output.abs())


def another_activation(vae, patch):
    patch.setitem(vae.decoder.mid_block.resnets[0]._modules, "nonlinearity", nn.ReLU())


def circular(vae, patch):
    patch.setattr(vae.decoder.conv_out, "padding_mode", "circular")


def patch_the_class(vae, patch):
    eager = ResnetBlock2D.forward
    patch.setattr(ResnetBlock2D, "forward", lambda self, *args, **kwargs: eager(self, *args, **kwargs) * 0.5)


def patch_a_function(vae, patch):
    eager = F.silu
    patch.setattr(F, "silu", lambda x, *args, **kwargs: eager(x, *args, **kwargs) * 0.5)


CHANGES = {
    "decoder: mid_block.resnets.0.conv1 was replaced by Adapted": adapt("decoder.mid_block.resnets.0.conv1"),
    "decoder: conv_out was replaced by Adapted": adapt("decoder.conv_out"),
    "decoder: up_blocks.0.upsamplers.0.conv was replaced by Adapted": adapt("decoder.up_blocks.0.upsamplers.0.conv"),
    "decoder: mid_block.resnets.0.conv1 has a hook": hook,
    "decoder: mid_block.resnets.0.nonlinearity was replaced by ReLU": another_activation,
    "decoder: conv_out.padding_mode changed": circular,
    "decoder: ResnetBlock2D.forward was replaced": patch_the_class,
    "decoder: torch.nn.functional.silu was replaced": patch_a_function,
}


@pytest.mark.parametrize("reason", CHANGES)
def test_a_change_to_a_mounted_vae_makes_its_sites_decline(vae, monkeypatch, reason):
    with Installed(vae) as gates, monkeypatch.context() as patch:
        CHANGES[reason](vae, patch)
        changed = decode(vae)
    assert {0} == {gate.calls_fused + gate.first_sights for gate in gates.values()}
    assert {reason} == {found[: len(reason)] for gate in gates.values() for found in gate.declined}
    plain = decode(vae)
    CHANGES[reason](vae, monkeypatch)
    expected = decode(vae)
    assert not torch.equal(bits(plain), bits(expected)), "the change changes something"
    assert torch.equal(bits(expected), bits(changed))


@pytest.mark.usefixtures("as_cuda")
def test_once_undone_the_sites_run_fused_again(vae, monkeypatch):
    with Installed(vae) as gates:
        before = decode(vae)
        fused = gates[CONVOLUTIONS].calls_fused
        with monkeypatch.context() as patch:
            hook(vae, patch)
            decode(vae)
        assert fused == gates[CONVOLUTIONS].calls_fused
        assert torch.equal(bits(before), bits(decode(vae)))
    assert 2 * fused == gates[CONVOLUTIONS].calls_fused


@pytest.mark.usefixtures("as_cuda")
def test_a_block_called_by_itself_is_compared_too(vae, monkeypatch):
    block, x = vae.decoder.mid_block.resnets[0], latents()
    with torch.no_grad(), Installed(vae) as gates:
        block(x, None)
        another_activation(vae, monkeypatch)
        changed = block(x, None)
    assert 1 == len(gates[CONVOLUTIONS].declined)
    with torch.no_grad():
        assert torch.equal(bits(block(x, None)), bits(changed))


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def under_a_mode(vae):
    with Passing():
        return decode(vae)


def under_fake_tensors(vae):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        shape = decode(vae, mode.from_tensor(latents())).shape
    return torch.zeros(shape)


def mapped(vae):
    with torch.no_grad():
        return torch.func.vmap(vae.decoder)(torch.stack([latents(0), latents(1)]))


def traced(vae):
    with torch.no_grad():
        return torch.jit.trace(vae.decoder, latents(), check_trace=False)(latents())


AROUND = {
    "a torch dispatch mode": under_a_mode,
    "activations are a FakeTensor": under_fake_tensors,
    "a torch.func transform": mapped,
    "torch.jit is tracing": traced,
}


@pytest.mark.parametrize("reason", AROUND)
def test_what_is_around_a_call_is_left_to_eager(vae, reason):
    expected = AROUND[reason](make_vae())
    with Installed(vae) as gates:
        result = AROUND[reason](vae)
    assert torch.equal(expected, result)
    assert 0 == gates[CONVOLUTIONS].calls_fused + gates[NORMS].first_sights
    assert all(reason in found for found in gates[CONVOLUTIONS].declined)


def test_a_vae_on_the_meta_device_declines():
    vae = make_vae().to("meta")
    with Installed(vae) as gates:
        assert (1, 3, 8, 8) == decode(vae, latents().to("meta")).shape
    assert {"activations are on the meta device"} == set(gates[CONVOLUTIONS].declined)


@torch.no_grad()
def test_no_sample_at_all_is_upsampled_as_eager_does(vae):
    upsampler, nothing = vae.decoder.up_blocks[0].upsamplers[0], torch.empty(0, 8, 4, 4, dtype=torch.bfloat16)
    with Installed(vae):
        assert (0, 8, 8, 8) == upsampler(nothing).shape


class Another(AutoencoderKL):
    pass


Another.__name__ = Another.__qualname__ = "AutoencoderKL"


def subclass_of_the_same_name(vae, patch):
    vae.__class__ = Another


def class_of_the_same_name_inside(vae, patch):
    kind = type("ResnetBlock2D", (ResnetBlock2D,), {})
    vae.decoder.mid_block.resnets[0].__class__ = kind


def another_kind_in_its_seat(vae, patch):
    vae.encoder.mid_block.resnets[0].nonlinearity = nn.Dropout(0.0)


FOREIGN = {
    "vae is tests.fastpaths.test_autoencoder_kl_changes.AutoencoderKL, no class of": subclass_of_the_same_name,
    "decoder.mid_block.resnets.0 is tests.fastpaths.test_autoencoder_kl_changes": class_of_the_same_name_inside,
    "encoder.mid_block.resnets.0: nonlinearity is Dropout, the site needs SiLU": another_kind_in_its_seat,
    "encoder.down_blocks.0.resnets.0 is ResnetBlock2D, whose forward was replaced": patch_the_class,
}


@pytest.mark.parametrize("reason", FOREIGN)
def test_other_code_than_diffusers_declines_at_mount(vae, monkeypatch, reason):
    FOREIGN[reason](vae, monkeypatch)
    assert (modules.reject_reason(vae) or "").startswith(reason)


def test_a_stand_in_that_runs_where_the_kernel_cannot_is_reported_as_what_it_did(vae):
    site = UserSite("mine", lambda *args, **_: group_norm_silu.reference(*args), replaces="group_norm_silu")
    pipe = SimpleNamespace(transformer=small_pipe().transformer, vae=vae)
    eager = decode(vae)
    with mount(pipe, user_sites=[site]) as mounted:
        assert torch.equal(bits(eager), bits(decode(vae)))
        mine = mounted.report()["sites"]["mine"]
    assert 0 < mine["calls_fused"]
    assert "fused" == mine["state"]


def test_a_stand_in_for_a_vae_that_is_rejected_as_a_whole_declines_with_it(vae):
    vae.float()
    site = UserSite("mine", group_norm_silu.reference, replaces="group_norm_silu")
    with mount(SimpleNamespace(transformer=small_pipe().transformer, vae=vae), user_sites=[site]) as mounted:
        assert "declined" == mounted.report()["sites"]["mine"]["state"]
