"""``fuseproof profile`` and ``generate --profile`` as a user types them."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from fuseproof.cli import profile_folders, profile_sides
from fuseproof.cli.main import main
from fuseproof.cli.profile_progress import ProfileProgress
from fuseproof.harness.profiles.reading import read_profile
from fuseproof.harness.profiles.writing import write_profile
from fuseproof.pipelines.embedded import embedded_weights
from tests.harness.campaign_builder import CampaignBuilder
from tests.harness.profiles import samples

TINY = ("--width=32", "--height=32", "--num-inference-steps=3", "--guidance-scale=1")
FILES = ["profile.html", "profile.json", "profile.md", "trace.json.gz"]


class Result(NamedTuple):
    code: int
    out: str
    err: str


Program = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    write_profile(tmp_path / "eager", samples.profile())
    write_profile(tmp_path / "fused", samples.profile(is_fused=True))

    def call(*words: str) -> Result:
        code = main(words)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


def test_a_request_on_the_embedded_model_is_profiled(run: Program, tmp_path: Path) -> None:
    result = run("profile", *TINY, "--steps", "2", "--fastpaths=off", "-o", "new")
    assert 0 == result.code, result.err
    assert FILES == sorted(path.name for path in (tmp_path / "new").iterdir())
    profile = read_profile(tmp_path / "new")
    assert (2, 3, "off", embedded_weights("longcat-image"), "float32") == (
        profile.main_stage.steps,
        profile.main_stage.steps_of_request,
        profile.request.fastpaths,
        profile.request.weights,
        profile.request.dtype,
    )
    assert ("--prompt=a red circle above a blue square", "--width=32") == profile.request.flags[:2]
    assert profile.attribution.to_site_or_module >= 0.98
    assert "DenoisingStage, 2 of 3 steps: " in result.out
    for said in ("loading torch and embedded:longcat-image", "warming up", "step 3 of 3", "reading the profiled steps"):
        assert said in result.err
    assert "transformer_blocks.*" in result.out
    assert str(Path.home()) not in (tmp_path / "new" / "profile.json").read_text()


def test_generate_profile_saves_the_output_and_the_profile_beside_it(run: Program, tmp_path: Path) -> None:
    words = ("generate", "--prompt=panda", *TINY, "--output-file-path=out/a.png", "--perf-dump-path=p.json")
    result = run(*words, "--profile", "--num-profiled-timesteps=1", "--profile-all-stages")
    assert 0 == result.code, result.err
    assert (tmp_path / "out" / "a.png").exists()
    profile = read_profile(tmp_path / "out" / "a.profile")
    assert {"DenoisingStage": 1, "DecodingStage": 1} == {
        stage.name: stage.steps for stage in profile.stages if stage.name in ("DenoisingStage", "DecodingStage")
    }
    assert json.loads((tmp_path / "p.json").read_text())["profiled"] is True
    assert 6 == run("compare-perf", "p.json", "p.json").code
    again = run(*words, "--profile")
    assert (2, True) == (again.code, "holds profile.json already" in again.err)


def test_an_existing_profile_is_shown_and_rendered_again(run: Program, tmp_path: Path) -> None:
    shown = run("profile", "eager")
    assert (0, "") == (shown.code, shown.err)
    assert shown.out == run("profile", "eager/profile.json").out
    before = (tmp_path / "eager" / "profile.html").read_bytes()
    (tmp_path / "eager" / "profile.html").unlink()
    assert 0 == run("profile", "eager", "-o", "eager").code
    assert before == (tmp_path / "eager" / "profile.html").read_bytes()
    assert json.loads((tmp_path / "eager" / "profile.json").read_text()) == json.loads(
        run("profile", "eager", "--json", "-").out
    )


def test_two_profiles_are_compared(run: Program, tmp_path: Path) -> None:
    result = run("profile", "--before", "eager", "--after", "fused/profile.json", "-o", "both", "--json", "c.json")
    assert (0, True) == (result.code, "21 → 13" in result.out)
    assert ["after", "before", "before-after.html", "before-after.json", "before-after.md"] == sorted(
        path.name for path in (tmp_path / "both").iterdir()
    )
    assert json.loads((tmp_path / "c.json").read_text()) == json.loads(
        (tmp_path / "both/before-after.json").read_text()
    )


def test_unequal_profiles_are_refused(run: Program, tmp_path: Path) -> None:
    write_profile(tmp_path / "small", samples.changed(samples.profile(), "request.height", 512))
    result = run("profile", "--before", "eager", "--after", "small")
    assert (1, True) == (result.code, "height is 1024 before and 512 after" in result.err)


def test_a_campaign_tells_the_measured_gain(run: Program, tmp_path: Path) -> None:
    for name, fastpaths in (("a", "off"), ("b", "auto")):
        values = samples.profile(is_fused=name == "b")
        request = {"width": 16, "height": 16, "steps": 8, "dtype": "float32", "fastpaths": fastpaths}
        values["request"] = values["request"] | request
        values["stages"][0]["steps_of_request"] = 8
        write_profile(tmp_path / name, values)
    CampaignBuilder(tmp_path / "c").blocks(((10, 9, 9.1, 10.1), (9, 10, 10.1, 9.1))).write()
    result = run("profile", "--before", "a", "--after", "b", "--timings", "c")
    assert 0 == result.code, result.err
    assert "4 timed runs before and 4 after, cell panda of c; verdict FASTER): 1000.0 ms less worker E2E" in result.out
    other = run("profile", "--before", "eager", "--after", "fused", "--timings", "c")
    assert (1, True) == (other.code, "no cell fits (panda: width is 16" in other.err)


def test_two_perf_dumps_tell_it_too(run: Program, tmp_path: Path) -> None:
    for name, worker_ms in (("a.json", 7000), ("b.json", 6990)):
        (tmp_path / name).write_text(json.dumps({"total_duration_ms": worker_ms}))
    sides = ("profile", "--before", "eager", "--after", "fused", "--timings", "a.json")
    result = run(*sides, "b.json")
    assert 0 == result.code, result.err
    assert result.out == run(*sides, "--timings", "b.json").out
    assert "1 timed run before and 1 after, a.json and b.json; single runs, a description and no verdict" in result.out


def test_sides_given_as_flags_run_one_after_the_other(
    run: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    def fake(side: str, words: tuple[str, ...], folder: Path, options: object, say: object) -> None:
        ran.append((side, words))
        write_profile(folder, samples.profile(is_fused=side == "after"))

    monkeypatch.setattr(profile_sides, "_run", fake)
    sides = ("--before", "--fastpaths=off", "--after", "--fastpaths auto", "--flags", "--prompt 'a panda' --seed 7")
    result = run("profile", *sides)
    assert 0 == result.code, result.err
    shared = ("--prompt", "a panda", "--seed", "7")
    assert [("before", (*shared, "--fastpaths=off")), ("after", (*shared, "--fastpaths", "auto"))] == ran
    assert (tmp_path / "outputs" / "profile" / "before-after.md").exists()
    assert 0 == run("profile", "--before", "eager", "--after", "--fastpaths=auto").code
    assert (tmp_path / "outputs" / "profile-2" / "after" / "profile.json").exists()


def test_a_side_that_fails_is_told_with_its_last_words(run: Program) -> None:
    result = run("profile", "--before", "eager", "--after", "--model-path=./nowhere", "-o", "both")
    assert 1 == result.code
    assert "profiling after ended with status 2: " in result.err
    assert "nowhere" in result.err


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("--after is missing", ["--before", "eager"]),
        ("--timings only means something with --before and --after", ["--timings", "c"]),
        ("--flags only means something", ["--flags=--seed=1"]),
        ("--flags has no effect on profiles that exist", ["--before=eager", "--after=fused", "--flags=--seed=1"]),
        ("no profile is there, and flags of `generate` begin with a dash", ["--before=eager", "--after=nothing"]),
        (
            "generate would refuse these flags: 2 prompts were given",
            ["--before=eager", "--after=--prompt a --prompt b"],
        ),
        ("'--seed=3' stands outside", ["--before=eager", "--after=fused", "--seed=3"]),
        ("'fused' stands behind 'eager'", ["eager", "fused"]),
        ("no flag of `generate` changes it", ["eager", "--seed", "3"]),
        ("--steps has no effect on profiles", ["eager", "--steps=2"]),
        ("--profile-all-stages has no effect", ["--before=eager", "--after=fused", "--profile-all-stages"]),
        ("'0' is not a whole number", ["--steps=0"]),
        ("--perf-dump-path has no effect", ["--perf-dump-path=p.json"]),
        ("No such option", ["--nonsense"]),
        ("--gate observe computes every call twice", ["--gate=observe"]),
        ("holds profile.json already", ["-o", "eager", "--prompt=a"]),
        ("holds another profile", ["eager", "-o", "fused"]),
        ("cannot name a folder: File name too long", ["-o", "x" * 300, "--prompt=a"]),
        ("cannot name a folder: File name too long", ["eager", "-o", "x" * 300]),
        ("no profile is there", [f"--before={'x' * 300}", "--after=fused"]),
        ("no profile is there", ["--before=~nobody-at-all/a", "--after=fused"]),
        ("No such option", ["--before=eager", f"--after=--nonsense={'x' * 300}"]),
        ("is being written to by another run", ["-o", "claimed", "--prompt=a"]),
        ("--output-path is ''", ["-o", ""]),
        ("--timings names 1 file(s)", ["--before=eager", "--after=fused", "--timings=p.json"]),
        ("quotation", ["--before=eager", "--after=--prompt 'a"]),
    ],
)
def test_every_mistake_is_a_sentence(run: Program, said: str, words: list[str]) -> None:
    Path("claimed", profile_folders.WORKING_FOLDER).mkdir(parents=True)
    result = run("profile", *words)
    assert 2 == result.code, result.err
    assert said in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("code", "said", "json"),
    [
        (1, "cannot be written", "/proc/x"),
        (2, "it must be a file", "eager"),
        (2, "cannot name a file", "x" * 300),
        (2, "is the same file as --after", "fused/profile.json"),
    ],
)
def test_json_that_cannot_be_written_is_found_before_anything_runs(
    run: Program, monkeypatch: pytest.MonkeyPatch, code: int, said: str, json: str
) -> None:
    monkeypatch.setattr(profile_sides, "_run", None)
    result = run("profile", "--before=--seed=1", "--after=fused", "--json", json)
    assert (code, "") == (result.code, result.out)
    assert said in result.err
    if "same file" not in said:
        assert said in run("profile", "--prompt=a", "--json", json).err
        assert said in run("profile", "eager", "--json", json).err


def test_what_is_shown_is_printed_before_it_is_written(run: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    shown = run("profile", "eager").out
    monkeypatch.setattr("fuseproof.harness.atomic_files.replace_whole", full_disk)
    result = run("profile", "eager", "--json", "p.json")
    assert (1, shown) == (result.code, result.out)
    assert "No space left on device" in result.err


def test_timed_commands_refuse_profiled_arms(run: Program) -> None:
    arms = ("--baseline=--fastpaths=off", "--candidate=--profile")
    program = "python -m fuseproof generate --prompt=p --perf-dump-path {perf_dump} --output-path {output_dir}"
    for last, code in (
        ("--profile", 2),
        ("--profile=true", 2),
        ("--profile --profile false", 0),
        ("--profile=false", 0),
    ):
        commands = (f"--baseline-command={program}", f"--candidate-command={program} {last}")
        result = run("abba", "--dry-run", *commands)
        assert (code, code == 2) == (result.code, "command, candidate: --profile slows" in result.err), result.err
    for command in (("abba", "--dry-run"), ("abba", "--quick", "--dry-run"), ("diverge",)):
        result = run(*command, *arms)
        assert (2, True) == (result.code, "--profile" in result.err), (command, result.err)


def test_a_comparison_is_shown_and_rendered_again(run: Program, tmp_path: Path) -> None:
    for name, worker_ms in (("a.json", 7000), ("b.json", 6990)):
        (tmp_path / name).write_text(json.dumps({"total_duration_ms": worker_ms}))
    first = run("profile", "--before=eager", "--after=fused", "--timings", "a.json", "b.json", "-o", "both")
    page = (tmp_path / "both" / "before-after.html").read_bytes()
    for place in ("both", "both/before-after.json"):
        assert first.out == run("profile", place).out
    (tmp_path / "both" / "before-after.html").unlink()
    assert 0 == run("profile", "both", "-o", "both").code
    assert page == (tmp_path / "both" / "before-after.html").read_bytes()
    assert 0 == run("profile", "both", "-o", "copy").code
    assert first.out == run("profile", "copy").out
    (tmp_path / "both" / "after" / "profile.json").unlink()
    gone = run("profile", "both")
    assert (1, True) == (gone.code, "after/profile.json does not exist, and both/before-after.json" in gone.err)


def test_a_comparison_replaces_no_other_profile(run: Program, tmp_path: Path) -> None:
    write_profile(tmp_path / "both" / "before", samples.profile(is_fused=True))
    result = run("profile", "--before", "eager", "--after", "fused", "-o", "both")
    assert (2, True) == (result.code, "holds another before/profile.json" in result.err)


def test_a_word_that_is_no_flag_points_to_both_helps(run: Program) -> None:
    result = run("profile", "--bogus")
    assert "`fuseproof profile --help` lists the flags of a profile, `fuseproof generate --help`" in result.err


def test_progress_tells_of_each_part_once() -> None:
    said: list[str] = []
    now = [0.0]
    progress = ProfileProgress(said.append, clock=lambda: now[0])
    progress.phase("loading")
    progress.profiling(2)
    progress.stage_started("DenoisingStage", 4)
    for step in range(4):
        now[0] += 3.0 * (step == 1)
        progress.step_finished(step)
    progress.stage_finished("DenoisingStage", 1.0)
    progress.stage_started("DecodingStage", None)
    progress.stage_finished("DecodingStage", 1.0)
    expected = ["loading", "profile: DenoisingStage", "profile: step 2 of 4", "reading the profiled steps"]
    expected += ["profile: step 4 of 4", "joining what was seen to sites, modules and lines"]
    assert expected == said
