"""What a report must not let anybody believe: each claim has its limit in words."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from fuseproof.harness.analysis.campaign import CampaignAnalysis, analyse
from fuseproof.harness.analysis.caveats import weights_text
from fuseproof.harness.analysis.editions import CURVED_DRIFT_TOLD, WEIGHTS_RECORDED
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.number_format import short_duration
from fuseproof.harness.report import render_html, render_markdown
from tests.harness.campaign_builder import CampaignBuilder, Run

FASTER = ((10.0, 9.5, 9.51, 10.02), (9.52, 10.01, 10.03, 9.5))
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def analysed(builder: CampaignBuilder) -> CampaignAnalysis:
    return analyse(Campaign.open(builder.write()))


def rendered(builder: CampaignBuilder) -> str:
    return render_markdown(analysed(builder))


def section(markdown: str, title: str) -> str:
    return markdown.partition(f"## {title}\n")[2].partition("\n## ")[0]


def code_lines(markdown: str) -> list[str]:
    return section(markdown, "Reproduce").split("```bash\n")[1].split("\n```")[0].splitlines()


def test_reproduce_touches_nothing_that_was_measured(tmp_path: Path) -> None:
    builder = CampaignBuilder(
        tmp_path / "campaign",
        command=("fuseproof", "abba", "embedded", "--output", "/data/camp", "--blocks", "2", "--output=x"),
        environment={"fuseproof": {"version": "0.1.0", "commit": COMMIT, "is_dirty": False}},
    ).blocks(FASTER)
    text = rendered(builder)
    lines = code_lines(text)
    assert f"From a new, empty folder of your own, with fuseproof 0.1.0 of commit {COMMIT} installed." in text
    assert "fuseproof abba embedded --blocks 2" == lines[1]
    assert not [line for line in lines if "slots/" in line]
    for word in ("baseline", "candidate"):
        (command,) = [line for line in lines if f"reproduce/{word}/perf.json" in line]
        words = shlex.split(command)
        assert ["OMP_NUM_THREADS=1", "fuseproof", "generate"] == words[:3]
        files = ["--perf-dump-path", f"reproduce/{word}/perf.json", "--output-path", f"reproduce/{word}/outputs"]
        assert files == words[-4:]
    raw = analysed(builder).cells[0].runs.runs[0].record.outputs[0].raw_sha256
    assert 2 == lines.count(f"# gives raw SHA-256 {raw}")


def test_reproduce_of_a_command_arm(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "campaign")
    arms = builder.plan["arms"]
    arms["baseline"] |= {"flags": "", "command": "./old --dump={perf_dump} --media {output_dir}/"}
    lines = code_lines(rendered(builder.blocks(FASTER)))
    assert "OMP_NUM_THREADS=1 ./old --dump=reproduce/baseline/perf.json --media reproduce/baseline/outputs/" == lines[4]
    assert "mkdir -p reproduce/baseline/outputs" == lines[3]


@pytest.mark.parametrize(
    ("shown", "word"),
    [
        pytest.param('"$HOME/models/m"', "~/models/m", id="home"),
        pytest.param('--model-path="$HOME/my models/a\\$b"', "--model-path=~/my models/a$b", id="flag with home"),
        pytest.param("'a ~/b'", "a ~/b", id="a tilde within a text"),
    ],
)
def test_reproduce_lets_the_shell_find_the_home_folder(tmp_path: Path, shown: str, word: str) -> None:
    builder = CampaignBuilder(tmp_path / "campaign", command=("fuseproof", "abba", "--flags", word)).blocks(FASTER)
    assert f"fuseproof abba --flags {shown}" == code_lines(rendered(builder))[1]


def test_overlong_command_is_a_comment(tmp_path: Path) -> None:
    command = ("fuseproof", "abba", "--flags", "word " * 4000)
    lines = code_lines(rendered(CampaignBuilder(tmp_path / "campaign", command=command).blocks(FASTER)))
    assert lines[1].startswith("# cut: fuseproof abba") and lines[1].endswith("all of it is in campaign.json)")


def test_embedded_model_says_nothing_about_quality(tmp_path: Path) -> None:
    text = rendered(CampaignBuilder(tmp_path / "campaign").blocks(FASTER))
    sentence = "mbedded model: random dummy weights; says nothing about quality."
    for title in ("Summary", "Setup", "Limitations"):
        assert sentence in section(text, title), title


def test_dummy_weights_say_nothing_about_quality(tmp_path: Path) -> None:
    dummy = {"load_format": "dummy", "model_source": "dummy", "weights": {"format": "dummy", "recipe": 1, "seed": 0}}
    builder = CampaignBuilder(tmp_path / "campaign").blocks(FASTER, model="longcat-image", config=dummy)
    analysis = analysed(builder)
    sentence = "ummy weights: seeded random, not a trained model; says nothing about quality"
    for title in ("Summary", "Setup", "Limitations"):
        assert f"{sentence}." in section(render_markdown(analysis), title), title
    assert any(sentence in line for line in analysis.summary_lines())


@pytest.mark.parametrize("flag", ["--load-format dummy", "--load-format=dummy"])
def test_dummy_weights_are_named_before_anything_ran(tmp_path: Path, flag: str) -> None:
    builder = CampaignBuilder(tmp_path / "campaign")
    builder.plan["cells"][0]["flags"] = f"--model-path longcat-image {flag} --prompt x"
    assert "ummy weights: seeded random" in rendered(builder)


@pytest.mark.parametrize(
    ("expected", "model", "quality", "contract"),
    [
        pytest.param(True, "embedded:longcat-image", "high", "exact", id="quality on random weights"),
        pytest.param(True, "embedded:longcat-image", "lossless", "close:psnr>=28", id="closeness of random weights"),
        pytest.param(False, "embedded:longcat-image", "lossless", "exact", id="bits of random weights"),
        pytest.param(False, "org/trained", "high", "close:psnr>=28", id="a trained model"),
    ],
)
def test_a_quality_contract_on_random_weights_is_no_evidence(
    tmp_path: Path, expected: bool, model: str, quality: str, contract: str
) -> None:
    builder = CampaignBuilder(tmp_path / "campaign", cells={"panda": {"contract": contract}})
    analysis = analysed(builder.blocks(FASTER, model=model, config={"quality": quality}))
    sentence = "(not quality evidence: random weights)"
    text = render_markdown(analysis)
    assert expected is (sentence in section(text, "Output check"))
    assert expected is (sentence in section(text, "Summary"))
    assert expected is (analysis.cells[0].outputs.to_json()["no_evidence"] is not None)
    assert f"quality {quality}" in section(text, "Setup")


RECORDED = {
    "dummy": "dummy weights: seeded random, not a trained model; says nothing about quality.",
    "random": "random weights: seeded, not a trained model; says nothing about quality.",
    "trained": "embedded model: trained, and small; how close its pictures stay says little about the released model.",
    "given": None,
}


@pytest.mark.parametrize("kind", list(RECORDED))
def test_the_weights_are_called_what_the_dumps_call_them(tmp_path: Path, kind: str) -> None:
    builder = CampaignBuilder(tmp_path / "campaign", cells={"panda": {"contract": "close:psnr>=28"}})
    config = {"quality": "high", "weights_kind": kind, "model_source": "embedded"}
    text = rendered(builder.blocks(FASTER, model="embedded:longcat-image", config=config)).lower()
    assert [kind] == [name for name, said in RECORDED.items() if said and said in text] or kind == "given"
    assert (kind in ("dummy", "random")) == ("(not quality evidence: random weights)" in text)
    assert "random dummy weights" not in text


def test_trained_weights_of_a_folder_are_not_the_embedded_models(tmp_path: Path) -> None:
    config = {"weights_kind": "trained", "model_source": "local"}
    text = rendered(CampaignBuilder(tmp_path / "campaign").blocks(FASTER, model="mine", config=config))
    assert "weights" not in section(text, "Limitations") and "embedded model" not in text


def test_a_plan_alone_does_not_tell_the_weights_of_an_embedded_model(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "campaign")
    builder.plan["cells"][0]["flags"] = "--model-path embedded:longcat-image --prompt x"
    campaign = Campaign.open(builder.write())
    texts = [weights_text(analyse(campaign, edition=edition)) for edition in (CURVED_DRIFT_TOLD, WEIGHTS_RECORDED)]
    assert ["embedded model: random dummy weights; says nothing about quality", None] == texts


def test_other_models_are_not_called_dummies(tmp_path: Path) -> None:
    text = rendered(CampaignBuilder(tmp_path / "campaign").blocks(FASTER, model="meituan-longcat/LongCat-Image"))
    assert "dummy" not in text


@pytest.mark.parametrize(
    ("sentence", "runs"),
    [
        pytest.param(
            "not known of 4 of 8 runs: they lasted 0.3 s at most, too short to tell",
            {"is_contention_measured": False, "wall_s": 0.3},
            id="too short",
        ),
        pytest.param(
            "not known of 4 of 8 runs: it was not recorded",
            {"is_contention_measured": False},
            id="not recorded",
        ),
        pytest.param(None, {}, id="measured"),
    ],
)
def test_unmeasured_contention_is_not_a_quiet_machine(
    tmp_path: Path, sentence: str | None, runs: dict[str, Any]
) -> None:
    builder = CampaignBuilder(tmp_path / "campaign").block([Run(worker_s=s) for s in FASTER[0]])
    text = rendered(builder.block([Run(worker_s=s, **runs) for s in FASTER[1]], block=2))
    assert (sentence is not None) == ("CONTENTION_UNMEASURED" in text)
    assert sentence is None or all(sentence in section(text, title) for title in ("Summary", "Limitations"))
    assert sentence is None or "Read with it: CONTENTION_UNMEASURED." in section(text, "Claims")
    assert "**FASTER**" in section(text, "Summary")
    assert (4 if sentence else 0) == section(text, "Raw runs").count("contention not measured")


def test_short_runs_on_a_machine_that_nobody_checked_claim_nothing(tmp_path: Path) -> None:
    """One slot that was measured and found quiet says nothing of the seven that were not."""
    builder = CampaignBuilder(tmp_path / "campaign", command=("fuseproof", "abba", "--allow-busy"))
    for index, row in enumerate(FASTER):
        runs = [Run(worker_s=s, wall_s=0.2, is_contention_measured=index == slot == 0) for slot, s in enumerate(row)]
        builder.block(runs, block=index + 1)
    analysis = analysed(builder)
    assert ("INCONCLUSIVE", ["CONTENTION_UNMEASURED"]) == (
        analysis.cells[0].word.value,
        [reason.code for reason in analysis.cells[0].verdict.reasons],
    )
    assert "not claimed, because INCONCLUSIVE (CONTENTION_UNMEASURED)" in render_markdown(analysis).replace("**", "")


def test_contention_beside_another_headline_is_in_summary_next_step_and_claims(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "campaign", blocks=1).blocks(FASTER[:1], is_busy=True)
    text = rendered(builder)
    summary = section(text, "Summary")
    assert "TOO_FEW_BLOCKS" in summary.splitlines()[1]
    assert "On a quiet machine: run two blocks, the second mirrored: --blocks 2." in summary
    assert "CONTENTION: other processes used the machine during 4 of 4 runs" in summary
    assert "Read with it: CONTENTION" in section(text, "Claims")


def test_a_summary_without_outputs_counts_no_contracts(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "campaign", cells=("one", "two"))
    for cell in ("one", "two"):
        builder.blocks(FASTER, cell=cell, pictures=())
    assert "Outputs: nothing to compare in 2 of 2 cells." in section(rendered(builder), "Summary")


@pytest.mark.parametrize("seconds", [(10.0, 8.0, 9.9, 11.5), (10.0, 8.0, 13.0, 10.0)], ids=["wide", "disagreeing"])
def test_no_point_estimate_stands_where_none_may_be_quoted(tmp_path: Path, seconds: tuple[float, ...]) -> None:
    analysis = analysed(CampaignBuilder(tmp_path / "campaign", blocks=1).blocks([seconds]))
    assert "(no point estimate: " in analysis.summary_lines()[0] and "latency" not in analysis.summary_lines()[0]
    assert "| not quoted, " in section(render_markdown(analysis), "Result")


@pytest.mark.parametrize(
    ("sentence", "commands"),
    [
        pytest.param("The times of the candidate are its own claim", {"candidate"}, id="one"),
        pytest.param("The times of both arms are the arms' own claim", {"baseline", "candidate"}, id="both"),
        pytest.param(None, set(), id="none"),
    ],
)
def test_times_of_a_command_are_its_own_claim(tmp_path: Path, sentence: str | None, commands: set[str]) -> None:
    builder = CampaignBuilder(tmp_path / "campaign")
    for arm in commands:
        builder.plan["arms"][arm] |= {"flags": "", "command": f"./{arm} {{perf_dump}}"}
    text = section(rendered(builder.blocks(FASTER)), "Limitations")
    assert (sentence is not None) == ("own claim" in text)
    assert sentence is None or sentence in text


def test_save_and_load_have_numbers_and_no_word(tmp_path: Path) -> None:
    analysis = analysed(CampaignBuilder(tmp_path / "campaign").blocks(FASTER, save_s=0.5, load_s=2.0, denoise_s=5.0))
    rows = [line.split("|") for line in section(render_markdown(analysis), "Result").splitlines() if "→" in line]
    verdicts = {row[2].strip(): row[-2].strip() for row in rows}
    assert ("not judged", "not judged", "SAME") == (verdicts["Save"], verdicts["Load"], verdicts["Denoise"])
    assert "0.5000 → 0.5000 (0.00%)" in render_markdown(analysis)
    save = "Save (descriptive): not judged, geometric means 0.5000 → 0.5000 s"
    assert any(save in line for line in analysis.summary_lines())
    found = {metric["name"]: metric for metric in analysis.to_json()["cells"][0]["metrics"]}
    assert (False, None) == (found["save"]["is_judged"], found["save"]["verdict"]["word"])
    assert 0.5 == found["save"]["verdict"]["comparison"]["baseline"]["mean_s"]


@pytest.mark.parametrize(
    ("is_shown", "seconds"),
    [
        pytest.param(True, (10.0, 9.0, 9.01, 10.02), id="narrow"),
        pytest.param(False, (10.0, 8.0, 9.9, 11.5), id="wide"),
    ],
)
def test_interval_of_one_block_is_printed_only_when_it_means_something(
    tmp_path: Path, is_shown: bool, seconds: tuple[float, ...]
) -> None:
    analysis = analysed(CampaignBuilder(tmp_path / "campaign", blocks=1).blocks([seconds]))
    text = render_markdown(analysis)
    for part in (section(text, "Summary"), section(text, "Result"), "".join(analysis.summary_lines())):
        assert is_shown == bool(re.search(r"\[−?[\d.]+, [\d.]+\]", part))
        assert is_shown != ("wider than ±100 %" in part)
    assert is_shown or "the interval [" not in text


def test_limitations_give_no_second_next_step(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "campaign")
    wild = ((10.0, 9.0, 12.0, 10.5), (9.0, 10.0, 13.0, 9.9))
    analysis = analysed(builder.blocks(wild, is_busy=True))
    verdict = analysis.cells[0].verdict
    assert len({reason.next_step for reason in verdict.reasons}) > 1
    limitations = section(render_markdown(analysis), "Limitations")
    assert verdict.reasons[1].code in limitations
    assert not [reason for reason in verdict.reasons if reason.next_step in limitations]


def test_names_of_disturbers_leave_out_trifles_and_say_what_is_missing(tmp_path: Path) -> None:
    disturbers = (("cc1plus", 0.5), ("cron", 0.004))
    builder = CampaignBuilder(tmp_path / "campaign").blocks(FASTER, is_busy=True, disturbers=disturbers)
    text = rendered(builder)
    assert "at worst 80 % of all cores (cc1plus, ended or short-lived processes 30 %)" in text
    assert "cron" not in text


def test_fast_paths_say_over_how_many_runs_and_why_calls_are_eager(tmp_path: Path) -> None:
    sites = {"modulation": {"state": "fused", "calls_fused": 180, "calls_eager": 20}}
    text = rendered(CampaignBuilder(tmp_path / "campaign").blocks(FASTER, sites=sites))
    assert "the candidate made 720 fused calls in 4 runs at 1 site, the baseline 720 in 4 runs." in text
    assert "each value is computed once by the eager chain, then reused" in text


def test_environment_is_readable(tmp_path: Path) -> None:
    environment = {"fuseproof": {"commit": COMMIT, "is_dirty": True}, "timer_tick_s": 4e-08}
    text = rendered(CampaignBuilder(tmp_path / "campaign", environment=environment).blocks(FASTER))
    assert "| timer tick | 40 ns |" in text
    assert "| fuseproof / is dirty | yes |" in text
    assert "OMP_NUM_THREADS 1" in section(text, "Setup")
    assert "and its uncommitted changes installed" in text


@pytest.mark.parametrize(
    ("text", "value_s"),
    [("40 ns", 4e-08), ("78 ns", 7.799999934832158e-08), ("2.5 µs", 2.5e-6), ("10 ms", 0.01), ("1 s", 0.9999)],
)
def test_short_durations(text: str, value_s: float) -> None:
    assert text == short_duration(value_s)


def test_statistics_repeat_no_column_and_explain_their_words(tmp_path: Path) -> None:
    text = rendered(CampaignBuilder(tmp_path / "campaign").blocks(FASTER))
    assert "| Interval |" in text and "Interval used" not in text
    assert "Arms separated: one arm won every block" in text


def test_dot_plot_has_an_axis_labels_and_block_separators(tmp_path: Path) -> None:
    html = render_html(analysed(CampaignBuilder(tmp_path / "campaign").blocks(FASTER)))
    assert 1 == html.count('class="block"') and 2 == html.count('class="axis"')
    assert ">max</text>" in html and ">10.0300 s</text>" in html and ">9.5000 s</text>" in html
    assert "prefers-color-scheme: dark" in html


ARM = "/opt/venv/bin/python -S -E /srv/x/fake_arm.py --perf-dump {perf_dump}"


def test_command_of_an_arm_keeps_its_interpreter_and_options(tmp_path: Path) -> None:
    command = ("/opt/venv/bin/fuseproof", "abba", "--candidate-command", ARM, f"--baseline-command={ARM}")
    lines = code_lines(rendered(CampaignBuilder(tmp_path / "campaign", command=command).blocks(FASTER)))
    shown = "/path/to/python -S -E /path/to/fake_arm.py --perf-dump {perf_dump}"
    expected = ["fuseproof", "abba", "--candidate-command", shown, f"--baseline-command={shown}"]
    assert expected == shlex.split(lines[1])


def test_one_path_with_spaces_stays_one_path(tmp_path: Path) -> None:
    command = ("fuseproof", "abba", "--model-path", "/data/secret project/my models")
    lines = code_lines(rendered(CampaignBuilder(tmp_path / "campaign", command=command).blocks(FASTER)))
    assert ["--model-path", "/path/to/my models"] == shlex.split(lines[1])[2:]


def test_unbelievable_memory_is_shown_and_not_claimed(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "campaign", environment={"memory": {"total_mib": 16384}})
    for block, way in enumerate(("ABBA", "BAAB"), start=1):
        builder.block([Run(peak_rss_mib=1000.0 if arm == "A" else 1e12) for arm in way], block=block)
    analysis = analysed(builder)
    assert "unknown" == analysis.cells[0].memory.agreement
    text = section(render_markdown(analysis), "Memory")
    assert "Peak RSS (host): not believable" in text
    assert "on a machine with 16.00 GiB), nothing is claimed of it" in text


def test_assumption_promises_no_more_than_simulations_show(tmp_path: Path) -> None:
    text = rendered(CampaignBuilder(tmp_path / "campaign").blocks(FASTER))
    assert "where it does, false verdicts are more frequent than 5 %." in section(text, "Limitations")
    assert "over all A×B pairs of a block" in text


def test_eager_sites_give_their_own_reason(tmp_path: Path) -> None:
    sites = {
        "modulation": {"state": "eager", "calls_fused": 0, "calls_eager": 20, "reason": "diffusers' own loop"},
        "rotary": {"state": "fused", "calls_fused": 20, "calls_eager": 0, "reason": None},
    }
    text = rendered(CampaignBuilder(tmp_path / "campaign").blocks(FASTER, sites=sites))
    assert "Eager at modulation: diffusers' own loop." in text
    assert "computed once by the eager chain" not in text
