"""Digests of bits, calls watched from outside, and two arms' calls side by side."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler
from torch import nn

from fuseproof.fastpaths.operations import signature
from fuseproof.pipelines.divergence.calls import Call, TensorFact, sum_of
from fuseproof.pipelines.divergence.comparing import compare_calls, first_difference
from fuseproof.pipelines.divergence.digests import digest, values_of
from fuseproof.pipelines.divergence.following import RequestFollower
from fuseproof.pipelines.divergence.key_words import key_words
from fuseproof.pipelines.divergence.module_facts import facts_of
from fuseproof.pipelines.divergence.subject import Subject
from fuseproof.pipelines.divergence.tensor_differences import compare_tensors, growth_curve
from fuseproof.pipelines.divergence.watching import CallWatch
from fuseproof.pipelines.flow_unipc import FlowUniPC
from fuseproof.pipelines.guided_step import GuidedStep


def random_bits(shape, dtype):
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(shape, generator=generator) * 3
    return torch.complex(values, values.flip(0)) if dtype.is_complex else values.to(dtype)


def numbers(tensor):
    return values_of([digest(tensor)])[0]


DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int8, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("shape", [(), (7,), (3, 5, 13), (3, 5, 16), (2, 3, 4, 6), (1, 3, 2, 4, 8)], ids=str)
def test_a_digest_follows_every_element_and_no_stride(dtype, shape):
    tensor = random_bits(shape, dtype)
    before = numbers(tensor)
    assert before == numbers(tensor.clone())
    if tensor.ndim > 1:
        assert before == numbers(tensor.transpose(0, 1).contiguous().transpose(0, 1))
        assert before[0] != numbers(tensor.flip(1))[0]
    for index in {0, tensor.numel() // 2, tensor.numel() - 1}:
        changed = tensor.clone()
        changed.view(-1)[index] += 4
        assert all(a != b for a, b in zip(before, numbers(changed), strict=True))


def test_a_digest_is_of_bits_at_any_address_and_without_memory_there_is_none():
    zeros = torch.zeros(2, 4)
    assert numbers(zeros) != numbers(-zeros)
    wide = torch.arange(21.0)
    assert numbers(wide[1:]) == numbers(wide[1:].clone())  # 4 bytes off the word
    assert [0, 0] == numbers(torch.zeros(0, 4))
    assert digest(torch.empty(2, device="meta")) is None


def test_rows_have_the_digest_of_their_halves_together():
    stream = random_bits((1, 9, 16), torch.bfloat16)
    halves = [numbers(part)[1] for part in (stream[:, 4:], stream[:, :4])]
    written = [f"{number & (2**64 - 1):016x}" for number in halves]
    assert f"{numbers(stream)[1] & (2**64 - 1):016x}" == sum_of(written)


def test_a_large_tensor_is_read_in_chunks(monkeypatch):
    tensor = random_bits((40, 24), torch.float32)
    whole = numbers(tensor)
    monkeypatch.setattr("fuseproof.pipelines.divergence.digests.CHUNK_WORDS", 30)
    assert whole == numbers(tensor)


REQUEST = SimpleNamespace(guidance_scale=4.5, enable_cfg_renorm=True, cfg_renorm_min=0.0)


def settings_of_a_step(label, scheduler, step, times):
    """What is noted of the last of ``times`` calls of ``step``."""
    watch = CallWatch(
        Subject.of(SimpleNamespace(transformer=Twice(), scheduler=scheduler)), frozenset({("step 1", label, 0, times)})
    )
    watch.begin_region("step 1")
    watch.start()
    try:
        for number in range(times):
            step(torch.ones(1, 4, 4), scheduler.timesteps[number], torch.zeros(1, 4, 4))
    finally:
        watch.stop()
    return watch.settings[("step 1", label, 0, times)]


def test_a_guided_step_is_noted_with_its_guidance_and_the_sigmas_of_that_step():
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(sigmas=[1.0, 0.5, 0.25])
    advance = GuidedStep(scheduler, REQUEST, None)
    found = settings_of_a_step("guidance and step", scheduler, lambda v, t, x: advance(v, v, t, x), 2)
    assert {
        "guidance_scale": "4.5",
        "enable_cfg_renorm": "True",
        "cfg_renorm_min": "0.0",
        "timestep": "500.0",
        "sigma": "0.5",
        "next sigma": "0.25",
    } == found
    assert "shift" in facts_of(Subject.of(SimpleNamespace(scheduler=scheduler)), "guidance and step")["settings"]


@pytest.mark.parametrize("label", ["solver step", "scheduler.step"])
def test_a_solvers_step_is_noted_with_the_guidance_of_the_loop_around_it(label):
    scheduler = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=2.0)
    scheduler.set_timesteps(3)
    unipc = FlowUniPC(scheduler, torch.device("cpu"))
    steps = {"solver step": lambda v, t, x: unipc(v, x), "scheduler.step": scheduler.step}

    def loop():
        guidance_scale = 5.0
        return settings_of_a_step(label, scheduler, steps[label], 2), guidance_scale

    found, _ = loop()
    expected = {
        "guidance_scale": "5.0",
        "sigma": str(scheduler.sigmas[1].item()),
        "next sigma": str(scheduler.sigmas[2].item()),
    }
    assert expected == {name: text for name, text in found.items() if name != "timestep"}


def test_facts_of_a_block_hold_the_settings_and_weights_below_it():
    block = nn.Module()
    block.attn, block.norm = nn.Module(), nn.LayerNorm(4, eps=1e-5)
    block.attn.processor = SimpleNamespace(_attention_backend="native")
    model = nn.Module()
    model.blocks = nn.ModuleList([block])
    subject = Subject.of(SimpleNamespace(transformer=model))
    for label in ("transformer.blocks.0", "transformer.blocks.0 › gelu_tanh"):
        facts = facts_of(subject, label)
        assert ("native", "1e-05") == (
            facts["settings"]["attn.processor._attention_backend"],
            facts["settings"]["norm.eps"],
        )
        assert ["norm.bias", "norm.weight"] == sorted(facts["weights"])
    assert {} == facts_of(subject, "transformer")["weights"]


TENSOR = signature(torch.zeros(1, 8, 4))


@pytest.mark.parametrize(
    ("expected", "site", "key", "form"),
    [
        ("block 3, hidden 1x8x4 float32, text rows 5, rotary table float32", "packed_blocks",
         (3, TENSOR, 5, torch.float32), None),
        ("block 3, 1x8x4 float32", "foreign_blocks", (3, TENSOR), None),
        ("1x8x4 float32, 5", "packed_blocks", (TENSOR, 5), None),
        ("norm, x 1x8x4 float32, eps 1e-06", "norm", ("norm", TENSOR, 1e-6), lambda x, eps, out=None: x),
        ("blocks.1.norm, 1x8x4 float32", "own", ("blocks.1.norm", TENSOR), None),
    ],
)  # fmt: skip
def test_numbers_in_keys_are_named(expected, site, key, form):
    assert expected == key_words(site, key, form, of_blocks=site.endswith("_blocks"))


class Twice(nn.Module):
    """A denoiser of two blocks with a sum of its own between them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.added = 0.0

    def forward(self, hidden_states, scale=None):
        first = self.blocks[0](hidden_states)
        return self.blocks[1](first + self.added), scale


def watched(denoiser, times=1, wanted=frozenset()):
    watch = CallWatch(Subject.of(SimpleNamespace(transformer=denoiser, scheduler=None)), wanted)
    watch.begin_region("step 1")
    with torch.no_grad():
        watch.start()
        try:
            for number in range(times):
                denoiser(torch.ones(1, 2, 4) * number, scale=torch.tensor(2.0))
        finally:
            watch.stop()
    return watch, [Call.from_json(call) for call in watch.calls()]


def test_calls_are_noted_by_name_forward_and_argument_and_nothing_hangs_on_the_model():
    denoiser = Twice()
    _, calls = watched(denoiser, times=2)
    assert ["transformer", "transformer.blocks.0", "transformer.blocks.1"] * 2 == [call.label for call in calls]
    assert [1, 1, 1, 2, 2, 2] == [call.forward for call in calls]
    assert ["hidden_states", "scale"] == [fact.name for fact in calls[0].inputs]
    assert ["output[0]", "output[1]"] == [fact.name for fact in calls[0].outputs]
    assert calls[0].entered == calls[1].parent
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in denoiser.modules())
    assert sys.getprofile() is None


def test_the_cause_is_the_call_that_makes_the_difference_not_those_that_hand_it_on():
    _, baseline = watched(Twice(), times=2)
    changed = Twice()
    changed.blocks[0].bias.data[1] += 1e-6
    _, candidate = watched(changed, times=2)
    finding = compare_calls(baseline, candidate)
    assert ("transformer.blocks.0", ("output",)) == (finding.cause.label, finding.cause.outputs)
    assert (5, 6, None) == (finding.consequences, finding.compared, finding.inner)


def test_what_a_module_does_between_its_modules_is_its_own():
    changed = Twice()
    changed.added = 1e-3
    finding = compare_calls(watched(Twice())[1], watched(changed)[1])
    assert ("transformer", "transformer.blocks.1") == (finding.cause.label, finding.inner.label)


def test_an_input_that_differs_first_is_told_as_such():
    _, calls = watched(Twice())
    facts = tuple(replace(fact, ordered="0") if fact.name == "scale" else fact for fact in calls[0].inputs)
    finding = compare_calls(calls, [replace(calls[0], inputs=facts), *calls[1:]])
    assert (None, ("scale",)) == (finding.cause, finding.outside.inputs)
    equal = compare_calls(calls, calls)
    assert (None, None, 0) == (equal.cause, equal.outside, equal.consequences)


def test_a_rewritten_block_is_held_against_the_librarys_by_all_its_rows():
    stream = random_bits((1, 9, 16), torch.float32)

    def call(tensors, inputs=None):
        facts = []
        for name, tensor in tensors.items():
            pair = [f"{number & (2**64 - 1):016x}" for number in numbers(tensor)]
            facts.append(TensorFact(name, tuple(tensor.shape), "float32", *pair))
        return Call("transformer.blocks.0", "module", "Block", "step 1", 1, 1, 1, 2, None, inputs, tuple(facts))

    eager = call({"output[0]": stream[:, :4], "output[1]": stream[:, 4:]})
    assert compare_calls([eager], [call({"output": stream})]).cause is None
    other = stream.clone()
    other[0, 3, 3] += 1
    assert ("all rows together",) == compare_calls([eager], [call({"output": other})]).cause.outputs


def test_wanted_tensors_are_copied_and_compared_by_index_and_value():
    denoiser = Twice()
    key = ("step 1", "transformer.blocks.0", 1, 1)
    one = watched(denoiser, wanted=frozenset({key}))[0].kept[key]
    denoiser.blocks[0].bias.data[2] = torch.nextafter(denoiser.blocks[0].bias.data[2], torch.tensor(9.0))
    other = watched(denoiser, wanted=frozenset({key}))[0].kept[key]
    assert [True] == [found.is_equal for found in compare_tensors(one["inputs"], other["inputs"])]
    (output,) = compare_tensors(one["outputs"], other["outputs"])
    assert ((0, 0, 2), 0.25, 1) == (
        output.first_index,
        output.difference.differing_share,
        output.difference.largest_ulp,
    )
    shorter = [("output", other["outputs"][0][1][:, :1])]
    assert ("[1, 2, 4] float32", "[1, 1, 4] float32") == compare_tensors(one["outputs"], shorter)[0].layouts


def test_growth_is_told_in_ulp_and_decibels(tmp_path):
    for name, error in (("a", 0.0), ("b", 0.1)):
        (tmp_path / name).mkdir()
        torch.save(torch.arange(4.0), tmp_path / name / "latents-0000.pt")
        torch.save(torch.arange(4.0) + torch.tensor([error, 0, 0, 0]), tmp_path / name / "latents-0001.pt")
    start, end = growth_curve(tmp_path / "a", tmp_path / "b")
    assert (0.0, 0, None) == (start.differing_share, start.largest_ulp, start.psnr_db)
    assert (0.25, 35.56) == (end.differing_share, end.psnr_db)  # 10 log10(9 / (0.01 / 4))


def test_the_loops_own_latents_are_followed_and_warm_ups_are_not():
    follower, seen = RequestFollower(), []

    def loop():
        latents = torch.zeros(1)
        follower.stage_started("DenoisingStage", 2)
        for step in range(2):
            latents = latents + 1
            follower.step_finished(step)

    loop()
    follower.begin(lambda number, latents: seen.append((number, float(latents))))
    loop()
    follower.end()
    loop()
    assert [(0, 0.0), (1, 1.0), (2, 2.0)] == seen


@pytest.mark.parametrize(("expected", "other"), [(None, "aa"), (1, "ab"), (0, "ba")])
def test_the_first_boundary_that_differs(expected, other):
    ends = [[{"digest": letter, "shape": [1], "dtype": "float32"} for letter in letters] for letters in ("aa", other)]
    assert expected == first_difference(*ends)
