"""What a mount leaves behind: nothing, also where it fails half-way, and nothing stays alive for its sake."""

import copy
import gc
import io
import pickle
import threading
import weakref
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from fuseproof.errors import UsageError
from fuseproof.fastpaths import UserSite, mount
from fuseproof.fastpaths.sites import autoencoder_kl
from fuseproof.fastpaths.sites.autoencoder_kl import forwards
from fuseproof.fastpaths.sites.longcat_image import linears
from tests.fastpaths.small_model import forwards as run
from tests.fastpaths.small_model import small_pipe
from tests.fastpaths.small_vae import make_vae


def replaced(component):
    return [name for name, module in component.named_modules() if "forward" in vars(module)]


def saved_bytes(module):
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    return buffer.tell()


def silu(name, modules):
    return UserSite(name, fused=lambda module, x: F.silu(x), modules=modules)


def test_a_glob_that_names_nothing_leaves_nothing_mounted():
    pipe = small_pipe()
    sites = [silu("right", "transformer_blocks.*.norm1.silu"), silu("misspelt", "nope.*")]
    with pytest.raises(UsageError, match="names no module"):
        mount(pipe, user_sites=sites)
    assert [] == replaced(pipe.transformer)
    with mount(pipe):
        pass


def test_a_failure_in_the_second_component_takes_the_first_one_off(monkeypatch):
    pipe = SimpleNamespace(transformer=small_pipe().transformer, vae=make_vae())
    monkeypatch.setattr(autoencoder_kl, "site_reasons", lambda vae: {})
    made = []

    def failing(paths, block, eager):
        made.append(block)
        if len(made) == 3:
            raise torch.OutOfMemoryError("no memory")
        return eager

    monkeypatch.setattr(forwards, "residual_block_forward", failing)
    with pytest.raises(torch.OutOfMemoryError):
        mount(pipe, user_sites=[silu("mine", "transformer_blocks.*.norm1.silu")])
    assert [] == replaced(pipe.transformer) + replaced(pipe.vae)
    assert not hasattr(pipe.transformer, "_fuseproof_mount")


def test_a_failure_while_packing_restores_forwards_and_weights(monkeypatch):
    pipe = small_pipe()
    expected, packed = run(pipe), []
    bytes_before = saved_bytes(pipe.transformer.transformer_blocks[0].attn.to_q)
    pack = linears.pack

    def out_of_memory(together):
        if len(packed) == 3:
            raise torch.OutOfMemoryError("no memory")
        packed.append(pack(together))
        return packed[-1]

    monkeypatch.setattr(linears, "pack", out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        mount(pipe)
    assert 3 == len(packed), "some were packed"
    assert [] == replaced(pipe.transformer)
    assert bytes_before == saved_bytes(pipe.transformer.transformer_blocks[0].attn.to_q)
    assert torch.equal(expected, run(pipe))


def test_one_component_that_cannot_be_taken_off_keeps_no_other_from_it(monkeypatch):
    pipe = SimpleNamespace(transformer=small_pipe().transformer, vae=make_vae())
    monkeypatch.setattr(autoencoder_kl, "site_reasons", lambda vae: {})
    mounted = mount(pipe)
    transformer_part = mounted._parts[0]
    undo = transformer_part.installation.undo

    def failing():
        undo()
        raise RuntimeError("no memory")

    object.__setattr__(transformer_part.installation, "undo", failing)
    with pytest.raises(RuntimeError, match="no memory"):
        mounted.unmount()
    assert [] == replaced(pipe.transformer) + replaced(pipe.vae)
    assert not hasattr(pipe.vae, "_fuseproof_mount")


def test_weights_have_memory_of_their_own_again():
    pipe = small_pipe()
    linear = pipe.transformer.transformer_blocks[0].attn.to_q
    before = saved_bytes(linear)
    mount(pipe).unmount()
    assert before == saved_bytes(linear)


def test_a_copy_made_while_mounted_can_have_every_site():
    pipe = small_pipe()
    with mount(pipe):
        twin = SimpleNamespace(transformer=copy.deepcopy(pipe.transformer))
    expected = run(pipe)
    with mount(twin) as mounted:
        assert torch.equal(expected, run(twin))
        assert "fused" == mounted.report()["sites"]["packed_blocks"]["state"]


def test_a_hook_put_on_while_mounted_and_taken_off_after_leaves_the_model_as_it_was():
    """As accelerate's hooks do: they keep the forward that they found, and put it back."""
    pipe = small_pipe()
    expected = run(pipe)
    seats = [pipe.transformer, pipe.transformer.context_embedder]
    with mount(pipe):
        found = [seat.forward for seat in seats]
        for seat, ours in zip(seats, found, strict=True):
            seat.forward = lambda *args, ours=ours, **kwargs: ours(*args, **kwargs)
    assert torch.equal(expected, run(pipe))
    for seat, ours in zip(seats, found, strict=True):
        seat.forward = ours
    again = pickle.loads(pickle.dumps(pipe.transformer))
    for transformer in (pipe.transformer, again):
        arm = SimpleNamespace(transformer=transformer)
        with mount(arm) as mounted:
            assert torch.equal(expected, run(arm))
            states = {mounted.report()["sites"][name]["state"] for name in ("packed_blocks", "context_embedding")}
        assert {"fused"} == states


def test_a_mount_kept_for_its_report_keeps_no_model_alive():
    pipe = small_pipe()
    mounted = mount(pipe, user_sites=[silu("mine", "transformer_blocks.*.norm1.silu")])
    run(pipe)
    model = weakref.ref(pipe.transformer)
    reported = mounted.report()
    mounted.unmount()
    del pipe
    gc.collect()
    assert model() is None
    assert reported == mounted.report()


def call(pipe, prompt):
    with torch.no_grad():
        for step in (1.0, 0.5):
            pipe.transformer(
                hidden_states=torch.ones(1, 12, 16), timestep=torch.tensor([step]), encoder_hidden_states=prompt,
                txt_ids=torch.zeros(prompt.shape[1], 3), img_ids=torch.zeros(12, 3), return_dict=False,
            )  # fmt: skip


def test_a_prompt_lives_no_longer_than_the_request_that_made_it_in_any_thread():
    """Nobody calls ``end_request`` in diffusers' own loop, and a thread of a pool does not end."""
    pipe = small_pipe()
    prompts, is_over, may_end = [], threading.Event(), threading.Event()

    def request():
        prompt = torch.ones(1, 7, pipe.transformer.config.joint_attention_dim)
        prompts.append(weakref.ref(prompt))
        call(pipe, prompt)
        del prompt
        is_over.set()
        may_end.wait(10)

    with mount(pipe) as mounted:
        thread = threading.Thread(target=request)
        thread.start()
        assert is_over.wait(10)
        gc.collect()
        alive = [reference() for reference in prompts]
        held = mounted.report()["sites"]["context_embedding"]["calls_fused"]
        may_end.set()
        thread.join()
    assert [None] == alive
    assert 1 == held, "it was held while the request ran"
