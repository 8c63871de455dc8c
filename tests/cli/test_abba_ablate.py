"""``fuseproof abba --ablate fastpaths``: which arms it makes of which plan, and what it refuses; nothing runs."""

from __future__ import annotations

import importlib
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from fuseproof.cli import abba as cli_abba
from fuseproof.cli.abba_ablate_dry_run import idle_remark
from fuseproof.cli.abba_ablate_sites import needed_sites, needs_a_card
from fuseproof.cli.fastpath_sites import sites_of
from fuseproof.cli.fastpaths_coverage import coverage
from fuseproof.fastpaths.families import FAMILIES as SITE_FAMILIES
from fuseproof.harness.machine.gpus import GpuSurvey
from fuseproof.pipelines import devices
from fuseproof.pipelines.families import FAMILIES
from fuseproof.schedules.plan import Plan
from tests.cli.test_abba import Abba, abba  # noqa: F401 (a fixture)

LONGCAT = ["longcat-image", "--cells=lossless", "--ablate=fastpaths", "--dry-run"]
KERNELS = ["gated_residual", "gelu_tanh", "layernorm_modulate", "qk_norm_rope"]


def fastpaths_by_arm(text: str) -> dict[str, str]:
    """What each arm's slots are given, by letter."""
    slots = json.loads(text)["slots"]
    return {slot["arm"]: next(w for w in slot["command"] if w.startswith("--fastpaths")) for slot in slots}


def test_every_site_alone_and_left_out(abba: Abba) -> None:  # noqa: F811
    told = abba(*LONGCAT)
    assert 0 == told.code
    assert "105 slots" in told.out
    assert "12 fast paths or groups of them, each alone and left out: 26 arms" in " ".join(told.out.split())
    assert "  gated_residual       D [4, 49] over I   P [16, 37]" in told.out.splitlines()
    assert 1 == told.out.count("ABCDEFGHIJKLMNOPQRSTUVWXYZZYXWVUTSRQPONMLKJIHGFEDCBA")
    assert len(told.out.splitlines()) < 60
    flags = fastpaths_by_arm(abba(*LONGCAT, "--json").out)
    assert ["--fastpaths=off", "--fastpaths=auto"] == [flags["A"], flags["B"]]
    assert "--fastpaths=gated_residual,packed_blocks" == flags["D"]
    without_blocks = next(flag for flag in flags.values() if "packed_blocks" not in flag and flag.count(",") == 6)
    assert not set(KERNELS) & set(without_blocks.partition("=")[2].split(","))


def test_only_some_and_the_rest(abba: Abba) -> None:  # noqa: F811
    more = ["--only=gelu_tanh,vae_convolutions+vae_group_norm_silu", "--ablate-by=alone", "--blocks=1", "--json"]
    flags = fastpaths_by_arm(abba(*LONGCAT, *more).out)
    assert [
        *("--fastpaths=off", "--fastpaths=auto", "--fastpaths=gelu_tanh,packed_blocks"),
        *("--fastpaths=vae_convolutions,vae_group_norm_silu", "--fastpaths=packed_blocks"),
    ] == [flags[letter] for letter in "ABCDE"]
    assert flags["F"].startswith("--fastpaths=packed_blocks,context_embedding,gated_residual,")
    assert 6 == len(flags)


def test_a_request_of_flags_alone_needs_no_plan(abba: Abba) -> None:  # noqa: F811
    told = abba("--flags=--prompt x --seed 3", "--ablate=fastpaths", "--ablate-by=without", "--dry-run")
    assert "alone" not in told.out.partition("fast path ")[2].partition("order of")[0]
    assert any(line.split()[:2] == ["context_embedding", "C"] for line in told.out.splitlines())
    assert "campaigns/abba-ablation-" in told.out


def test_an_arm_that_stands_for_another_says_so(abba: Abba) -> None:  # noqa: F811
    told = " ".join(abba(*LONGCAT, "--only=packed_blocks,modulation").out.split())
    assert "D, alone:modulation, stands for without:packed_blocks: the same fast paths, so one arm" in told
    assert "packed_blocks C [3, 10] D [4, 9], with rest" in told


def test_what_declines_here_is_said_before_the_campaign(abba: Abba, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    def both(plan: Plan, _: Any) -> str | None:
        surveys = [cast("GpuSurvey", SimpleNamespace(gpus=(None,) * cards)) for cards in (1, 0)]
        assert idle_remark(plan, surveys[0]) is None
        return idle_remark(plan, surveys[1])

    monkeypatch.setattr(cli_abba, "idle_remark", both)
    told = " ".join(abba(*LONGCAT).out.split())
    assert "7 of 12 units decline in every slot, and their arms measure nothing (gated_residual," in told


def test_what_needs_a_card_is_what_a_cpu_declines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule of source files is what `fastpaths list` finds when it asks the family's code."""
    monkeypatch.setattr(devices, "choose_device", lambda _: torch.device("cpu"))
    declining = {one["site"] for one in coverage("longcat-image")["sites"] if one["state"] != "would mount"}
    assert declining == {site for site in sites_of(FAMILIES["longcat-image"]) if needs_a_card(site)}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        pytest.param(
            ["longcat-image"], "cells lossless and high have other ones (fp8_linear, linear_gelu)", id="cells"
        ),
        pytest.param(["--candidate=--seed=1"], "--ablate and --candidate exclude each other", id="arms"),
        pytest.param(["--aa"], "--ablate and --aa exclude each other", id="aa"),
        pytest.param(["--quick"], "--ablate and --quick exclude each other", id="quick"),
        pytest.param(["--only=gelu"], "--only names 'gelu', which is no fast path here", id="unknown"),
        pytest.param(["--only=modulation,modulation"], "--only names 'modulation' twice", id="twice"),
        pytest.param(["--only=,"], "--only is ','", id="empty"),
        pytest.param(["sglang-pr", "--cells=qwen-image"], "differ in --fastpaths alone", id="commands"),
        pytest.param(["--flags=--prompt x --fastpaths-from own.py"], "--fastpaths-from adds others", id="own"),
        pytest.param(
            ["--flags=--prompt x --model-path some/repo"], "nobody knows which fast paths some/repo", id="hub"
        ),
        pytest.param(["longcat-image", "--cells=high"], "14 fast paths or groups of them make 30 arms", id="many"),
    ],
)
def test_what_cannot_be_ablated_is_refused(abba: Abba, arguments: list[str], told: str) -> None:  # noqa: F811
    result = abba(*arguments, "--ablate=fastpaths", "--dry-run")
    assert 2 == result.code
    assert told in result.err


@pytest.mark.parametrize("flag", ["--only=modulation", "--ablate-by=alone", "--bench=x.json"])
def test_flags_of_an_ablation_need_one(abba: Abba, flag: str) -> None:  # noqa: F811
    result = abba(flag, "--dry-run")
    assert 2 == result.code
    assert f"{flag.partition('=')[0]} has no effect without --ablate fastpaths" in result.err


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_needs_are_those_that_mount_adds(family: Any) -> None:
    """What the source files say, word for word, is what the imported families hold."""
    classes = {name for component in family.components.values() for name in component.classes}
    modules = {module for name, module in SITE_FAMILIES.items() if name in classes}
    mine = [importlib.import_module(module) for module in sorted(modules)]
    wanted: dict[str, str] = {}
    for one in mine:
        wanted |= getattr(one, "REQUIRES", {})
    assert wanted == needed_sites(family)
    assert {site for one in mine for site in one.SITES} == set(sites_of(family))
