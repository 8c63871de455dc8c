"""The mount on a small real transformer, driven the way a loop drives it."""

from types import SimpleNamespace

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, LongCatImageTransformer2DModel
from torch import nn

from fuseproof.errors import UsageError
from fuseproof.fastpaths import mount
from fuseproof.fastpaths.sites.longcat_image import SITES

TEXT, IMAGE = 7, 12


@pytest.fixture
def pipe():
    torch.manual_seed(0)
    transformer = LongCatImageTransformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=8, pooled_projection_dim=8, axes_dims_rope=[4, 4, 8],
    ).eval()  # fmt: skip
    return SimpleNamespace(transformer=transformer, scheduler=FlowMatchEulerDiscreteScheduler())


def inputs(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "prompts": [torch.randn(1, TEXT, 8, generator=generator) for _ in range(2)],
        "txt_ids": [torch.zeros(TEXT, 3) for _ in range(2)],
        "img_ids": torch.rand(IMAGE, 3, generator=generator),
        "latents": torch.randn(1, IMAGE, 16, generator=generator),
    }


@torch.no_grad()
def loop(pipe, request, steps=3, branches=2):
    """A guidance loop as diffusers writes it: a fresh timestep tensor for every branch."""
    latents, outputs = request["latents"], []
    pipe.scheduler.set_timesteps(steps)
    for t in pipe.scheduler.timesteps:
        pipe._current_timestep = t
        for branch in range(branches):
            velocity = pipe.transformer(
                hidden_states=latents,
                timestep=t.expand(1).to(latents.dtype) / 1000,
                encoder_hidden_states=request["prompts"][branch],
                txt_ids=request["txt_ids"][branch],
                img_ids=request["img_ids"],
                return_dict=False,
            )[0]
            outputs.append(velocity)
        latents = pipe.scheduler.step(velocity, t, latents, return_dict=False)[0]
    pipe._current_timestep = None
    return torch.cat(outputs).view(torch.int32)


def calls(report, site):
    return report["sites"][site]["calls_fused"], report["sites"][site]["calls_eager"]


def test_bits_and_counters(pipe):
    reference = loop(pipe, inputs())
    with mount(pipe) as mounted:
        fused = loop(pipe, inputs())
        report = mounted.report()
    assert torch.equal(reference, fused)
    assert {"fused"} == {site["state"] for site in report["sites"].values()}
    assert (4, 2) == calls(report, "context_embedding"), "one computation a branch, then held"
    assert (4, 2) == calls(report, "rotary_tables")
    assert (3, 3) == calls(report, "timestep_embedding"), "one a step, shared by the second branch"
    modules = 2 * (2 + 2 + 1)  # SiLU and Linear of two joint norms, two single norms, the last norm
    assert (3 * modules, 3 * modules) == calls(report, "modulation")


@pytest.mark.parametrize("site", SITES)
def test_each_site_alone_keeps_the_bits(pipe, site):
    reference = loop(pipe, inputs())
    with mount(pipe, sites=site) as mounted:
        assert torch.equal(reference, loop(pipe, inputs()))
        states = {name: entry["state"] for name, entry in mounted.report()["sites"].items()}
    assert {name: "fused" if name == site else "off" for name in SITES} == states


def test_a_second_request_never_sees_the_first_ones_results(pipe):
    references = [loop(pipe, inputs(seed)) for seed in (1, 2, 1)]
    with mount(pipe):
        for seed, reference in zip((1, 2, 1), references, strict=True):
            assert torch.equal(reference, loop(pipe, inputs(seed)))


def test_a_timestep_left_over_from_a_failed_request_is_not_taken_for_a_step(pipe):
    """A pipeline that dies in its loop leaves ``_current_timestep`` behind; the next loop must not suffer."""
    request = inputs()

    @torch.no_grad()
    def bare_loop():
        outputs = []
        pipe.scheduler.set_timesteps(3)
        latents = request["latents"]
        for t in pipe.scheduler.timesteps:
            for branch in range(2):
                outputs.append(
                    pipe.transformer(
                        latents, request["prompts"][branch], t.expand(1) / 1000, request["img_ids"],
                        request["txt_ids"][branch], return_dict=False,
                    )[0]
                )  # fmt: skip
            latents = pipe.scheduler.step(outputs[-1], t, latents, return_dict=False)[0]
        return torch.cat(outputs).view(torch.int32)

    pipe._current_timestep = None
    reference = bare_loop()
    pipe._current_timestep = torch.tensor(875.0)
    with mount(pipe):
        assert torch.equal(reference, bare_loop())


def test_unmounting_restores_every_forward_also_after_an_exception(pipe):
    def replaced():
        owners = [*pipe.transformer.modules(), pipe.scheduler]
        return [name for owner in owners for name in ("forward", "step", "set_timesteps") if name in vars(owner)]

    with pytest.raises(RuntimeError, match="interrupted"), mount(pipe) as mounted:
        assert replaced(), "a mount replaces something"
        loop(pipe, inputs())
        raise RuntimeError("interrupted")
    assert [] == replaced()
    mounted.unmount()  # twice is harmless
    with mount(pipe):  # and a new mount is possible
        pass


def test_one_step_and_one_branch_have_nothing_to_reuse(pipe):
    with mount(pipe) as mounted:
        loop(pipe, inputs(), steps=1, branches=1)
        assert {"eager"} == {site["state"] for site in mounted.report()["sites"].values()}


def test_gradients_run_eager_and_hold_nothing(pipe):
    request = inputs()
    with mount(pipe) as mounted:
        for _ in range(2):
            output = pipe.transformer(
                request["latents"], request["prompts"][0], torch.tensor([0.5]), request["img_ids"],
                request["txt_ids"][0], return_dict=False,
            )[0]  # fmt: skip
        output.sum().backward()
        assert 0 == sum(site["calls_fused"] for site in mounted.report()["sites"].values())


def test_a_wrong_held_result_is_caught_at_first_sight(pipe):
    """If a module were not a function of its inputs, the gate must say so and eager must win."""
    noisy = pipe.transformer.context_embedder
    eager, ticks = noisy.forward, iter(range(100))
    noisy.forward = lambda x: eager(x) + next(ticks) * 1e-3
    with mount(pipe, sites="context_embedding") as mounted:
        loop(pipe, inputs())
        site = mounted.report()["sites"]["context_embedding"]
    assert "rejected" == site["state"]
    assert "not bit-exact" in site["reason"]
    assert 0 == site["calls_fused"]
    assert noisy.forward(torch.zeros(1, 8)) is not None, "the forward found at mount time is back"


@pytest.mark.parametrize(
    ("expected", "arguments"),
    [
        ("unknown fast path 'rope'; this family has context_embedding, rotary_tables", {"sites": "rope"}),
        ("quality 'best' is not one of exact, lossless", {"quality": "best"}),
        ("gate mode 'strict' is not one of enforce", {"gate": "strict"}),
    ],
    ids=["site", "quality", "gate"],
)
def test_wrong_names_are_refused(pipe, expected, arguments):
    with pytest.raises(UsageError, match=expected):
        mount(pipe, **arguments)


def test_a_second_mount_is_refused(pipe):
    with mount(pipe), pytest.raises(UsageError, match="already mounted"):
        mount(pipe)


def test_an_adapter_on_a_modulation_linear_declines_the_whole_family(pipe):
    class Adapted(nn.Linear):
        pass

    norm = pipe.transformer.norm_out
    norm.linear = Adapted(norm.linear.in_features, norm.linear.out_features)
    with mount(pipe) as mounted:
        report = mounted.report()
    assert {"declined"} == {site["state"] for site in report["sites"].values()}
    assert "norm_out.linear is Adapted" in report["sites"]["modulation"]["reason"]


def test_a_transformer_that_no_site_knows_is_left_alone():
    other = SimpleNamespace(transformer=nn.Linear(2, 2), scheduler=None)
    with mount(other) as mounted:
        assert {} == mounted.report()["sites"]
    assert "forward" not in vars(other.transformer)
