"""A site that works around others differs where one of them does: under ``observe`` that is told, and told last."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fuseproof.fastpaths import Gate, GateMode, UserSite, mount
from fuseproof.fastpaths.nesting import sites_inside
from tests.fastpaths.small_ernie import forwards, small_pipe

INSIDE = "; differs because of my_norm inside it, or by itself: not told apart"


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def eager():
    return torch.arange(4, dtype=torch.float32)


def off():
    return eager() * (1 + 2**-20)


def observe_nested(inner_fused, outer_adds):
    """The outer site's fused form takes the inner one's result."""
    gates = {name: Gate(name, GateMode.OBSERVE) for name in ("outer", "inner")}
    gates["outer"].run("key", lambda: gates["inner"].run("key", inner_fused, eager) + outer_adds, eager)
    return gates


@pytest.mark.parametrize(
    ("expected", "inner_fused", "outer_adds"),
    [
        pytest.param(("inner",), off, 0.0, id="the inner one differs, and so the outer one"),
        pytest.param((), eager, 1e-3, id="the outer one differs by itself"),
        pytest.param((), eager, 0.0, id="none differs"),
    ],
)
def test_an_outer_site_knows_what_differed_inside_it(expected, inner_fused, outer_adds):
    gates = observe_nested(inner_fused, outer_adds)
    assert expected == sites_inside("outer", gates, ())
    assert () == sites_inside("inner", gates, ())


def test_a_site_beside_another_is_not_blamed():
    gates = {name: Gate(name, GateMode.OBSERVE) for name in ("first", "second")}
    for gate in gates.values():
        gate.run("key", off, eager)
    assert () == sites_inside("second", gates, ())


def test_what_another_site_made_unseen_counts_as_inside():
    class Family:
        READ_BY = {"table": "blocks"}  # noqa: RUF012 - as a family's module says it

    gates = {name: Gate(name, GateMode.OBSERVE) for name in ("table", "blocks")}
    gates["blocks"].run("key", off, eager)
    assert () == sites_inside("blocks", gates, [Family])
    gates["table"].run("key", off, eager)
    assert ("table",) == sites_inside("blocks", gates, [Family])


def wrong_norm(x, weight, scale, shift, eps, *, out=None):
    normed = F.rms_norm(x, x.shape[-1:], weight, eps)
    return normed * (1.01 + scale.unsqueeze(1)) + shift.unsqueeze(1)


def test_blocks_around_a_wrong_kernel_of_ones_own_are_told_after_it():
    own = UserSite("my_norm", fused=wrong_norm, replaces="rmsnorm_modulate")
    pipe = small_pipe()
    with mount(pipe, gate="observe", user_sites=[own]) as mounted:
        forwards(pipe)
        report = mounted.report()["sites"]
    names = list(report)
    assert names.index("my_norm") < names.index("stream_blocks") == len(names) - 1
    assert report["stream_blocks"]["reason"].endswith(INSIDE)
    assert (["my_norm"], []) == (report["stream_blocks"]["differed_inside"], report["my_norm"]["differed_inside"])
