"""A site with nothing to do in a request is ``not needed``; one that had work and did not run keeps its state."""

from dataclasses import replace

import pytest

from fuseproof.pipelines.fastpath_needs import ONE_TIMESTEP, with_needs, without_need
from tests.pipelines.test_session_checks import REQUEST

ONE_STEP = replace(REQUEST, num_inference_steps=1)
UNGUIDED = replace(REQUEST, guidance_scale=1.0)
NO_SECOND_STEP = "one step: there is no second one to hold a result for"
ONE_BRANCH = "no guidance: each step is one call, and there is no second one to hold a result for"
ANOTHER_TIMESTEP = "diffusers' own loop makes another timestep for each branch"


@pytest.mark.parametrize(
    ("expected", "site", "request_", "backend"),
    [
        (None, "context_embedding", REQUEST, "native"),
        (NO_SECOND_STEP, "context_embedding", ONE_STEP, "native"),
        (NO_SECOND_STEP, "rotary_tables", ONE_STEP, "diffusers"),
        (NO_SECOND_STEP, "text_keys_values", ONE_STEP, "native"),
        (None, "timestep_embedding", ONE_STEP, "native"),
        (ONE_BRANCH, "timestep_embedding", UNGUIDED, "native"),
        (ANOTHER_TIMESTEP, "timestep_embedding", REQUEST, "diffusers"),
        (None, "guidance_step", UNGUIDED, "native"),
        ("diffusers' own loop ends its steps itself", "guidance_step", REQUEST, "diffusers"),
        (None, "packed_blocks", ONE_STEP, "native"),
        (None, "my_own", ONE_STEP, "native"),
    ],
)
def test_without_need(expected, site, request_, backend):
    assert expected == without_need(site, request_, backend)


@pytest.mark.parametrize(
    ("expected", "state", "requests"),
    [
        ("not needed", "eager", [ONE_STEP]),
        ("not needed", "unreached", [ONE_STEP, replace(ONE_STEP, seed=2)]),
        ("eager", "eager", [ONE_STEP, REQUEST]),
        ("eager", "eager", []),
        ("declined", "declined", [ONE_STEP]),
        ("fused", "fused", [ONE_STEP]),
        ("rejected", "rejected", [ONE_STEP]),
    ],
    ids=["one-step", "twice-one-step", "one-request-had-work", "before-any-request", "declined", "fused", "rejected"],
)
def test_only_a_site_without_a_fused_call_can_be_not_needed(expected, state, requests):
    report = {"requested": "auto", "sites": {"rotary_tables": {"state": state, "reason": "as it was"}}}
    site = with_needs(report, requests, "native")["sites"]["rotary_tables"]
    assert (expected, NO_SECOND_STEP if expected == "not needed" else "as it was") == (site["state"], site["reason"])


@pytest.mark.parametrize(
    ("expected", "state", "calls_around"),
    [("not needed", "unreached", 4), ("unreached", "unreached", 0), ("declined", "declined", 4), ("fused", "fused", 4)],
)
def test_tokens_that_are_told_nothing_of_their_own_need_no_rows(expected, state, calls_around):
    around = {"state": "fused" if calls_around else "declined", "reason": None, "calls_fused": calls_around}
    report = {"sites": {"video_blocks": around, "timestep_rows": {"state": state, "reason": None, "calls_fused": 0}}}
    site = with_needs(report, [REQUEST], "native")["sites"]["timestep_rows"]
    assert (expected, ONE_TIMESTEP if expected == "not needed" else None) == (site["state"], site["reason"])
