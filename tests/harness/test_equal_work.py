"""Unequal work has no ratio; a difference that the arms declare is the experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fuseproof.harness.analysis.campaign import CampaignAnalysis, CellAnalysis, analyse
from fuseproof.harness.analysis.declared import declared_settings, differing_settings
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.report import render_markdown
from fuseproof.harness.statistics.verdict import Word
from fuseproof.schedules.plan import Arm
from tests.harness.campaign_builder import CampaignBuilder, Run

TIMES = {"A": 10.0, "B": 9.5}
OFFLOAD_FLAGS = (
    "dit_cpu_offload",
    "dit_layerwise_offload",
    "text_encoder_cpu_offload",
    "image_encoder_cpu_offload",
    "vae_cpu_offload",
    "use_fsdp_inference",
)
STATED = {
    **{f"{kind}_sha256": ["a" * 64] for kind in ("video", "audio", "mask")},
    "weights_kind": "random",
    "weights_sha256": "a" * 64,
    "conditioning_cache_hits": 0,
    **dict.fromkeys(OFFLOAD_FLAGS, False),
}
"""What both arms state and a case changes in one of them."""


def campaign_builder(
    folder: Path, baseline: Mapping[str, Any], candidate: Mapping[str, Any], **plan: Any
) -> CampaignBuilder:
    """Two blocks whose runs differ by arm in the given Run fields."""
    builder = CampaignBuilder(folder / "c", **plan)
    fields = {"A": baseline, "B": candidate}
    for index, way in enumerate(("ABBA", "BAAB")):
        builder.block([Run(**({"worker_s": TIMES[arm]} | dict(fields[arm]))) for arm in way], block=index + 1)
    return builder


def campaign(folder: Path, baseline: Mapping[str, Any], candidate: Mapping[str, Any], **plan: Any) -> CampaignAnalysis:
    """The same, analysed."""
    return analyse(Campaign.open(campaign_builder(folder, baseline, candidate, **plan).write()))


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        pytest.param({"config": {"num_inference_steps": 4}}, "num_inference_steps: 8 against 4", id="steps asked"),
        pytest.param({"steps_recorded": 4}, "denoise steps: 8 against 4", id="steps recorded"),
        pytest.param({"config": {"width": 32}}, "width: 16 against 32", id="size"),
        pytest.param({"config": {"seed": 1}}, "seed: 42 against 1", id="seed"),
        pytest.param({"config": {"guidance_scale": 1.0}}, "guidance_scale: 4.5 against 1.0", id="guidance"),
        pytest.param({"prompts": ("a fox",)}, "prompt:", id="prompt"),
        pytest.param({"model": "other/model"}, "model: embedded:longcat-image against other/model", id="model"),
        pytest.param({"config": {"warmup_steps": 50}}, "warmup_steps: 1 against 50", id="warm-up depth"),
        pytest.param({"config": {"load_format": "dummy"}}, "load_format: auto against dummy", id="dummy weights"),
        pytest.param(
            {"config": {"weights": {"format": "dummy", "recipe": 2, "seed": 0}}},
            'weights: null against {"format": "dummy", "recipe": 2, "seed": 0}',
            id="recipe of dummy weights",
        ),
        pytest.param({"config": {"dtype": "bfloat16"}}, "dtype: float32 against bfloat16", id="dtype, undeclared"),
        pytest.param(
            {"config": {"backend": "diffusers"}}, "backend: native against diffusers", id="backend, undeclared"
        ),
        pytest.param(
            {"config": {"enable_torch_compile": True}},
            "enable_torch_compile: false against true",
            id="compile, undeclared",
        ),
        pytest.param(
            {"config": {"performance_mode": "manual"}},
            "performance_mode: auto against manual",
            id="residency, undeclared",
        ),
        pytest.param({"config": {"negative_prompt": "blur"}}, "negative_prompt:", id="negative prompt"),
        pytest.param({"config": {"image_sha256": ["b" * 64]}}, "image_sha256:", id="input picture"),
        *(
            pytest.param({"config": {f"{kind}_sha256": ["b" * 64]}}, f"{kind}_sha256:", id=f"input {kind}")
            for kind in ("video", "audio", "mask")
        ),
        pytest.param({"config": {"resolved_revision": "b" * 40}}, "resolved_revision: null against", id="revision"),
        pytest.param({"config": {"weights_kind": "trained"}}, "weights_kind: random against trained", id="weights"),
        pytest.param({"config": {"weights_sha256": "b" * 64}}, "weights_sha256:", id="hash of the weights"),
        pytest.param(
            {"config": {"conditioning_cache_hits": 1}}, "conditioning_cache_hits: 0 against 1", id="warm text cache"
        ),
        *(
            pytest.param({"config": {flag: True}}, f"{flag}: false against true", id=f"{flag}, undeclared")
            for flag in OFFLOAD_FLAGS
        ),
        pytest.param({"config": {"generator_device": "cuda"}}, "generator_device: cpu against cuda", id="generator"),
        pytest.param({"output_overrides": {"width": 32}}, "geometry", id="size made"),
        pytest.param({"pictures": (1, 2)}, "number of outputs: 1 against 2", id="outputs made"),
        pytest.param({"worker_s": 0.5}, "excessive speed-up", id="twenty times faster"),
    ],
)
def test_undeclared_difference_is_invalid_and_prints_no_ratio(
    tmp_path: Path, candidate: dict[str, Any], expected: str
) -> None:
    analysis = campaign(tmp_path, {"config": STATED}, {**candidate, "config": STATED | candidate.get("config", {})})
    (cell,) = analysis.cells
    assert Word.INVALID is cell.word
    assert expected in " ".join(cell.equal_work.differences)
    assert 6 == analysis.exit_code()
    assert cell.verdict.comparison is None
    text = render_markdown(analysis)
    assert "×" not in text and "latency" not in text
    assert "UNEQUAL_WORK" in text


@pytest.mark.parametrize(
    "work",
    [
        pytest.param({"transformer_calls": 16, "transformer_tokens": 2048}, id="half the calls"),
        pytest.param({"transformer_calls": 32, "transformer_tokens": 2048}, id="half the tokens"),
    ],
)
def test_half_of_the_transformer_work_is_invalid(tmp_path: Path, work: dict[str, int]) -> None:
    analysis = campaign(tmp_path, {"work": {"transformer_calls": 32, "transformer_tokens": 4096}}, {"work": work})
    assert 6 == analysis.exit_code()
    assert "transformer" in analysis.cells[0].equal_work.differences[0]


def test_the_same_tokens_in_fewer_calls_are_shown_and_compared(tmp_path: Path) -> None:
    two_by_two = {"transformer_calls": 16, "transformer_tokens": 4096}
    (cell,) = campaign(tmp_path, {"work": {**two_by_two, "transformer_calls": 32}}, {"work": two_by_two}).cells
    assert Word.FASTER is cell.word
    assert "transformer calls: [32] against [16]" in cell.equal_work.notes


@pytest.mark.parametrize(
    ("baseline", "candidate", "said"),
    [
        pytest.param(
            {"allow_tf32": {"matmul": False, "cudnn": True}},
            {"allow_tf32": {"matmul": True, "cudnn": True}},
            "TF32 policy: matmul false against matmul true",
            id="TF32",
        ),
        pytest.param(
            {"numerics": {"autocast": None}},
            {"numerics": {"autocast": "bfloat16"}},
            "rounding policy: autocast null against autocast bfloat16",
            id="autocast",
        ),
        pytest.param({"torch_threads": 1}, {"torch_threads": 8}, "torch threads: 1 against 8", id="threads"),
        pytest.param(
            {"libraries": {"torch": "2.12.0"}},
            {"libraries": {"torch": "2.13.0"}},
            "torch version: 2.12.0 against 2.13.0",
            id="torch",
        ),
    ],
)
def test_other_software_is_unequal_work_unless_the_arms_are_other_programs(
    tmp_path: Path, baseline: dict[str, Any], candidate: dict[str, Any], said: str
) -> None:
    arms = {"environment": baseline}, {"environment": candidate}
    undeclared = campaign(tmp_path / "undeclared", *arms)
    assert (6, (said,)) == (undeclared.exit_code(), undeclared.cells[0].equal_work.differences)
    other_variable = arm_with(tmp_path / "variable", *arms, env={"TORCH_SETTINGS": "other"})
    assert ((said,), ()) == (other_variable.equal_work.differences, other_variable.equal_work.declared)
    declared = arm_with(tmp_path / "declared", *arms, python="/opt/other/bin/python")
    assert ((), (said,)) == (declared.equal_work.differences, declared.equal_work.declared)


def arm_with(folder: Path, *arms: Mapping[str, Any], **keys: Any) -> CellAnalysis:
    """The cell of a campaign whose candidate has these keys of the plan."""
    builder = campaign_builder(folder, *arms)
    builder.plan["arms"]["candidate"] |= keys
    (cell,) = analyse(Campaign.open(builder.write())).cells
    return cell


@pytest.mark.parametrize(
    ("environment", "variable", "is_declared"),
    [
        pytest.param("allow_tf32", "NVIDIA_TF32_OVERRIDE", True, id="TF32"),
        pytest.param("torch_threads", "OMP_NUM_THREADS", True, id="threads"),
        pytest.param("libraries", "PYTHONPATH", True, id="versions"),
        pytest.param("libraries", "OMP_NUM_THREADS", False, id="versions-by-another-variable"),
        pytest.param("allow_tf32", "PYTHONPATH", False, id="TF32-by-another-variable"),
    ],
)
def test_a_variable_declares_what_it_decides_and_nothing_else(
    tmp_path: Path, environment: str, variable: str, is_declared: bool
) -> None:
    values = {"allow_tf32": (False, True), "torch_threads": (1, 8), "libraries": ({"torch": "1"}, {"torch": "2"})}
    arms = [{"environment": {environment: value}} for value in values[environment]]
    cell = arm_with(tmp_path, *arms, env={variable: "x"})
    assert is_declared == cell.equal_work.is_equal


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        pytest.param({"scheduler": {"class": "Euler", "shift": 5.0}}, "scheduler: ", id="shift"),
        pytest.param({"scheduler": {"class": "Heun", "shift": 3.0}}, "scheduler: ", id="scheduler"),
    ],
)
def test_another_scheduler_is_other_work(tmp_path: Path, candidate: dict[str, Any], said: str) -> None:
    baseline = {"environment": {"scheduler": {"class": "Euler", "shift": 3.0}}}
    analysis = campaign(tmp_path, baseline, {"environment": candidate})
    assert 6 == analysis.exit_code()
    assert analysis.cells[0].equal_work.differences[0].startswith(said)


def test_model_content_must_agree(tmp_path: Path) -> None:
    analysis = campaign(tmp_path, {"config": {"model_sha256": "a" * 64}}, {"config": {"model_sha256": "b" * 64}})
    assert 6 == analysis.exit_code()


@pytest.mark.parametrize(
    ("setting", "values", "flags"),
    [
        pytest.param("backend", ("diffusers", "native"), ("--backend diffusers", "--backend native"), id="backend"),
        pytest.param("dtype", ("float32", "bfloat16"), ("", "--dtype=bfloat16"), id="dtype"),
        pytest.param("enable_torch_compile", (False, True), ("", "--enable-torch-compile"), id="compile"),
        pytest.param("performance_mode", ("auto", "manual"), ("", "--performance-mode manual"), id="residency"),
    ],
)
def test_declared_difference_is_the_experiment(
    tmp_path: Path, setting: str, values: tuple[Any, Any], flags: tuple[str, str]
) -> None:
    baseline, candidate = ({"config": {setting: value}} for value in values)
    analysis = campaign(tmp_path, baseline, candidate, baseline_flags=flags[0], candidate_flags=flags[1])
    (cell,) = analysis.cells
    assert Word.FASTER is cell.word
    assert setting in cell.equal_work.declared[0]
    assert "differ by declaration" in render_markdown(analysis)


RESIDENT = {"components": {"transformer": "cuda:0", "vae": "cuda:0"}, "offload": "none"}
ELSEWHERE = {"components": {"transformer": "cuda:0", "vae": "cpu"}, "offload": {"transformer": ["group_offloading"]}}


def test_where_the_models_lay_must_agree_unless_a_flag_decides_it(tmp_path: Path) -> None:
    arms = [{"environment": {"residency": residency}} for residency in (RESIDENT, ELSEWHERE)]
    analysis = campaign(tmp_path / "undeclared", *arms)
    expected = (
        "residency: vae cuda:0 against vae cpu",
        'offload: "none" against {"transformer": ["group_offloading"]}',
    )
    found = analysis.cells[0].equal_work.differences
    assert (6, expected) == (
        analysis.exit_code(),
        tuple(text.replace("offload: none", 'offload: "none"') for text in found),
    )
    declared = campaign(tmp_path / "declared", *arms, candidate_flags="--vae-cpu-offload true").cells[0].equal_work
    assert (True, 2) == (declared.is_equal, len(declared.declared))
    alike = campaign(tmp_path / "alike", arms[0], arms[0]).cells[0].equal_work
    assert ((), ()) == (alike.differences, alike.declared)


def skipping(calls: int, skipped: list[int], tokens: int = 64) -> dict[str, Any]:
    """A run's counters, and the steps in which its quality skipped the second guidance branch."""
    quality = "high" if skipped else "lossless"
    return {
        "config": {"quality": quality, "guidance_skipped_steps": skipped},
        "work": {"transformer_calls": calls, "transformer_tokens": calls * tokens},
    }


def test_the_longer_warm_up_of_a_declared_quality_that_skips_guidance_is_declared(tmp_path: Path) -> None:
    candidate = skipping(15, [7])
    candidate["config"]["warmup_steps"] = 5
    (cell,) = campaign(tmp_path, skipping(16, []), candidate, candidate_flags="--quality high").cells
    assert () == cell.equal_work.differences
    assert any(text.startswith("warmup_steps: 1 against 5") for text in cell.equal_work.declared)


def test_guidance_branches_that_a_declared_quality_skips_are_declared(tmp_path: Path) -> None:
    arms = skipping(16, []), skipping(15, [7])
    (cell,) = campaign(tmp_path, *arms, candidate_flags="--quality high").cells
    assert () == cell.equal_work.differences
    declared = " ".join(cell.equal_work.declared)
    assert "quality: lossless against high" in declared
    assert "transformer calls: [16] against [15] (guidance branches that quality skips)" in declared


@pytest.mark.parametrize(
    ("candidate", "flags"),
    [
        pytest.param(skipping(15, [7]), "", id="quality, undeclared"),
        pytest.param(skipping(14, [7]), "--quality high", id="one call more is missing"),
        pytest.param(skipping(15, [7], tokens=32), "--quality high", id="shorter calls"),
        pytest.param(skipping(15, []), "--quality high", id="fewer calls without a reason"),
    ],
)
def test_any_other_missing_transformer_call_is_unequal_work(
    tmp_path: Path, candidate: dict[str, Any], flags: str
) -> None:
    analysis = campaign(tmp_path, skipping(16, []), candidate, candidate_flags=flags)
    calls = candidate["work"]["transformer_calls"]
    assert f"transformer calls: [16] against [{calls}]" in analysis.cells[0].equal_work.differences
    assert 6 == analysis.exit_code()


def test_both_arms_at_one_quality_did_equal_work(tmp_path: Path) -> None:
    (cell,) = campaign(tmp_path, skipping(15, [7]), skipping(15, [7])).cells
    assert ((), ()) == (cell.equal_work.differences, cell.equal_work.declared)


def test_request_differences_cannot_be_declared(tmp_path: Path) -> None:
    analysis = campaign(tmp_path, {}, {"config": {"num_inference_steps": 4}}, candidate_flags="--num-inference-steps 4")
    assert 6 == analysis.exit_code()


def test_runs_of_one_arm_must_agree_too(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c", candidate_flags="--dtype bfloat16")
    builder.block([Run(), Run(), Run(config={"dtype": "bfloat16"}), Run()])
    analysis = analyse(Campaign.open(builder.block([Run()] * 4, block=2).write()))
    (cell,) = analysis.cells
    assert "among the candidate runs (panda/01-2-B, panda/01-3-B)" in cell.equal_work.differences[0]
    assert 6 == analysis.exit_code()


@pytest.mark.parametrize(
    ("config", "code"),
    [
        pytest.param({"fallback_reason": "no native family"}, "FALLBACK", id="recorded reason"),
        pytest.param({"backend_used": "diffusers"}, "FALLBACK", id="another backend ran"),
        pytest.param({"enable_breakable_cuda_graph": True}, "MISSING_GRAPH", id="graphs asked for, none captured"),
    ],
)
def test_broken_promise_is_invalid(tmp_path: Path, config: dict[str, Any], code: str) -> None:
    analysis = campaign(tmp_path, {"config": config}, {"config": config})
    (cell,) = analysis.cells
    assert Word.INVALID is cell.word
    assert code in {reason.code for reason in cell.verdict.reasons}
    assert 6 == analysis.exit_code()


GRAPHS = {"captured": 1, "replayed": 16, "missed": 0, "rejected": 0, "unsupported": 0, "reason": None}


@pytest.mark.parametrize(
    ("graphs", "said"),
    [
        pytest.param({**GRAPHS, "replayed": 0}, "replayed none (no reason recorded)", id="captured, never replayed"),
        pytest.param(
            {**GRAPHS, "missed": 2, "reason": "missed: x shape"},
            "2 call(s) missed beside 16 replayed (missed: x shape)",
            id="missed",
        ),
        pytest.param({**GRAPHS, "unsupported": 1}, "1 call(s) unsupported beside 16 replayed", id="unsupported"),
    ],
)
def test_an_arm_that_asked_for_graphs_and_missed_is_invalid(
    tmp_path: Path, graphs: Mapping[str, Any], said: str
) -> None:
    candidate = {"config": {"enable_breakable_cuda_graph": True}, "graphs": graphs}
    analysis = campaign(tmp_path, {}, candidate, candidate_flags="--enable-breakable-cuda-graph")
    (cell,) = analysis.cells
    assert Word.INVALID is cell.word
    assert {"MISSING_GRAPH"} == {reason.code for reason in cell.verdict.reasons}
    assert f"candidate run panda/01-2-B asked for CUDA graphs: {said}" in cell.verdict.reasons[0].detail
    assert 6 == analysis.exit_code()


def test_an_arm_that_asked_for_graphs_and_got_them_is_compared(tmp_path: Path) -> None:
    candidate = {"config": {"enable_breakable_cuda_graph": True}, "graphs": GRAPHS}
    baseline = {"config": {"enable_breakable_cuda_graph": False}}
    declared = campaign(tmp_path / "declared", baseline, candidate, candidate_flags="--enable-breakable-cuda-graph")
    assert Word.FASTER is declared.cells[0].word
    assert "enable_breakable_cuda_graph: false against true" in declared.cells[0].equal_work.declared
    undeclared = campaign(tmp_path / "undeclared", baseline, candidate)
    assert {"UNEQUAL_WORK"} == {reason.code for reason in undeclared.cells[0].verdict.reasons}


def test_auto_backend_that_did_not_fall_back_is_fine(tmp_path: Path) -> None:
    config = {"backend": "auto", "backend_used": "native", "fallback_reason": None}
    assert Word.FASTER is campaign(tmp_path, {"config": config}, {"config": config}).cells[0].word


def test_two_commits_in_one_arm_are_warned_about(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c")
    for index, way in enumerate(("ABBA", "BAAB")):
        commits = {"A": "a" * 40, "B": f"{index}" * 40}
        builder.block([Run(worker_s=TIMES[arm], commit=commits[arm]) for arm in way], block=index + 1)
    (cell,) = analyse(Campaign.open(builder.write())).cells
    assert Word.FASTER is cell.word
    assert ["COMMITS_DIFFER"] == [warning.code for warning in cell.warnings]
    assert "the candidate runs have 2 different commits: 000000000000, 111111111111" in cell.warnings[0].detail


def test_foreign_dumps_without_config_say_what_was_not_checked(tmp_path: Path) -> None:
    (cell,) = campaign(tmp_path, {"schema": None}, {"schema": None}).cells
    assert Word.FASTER is cell.word
    assert {"seed", "guidance scale"} <= set(cell.equal_work.unchecked)


@pytest.mark.parametrize(
    ("arm", "expected"),
    [
        pytest.param(Arm(name="a", flags="--dtype=bfloat16 --fastpaths off"), {"dtype", "fastpaths"}, id="flags"),
        pytest.param(Arm(name="a", command="run --backend native {perf_dump}"), {"backend"}, id="command"),
        pytest.param(Arm(name="a"), set(), id="nothing"),
    ],
)
def test_declared_settings(arm: Arm, expected: set[str]) -> None:
    assert expected == set(declared_settings(arm))


@pytest.mark.parametrize(
    ("baseline", "candidate", "expected"),
    [
        pytest.param("--dtype float32", "--dtype bfloat16", {"dtype"}, id="other-values"),
        pytest.param("--dtype float32", "--dtype=float32", set(), id="the-same-value"),
        pytest.param("--dtype bfloat16 --dtype float32", "--dtype float32", set(), id="repeated-the-last-counts"),
        pytest.param("--enable-torch-compile", "--enable-torch-compile=true", set(), id="two-ways-to-say-on"),
        pytest.param("--enable-torch-compile", "--enable-torch-compile false", {"enable_torch_compile"}, id="off"),
        pytest.param("", "--seed 1", {"seed"}, id="named-by-one"),
    ],
)
def test_a_setting_is_declared_only_where_the_arms_give_it_different_values(
    baseline: str, candidate: str, expected: set[str]
) -> None:
    assert expected == differing_settings(Arm(name="a", flags=baseline), Arm(name="b", flags=candidate))


def test_a_setting_that_both_arms_name_alike_declares_nothing(tmp_path: Path) -> None:
    """``auto`` in both arms that ends in another backend is no experiment."""
    arms = [{"config": {"attention_backend": name}} for name in ("fa3", "sdpa")]
    flags = "--attention-backend auto"
    analysis = campaign(tmp_path, *arms, baseline_flags=flags, candidate_flags=f"{flags} --fastpaths off")
    assert (6, ("attention_backend: fa3 against sdpa",)) == (
        analysis.exit_code(),
        analysis.cells[0].equal_work.differences,
    )
