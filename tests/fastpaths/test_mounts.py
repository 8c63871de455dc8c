"""The mount on a small real transformer, driven the way a loop drives it."""

import contextlib
import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, LongCatImageTransformer2DModel
from torch import nn

from fuseproof.errors import UsageError
from fuseproof.fastpaths import mount
from fuseproof.fastpaths.sites.longcat_image import HOISTING_SITES as SITES

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
def loop(pipe, request, steps=3, branches=2, between=None, shares_timestep=True):
    """A guidance loop: one timestep tensor a step as the native pipeline has it, or one a branch as diffusers has it.

    ``between(step, branch)`` runs before each transformer call.
    """
    latents, outputs = request["latents"], []
    pipe.scheduler.set_timesteps(steps)
    for step, t in enumerate(pipe.scheduler.timesteps):
        shared = t.expand(1).to(latents.dtype) / 1000
        for branch in range(branches):
            if between is not None:
                between(step, branch)
            velocity = pipe.transformer(
                hidden_states=latents,
                timestep=shared if shares_timestep else t.expand(1).to(latents.dtype) / 1000,
                encoder_hidden_states=request["prompts"][branch],
                txt_ids=request["txt_ids"][branch],
                img_ids=request["img_ids"],
                return_dict=False,
            )[0]
            outputs.append(velocity)
        latents = pipe.scheduler.step(velocity, t, latents, return_dict=False)[0]
    return torch.cat(outputs).view(torch.int32)


def calls(report, site):
    return report["sites"][site]["calls_fused"], report["sites"][site]["calls_eager"]


def test_bits_and_counters(pipe):
    reference = loop(pipe, inputs())
    with mount(pipe, sites=SITES) as mounted:
        fused = loop(pipe, inputs())
        report = mounted.report()
    assert torch.equal(reference, fused)
    assert {"fused"} == {report["sites"][name]["state"] for name in SITES}
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
        states = {name: entry["state"] for name, entry in mounted.report()["sites"].items() if name in SITES}
    alone = "eager" if site == "modulation" else "fused"  # without the shared embedding nothing comes twice
    assert {name: alone if name == site else "off" for name in SITES} == states


def test_a_loop_that_makes_a_timestep_for_each_branch_shares_what_lasts_the_request(pipe):
    reference = loop(pipe, inputs(), shares_timestep=False)
    with mount(pipe, sites=SITES) as mounted:
        assert torch.equal(reference, loop(pipe, inputs(), shares_timestep=False))
        sites = mounted.report()["sites"]
    assert ["fused", "fused", "eager", "eager"] == [sites[name]["state"] for name in SITES]
    assert (
        "its inputs were new tensors each time, so nothing held could be reused (5 call(s))"
        in (sites["timestep_embedding"]["reason"])
    )


def test_a_second_request_never_sees_the_first_ones_results(pipe):
    references = [loop(pipe, inputs(seed)) for seed in (1, 2, 1)]
    with mount(pipe):
        for seed, reference in zip((1, 2, 1), references, strict=True):
            assert torch.equal(reference, loop(pipe, inputs(seed)))


def written(get, change):
    """A change in the middle of a request, once every key is verified: before the second step's first call."""

    def between(pipe, request):
        def apply(step, branch):
            if (step, branch) == (1, 0):
                with torch.no_grad():
                    change(get(pipe, request))

        return apply

    return between


CHANGES = {
    "prompt-embeds-in-place": written(lambda pipe, request: request["prompts"][0], lambda tensor: tensor.mul_(1.5)),
    "image-ids-in-place": written(lambda pipe, request: request["img_ids"], lambda tensor: tensor.add_(3)),
    "context-weight": written(lambda pipe, request: pipe.transformer.context_embedder.weight, lambda w: w.mul_(1.1)),
    "context-weight-replaced": written(
        lambda pipe, request: pipe.transformer.context_embedder.weight, lambda w: setattr(w, "data", w.data * 1.1)
    ),
    "adaln-weight": written(lambda pipe, request: pipe.transformer.norm_out.linear.weight, lambda w: w.mul_(1.1)),
    "time-embedder-weight": written(
        lambda pipe, request: pipe.transformer.time_embed.timestep_embedder.linear_1.weight, lambda w: w.mul_(1.1)
    ),
    "state-dict": written(
        lambda pipe, request: pipe.transformer,
        lambda model: model.load_state_dict({name: value * 1.01 for name, value in model.state_dict().items()}),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_in_the_middle_of_a_request_is_seen(pipe, name):
    other = copy.deepcopy(pipe)
    with mount(other):
        loop(other, inputs())  # every key is verified now: only identity and counts of writes stand guard
        for arm in (pipe, other):
            request = inputs()
            arm.result = loop(arm, request, between=CHANGES[name](arm, request))
    assert torch.equal(pipe.result, other.result)


@torch.no_grad()
def test_two_timesteps_inside_one_step_stay_two(pipe):
    """Heun's and midpoint rules call the model twice in a step; whatever a pipeline's own attributes say."""

    def heun():
        request, outputs = inputs(), []
        pipe._current_timestep = torch.tensor(500.0)
        for value in (0.5, 0.45, 0.5, 0.45):
            output = pipe.transformer(
                request["latents"], request["prompts"][0], torch.tensor([value]), request["img_ids"],
                request["txt_ids"][0], return_dict=False,
            )[0]  # fmt: skip
            outputs.append(output)
        return torch.cat(outputs).view(torch.int32)

    reference = heun()
    with mount(pipe):
        loop(pipe, inputs())
        assert torch.equal(reference, heun())


@torch.no_grad()
def test_a_timestep_buffer_that_is_filled_anew_is_a_new_step(pipe):
    def run():
        request, buffer, outputs = inputs(), torch.zeros(1), []
        for value in (0.9, 0.6, 0.3):
            buffer.fill_(value)
            for branch in range(2):
                output = pipe.transformer(
                    request["latents"], request["prompts"][branch], buffer, request["img_ids"],
                    request["txt_ids"][branch], return_dict=False,
                )[0]  # fmt: skip
                outputs.append(output)
        return torch.cat(outputs).view(torch.int32)

    reference = run()
    with mount(pipe) as mounted:
        loop(pipe, inputs())
        mounted.restart_counting()
        assert torch.equal(reference, run())
        assert mounted.report()["sites"]["timestep_embedding"]["calls_fused"] == 3


def test_autocast_switched_on_in_the_middle_is_another_arithmetic(pipe):
    def run():
        with contextlib.ExitStack() as stack:

            def between(step, branch):
                if (step, branch) == (1, 0):
                    stack.enter_context(torch.autocast("cpu", torch.bfloat16))

            return loop(pipe, inputs(), between=between)

    reference = run()
    with mount(pipe):
        loop(pipe, inputs())
        assert torch.equal(reference, run())


def test_threads_that_share_the_model_keep_their_own_bits(pipe):
    arms = [SimpleNamespace(transformer=pipe.transformer, scheduler=copy.deepcopy(pipe.scheduler)) for _ in range(2)]
    references = [loop(arm, inputs(seed), steps=6) for seed, arm in enumerate(arms)]
    with mount(pipe), ThreadPoolExecutor(2) as threads:
        loop(pipe, inputs())
        for _ in range(4):
            running = [threads.submit(loop, arm, inputs(seed), steps=6) for seed, arm in enumerate(arms)]
            for reference, future in zip(references, running, strict=True):
                assert torch.equal(reference, future.result())


def test_inference_mode_runs_eager_where_writes_are_not_counted(pipe):
    reference = loop(pipe, inputs())
    with mount(pipe), torch.inference_mode():
        assert torch.equal(reference, loop(pipe, inputs()))


def test_compiled_blocks_keep_eager_arithmetic_under_a_mount(pipe):
    reference = loop(pipe, inputs())
    with mount(pipe):
        pipe.transformer.compile_repeated_blocks(backend="eager")
        assert torch.equal(reference, loop(pipe, inputs()))


def test_a_copy_of_a_mounted_model_is_a_plain_model_of_its_own(pipe):
    reference = loop(pipe, inputs())
    with mount(pipe):
        loop(pipe, inputs())
        twin = copy.deepcopy(pipe)
        part = copy.deepcopy(pipe.transformer.context_embedder)
    with torch.no_grad():
        part.weight.zero_()
        part.bias.zero_()
        assert 0 == part(torch.ones(1, 8)).abs().max(), "the copy computes with its own weights"
        twin.transformer.context_embedder.weight.mul_(2)
    assert not torch.equal(reference, loop(twin, inputs()))
    assert torch.equal(reference, loop(pipe, inputs()))
    with mount(twin):
        pass


def test_pickling_a_mounted_model_is_refused_in_words(pipe):
    with mount(pipe), pytest.raises(pickle.PicklingError, match="unmount them before pickling"):
        pickle.dumps(pipe.transformer)
    pickle.dumps(pipe.transformer)


def test_a_forward_put_on_after_the_mount_survives_the_unmount(pipe):
    calls_seen = []
    module = pipe.transformer.context_embedder
    mounted = mount(pipe)
    ours = module.forward
    module.forward = lambda x: calls_seen.append(1) or ours(x)
    mounted.unmount()
    reference = nn.functional.linear(torch.ones(1, 8), module.weight, module.bias)
    assert torch.equal(reference, module(torch.ones(1, 8)))
    assert [1] == calls_seen
    assert "forward" not in vars(pipe.transformer.pos_embed)


def test_a_class_patched_while_mounted_is_heard_as_without_a_mount(pipe, monkeypatch):
    eager = LongCatImageTransformer2DModel.forward

    def halved(self, *args, **kwargs):
        return (eager(self, *args, **kwargs)[0] * 0.5,)

    with mount(pipe):
        loop(pipe, inputs())
        monkeypatch.setattr(LongCatImageTransformer2DModel, "forward", halved)
        mounted = loop(pipe, inputs())
    assert torch.equal(loop(pipe, inputs()), mounted)


def test_a_mount_that_ended_is_not_entered_again(pipe):
    mounted = mount(pipe)
    mounted.unmount()
    with pytest.raises(UsageError, match="this mount has ended"), mounted:
        pass


def test_unmounting_restores_every_forward_also_after_an_exception(pipe):
    def replaced():
        owners = [*pipe.transformer.modules()]
        return [name for owner in owners for name in ("forward", "_fuseproof_mount") if name in vars(owner)]

    with pytest.raises(RuntimeError, match="interrupted"), mount(pipe) as mounted:
        assert replaced(), "a mount replaces something"
        loop(pipe, inputs())
        raise RuntimeError("interrupted")
    assert [] == replaced()
    mounted.unmount()  # twice is harmless
    with mount(pipe):  # and a new mount is possible
        pass


def test_one_step_and_one_branch_have_nothing_to_reuse(pipe):
    with mount(pipe, sites=SITES) as mounted:
        loop(pipe, inputs(), steps=1, branches=1)
        assert {"eager"} == {mounted.report()["sites"][name]["state"] for name in SITES}


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


def test_a_wrong_held_result_is_caught_at_first_sight(pipe, monkeypatch):
    """If a module were not a function of its inputs, the gate must say so and eager must win."""
    linear, ticks = nn.functional.linear, iter(range(1000))
    monkeypatch.setattr(nn.functional, "linear", lambda *args: linear(*args) + next(ticks) * 1e-3)
    with mount(pipe, sites="context_embedding") as mounted:
        loop(pipe, inputs())
        site = mounted.report()["sites"]["context_embedding"]
    assert "rejected" == site["state"]
    assert "not bit-exact" in site["reason"]
    assert 0 == site["calls_fused"]


def test_a_forward_of_ones_own_on_a_held_module_declines_and_is_back_after_the_unmount(pipe):
    own = pipe.transformer.context_embedder
    eager = own.forward
    own.forward = lambda x: eager(x) * 2
    reference, mine = loop(pipe, inputs()), own.forward
    with mount(pipe) as mounted:
        assert torch.equal(reference, loop(pipe, inputs()))
        site = mounted.report()["sites"]["context_embedding"]
    assert "declined" == site["state"]
    assert "context_embedder has a hook or another forward, whose effect would be held" == site["reason"]
    assert own.forward is mine


@pytest.mark.parametrize(
    ("expected", "arguments"),
    [
        ("unknown fast path 'rope'; this model has context_embedding, rotary_tables", {"sites": "rope"}),
        ("quality 'best' is not one of exact, lossless", {"quality": "best"}),
        ("gate mode 'strict' is not one of enforce", {"gate": "strict"}),
        ("sites is 5; it is auto, off, or names", {"sites": 5}),
        ("sites is None; it is auto, off, or names", {"sites": None}),
        ("quality 5 is not one of exact", {"quality": 5}),
    ],
    ids=["site", "quality", "gate", "sites-number", "sites-none", "quality-number"],
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
    assert {"declined"} == {report["sites"][name]["state"] for name in SITES}
    assert "norm_out.linear is Adapted" in report["sites"]["modulation"]["reason"]


def test_a_transformer_that_no_site_knows_is_left_alone():
    other = SimpleNamespace(transformer=nn.Linear(2, 2), scheduler=None)
    with mount(other) as mounted:
        assert {} == mounted.report()["sites"]
        assert "no fast path knows Linear" in mounted.report()["reason"]
    with pytest.raises(UsageError, match="unknown fast path 'rope'; this model has none"):
        mount(other, sites="rope")
    assert "forward" not in vars(other.transformer)


def test_mounting_inside_a_compiled_function_is_not_compiled(pipe):
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    def work(x):
        mounted = mount(pipe)
        mounted.unmount()
        return x + 1

    with torch.no_grad():
        result = torch.compile(work, backend=backend)(torch.ones(2))
    assert torch.equal(torch.full((2,), 2.0), result)
    assert 1 == len(graphs), "the addition; packing and putting back are none of its business"
