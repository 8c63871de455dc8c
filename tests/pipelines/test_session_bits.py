"""What a session says of bits that are not eager's, of fast paths that fail, and of what was asked of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fuseproof.errors import FuseproofError
from fuseproof.fastpaths import UserSite
from fuseproof.fastpaths.sites.longcat_image.modulation import ModulationTable
from fuseproof.pipelines import memory
from fuseproof.pipelines.checkpoints import check_checkpoint
from fuseproof.pipelines.loading import load_pipeline
from fuseproof.pipelines.progress import SILENT
from fuseproof.pipelines.request_run import RequestRunner
from fuseproof.pipelines.session import Session, SessionSettings
from fuseproof.pipelines.session_warnings import NOT_COMPARED, VERIFIES_EVERY_STEP
from tests.pipelines.short_prompts import with_short_prompts
from tests.pipelines.test_session_checks import REQUEST

CPU = torch.device("cpu")
UNGUIDED = replace(REQUEST, guidance_scale=1.0)


@pytest.fixture(scope="module")
def pipe(tiny_longcat_folder):
    loaded = load_pipeline(check_checkpoint(tiny_longcat_folder), dtype=torch.float32, device=CPU)
    loaded.set_progress_bar_config(disable=True)
    return with_short_prompts(loaded)


def session(pipe, **settings):
    return Session(pipe, SessionSettings(**settings), CPU, torch.float32, SILENT)


@pytest.fixture
def wrong_tables(monkeypatch):
    """A built-in fast path with other bits."""
    right = ModulationTable.fused
    monkeypatch.setattr(ModulationTable, "fused", lambda self, temb: right(self, temb) * 1.25)


@pytest.mark.parametrize(
    ("expected", "settings"),
    [
        ("off", {}),
        ("off", {"fastpaths": "off"}),
        ("auto", {"fastpaths": "auto"}),
        ("packed_blocks", {"fastpaths": "packed_blocks"}),
    ],
    ids=["unsaid", "off", "auto", "named"],
)
def test_on_diffusers_own_loop_fast_paths_are_what_was_said_and_off_where_nothing_was(pipe, expected, settings):
    with session(pipe, backend="diffusers", verify_every_step=True, **settings) as opened:
        opened.run(UNGUIDED)
        report = opened.fastpaths_report()
        warnings = list(opened.warnings)
    assert expected == report["requested"]
    assert ("fused" if expected != "off" else "off") == report["sites"]["packed_blocks"]["state"]
    assert (expected != "off") == (VERIFIES_EVERY_STEP in warnings)


def test_what_diffusers_own_loop_cannot_use_is_not_needed_there(pipe):
    with session(pipe, backend="diffusers", fastpaths="auto") as opened:
        opened.run(REQUEST)
        sites = opened.fastpaths_report()["sites"]
    assert "not needed" == sites["timestep_embedding"]["state"]
    assert "fused" == sites["modulation"]["state"]


@pytest.mark.usefixtures("wrong_tables")
def test_differences_that_were_only_observed_are_said_once(pipe):
    with session(pipe, gate="observe") as opened:
        opened.run(UNGUIDED)
        opened.run(replace(UNGUIDED, seed=2))
        told = [text for text in opened.warnings if "not lossless" in text]
        found = opened.mismatches()
    assert ["modulation", "packed_blocks"] == sorted(found), "the blocks were handed the wrong table"
    assert ["modulation", "packed_blocks"] == [text.split()[1] for text in told], "what works around it comes last"
    assert all(" returned bits that differ from eager's (" in text for text in told)
    assert all("% of the values differ, by " in text for text in told)
    assert [False, True] == ["differs because of modulation inside it" in text for text in told]


def test_observing_equal_bits_is_no_warning(pipe):
    with session(pipe, gate="observe") as opened:
        opened.run(UNGUIDED)
        assert [] == [text for text in opened.warnings if "lossless" in text]
        assert {} == opened.mismatches()


@pytest.mark.parametrize(("expected", "fastpaths"), [(1, "auto"), (0, "off")])
def test_a_gate_that_is_off_is_a_warning_where_something_ran(pipe, expected, fastpaths):
    with session(pipe, gate="off", fastpaths=fastpaths) as opened:
        for seed in range(2):
            opened.run(replace(UNGUIDED, seed=seed))
        assert expected == opened.warnings.count(NOT_COMPARED)


@pytest.mark.usefixtures("wrong_tables")
def test_a_check_of_every_step_tells_which_site_was_wrong(pipe):
    with session(pipe, fastpaths="off") as plain:
        expected = plain.run(UNGUIDED)
    with session(pipe, verify_every_step=True) as opened:
        result = opened.run(UNGUIDED)
        found = opened.mismatches()
    assert np.array_equal(expected.latents, result.latents)
    assert ["modulation"] == list(found)
    assert found["modulation"].startswith("not bit-exact")


def failing_later(monkeypatch, error):
    right, calls = ModulationTable.fused, []

    def fused(self, temb):
        calls.append(1)
        if len(calls) > 1:
            raise error
        return right(self, temb)

    monkeypatch.setattr(ModulationTable, "fused", fused)


@pytest.mark.parametrize("settings", [{}, {"attention_backend": "native"}, {"gate": "off"}], ids=str)
def test_a_built_in_fast_path_that_fails_in_a_request_is_one_sentence_that_names_it(pipe, monkeypatch, settings):
    failing_later(monkeypatch, RuntimeError("out of shared memory\nRequired: 300000"))
    with session(pipe, **settings) as opened, pytest.raises(FuseproofError) as raised:
        opened.run(UNGUIDED)
    assert "fast path modulation failed in the middle of a request: RuntimeError: out of shared memory" == (
        raised.value.message
    )
    assert 1 == raised.value.exit_code
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_a_failure_of_eagers_own_arithmetic_is_no_fast_paths_fault(pipe, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("the norm is gone")

    with session(pipe) as opened:
        monkeypatch.setattr(F, "layer_norm", fail)
        with pytest.raises(RuntimeError, match="the norm is gone"):
            opened.run(UNGUIDED)


def test_a_site_of_ones_own_that_fails_keeps_its_own_sentence(pipe):
    calls = []

    def fused(module, x):
        calls.append(1)
        if len(calls) > 4:
            raise ValueError("no more")
        return F.layer_norm(x, module.normalized_shape, eps=module.eps)

    site = UserSite("mine", fused, modules="transformer_blocks.0.norm2")
    with session(pipe, user_sites=(site,)) as opened, pytest.raises(FuseproofError) as raised:
        opened.run(replace(UNGUIDED, num_inference_steps=6))
    assert "mine" in raised.value.message
    assert "in the middle of a request" not in raised.value.message


@pytest.mark.parametrize(
    ("expected", "settings"),
    [([2, "given back", 1, 2], {}), ([2, 2], {"fastpaths": "off"})],
    ids=["first-sights", "none"],
)
def test_what_first_sights_took_is_given_back_and_the_pool_filled_again_outside_the_request(
    pipe, monkeypatch, expected, settings
):
    """The second warm-up meets nothing new."""
    order = []

    def give_back(device):
        order.append("given back")
        return True

    def noted(runner, request):
        order.append(request.num_inference_steps)
        return run(runner, request)

    run = RequestRunner.run
    monkeypatch.setattr(RequestRunner, "run", noted)
    monkeypatch.setattr(memory, "give_back_unused", give_back)
    with session(pipe, **settings) as opened:
        for _ in range(2):
            opened.warm_up(UNGUIDED, steps=2)
            assert 2 == opened.warmup_steps
    assert expected == order
