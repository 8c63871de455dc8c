"""``fuseproof profile`` and ``generate --profile`` as a user types them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from fuseproof.cli import profile_sides
from fuseproof.cli.main import main
from fuseproof.harness.profiles.reading import read_profile
from fuseproof.harness.profiles.writing import write_profile
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
    assert (2, 3, "off", "embedded", "float32") == (
        profile.main_stage.steps,
        profile.main_stage.steps_of_request,
        profile.request.fastpaths,
        profile.request.weights,
        profile.request.dtype,
    )
    assert ("--prompt=a red panda", "--width=32") == profile.request.flags[:2]
    assert profile.attribution.to_site_or_module >= 0.98
    assert "DenoisingStage, 2 of 3 steps: " in result.out
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
    assert ["before-after.html", "before-after.json", "before-after.md"] == sorted(
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

    def fake(side: str, words: tuple[str, ...], folder: Path, options: object) -> None:
        ran.append((side, words))
        write_profile(folder, samples.profile(is_fused=side == "after"))

    monkeypatch.setattr(profile_sides, "_run", fake)
    sides = ("--before", "--fastpaths=off", "--after", "--fastpaths auto", "--flags", "--prompt 'a panda' --seed 7")
    result = run("profile", *sides)
    assert 0 == result.code, result.err
    shared = ("--prompt", "a panda", "--seed", "7")
    assert [("before", (*shared, "--fastpaths=off")), ("after", (*shared, "--fastpaths", "auto"))] == ran
    assert (tmp_path / "profile" / "before-after.md").exists()
    assert 0 == run("profile", "--before", "eager", "--after", "--fastpaths=auto").code
    assert (tmp_path / "profile-2" / "after" / "profile.json").exists()


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
        ("--output-path is ''", ["-o", ""]),
        ("--timings names 1 file(s)", ["--before=eager", "--after=fused", "--timings=p.json"]),
        ("quotation", ["--before=eager", "--after=--prompt 'a"]),
    ],
)
def test_every_mistake_is_a_sentence(run: Program, said: str, words: list[str]) -> None:
    result = run("profile", *words)
    assert 2 == result.code, result.err
    assert said in result.err
    assert "Traceback" not in result.err


def test_timed_commands_refuse_profiled_arms(run: Program) -> None:
    arms = ("--baseline=--fastpaths=off", "--candidate=--profile")
    for command in (("abba", "--dry-run"), ("abba", "--quick", "--dry-run"), ("diverge",)):
        result = run(*command, *arms)
        assert (2, True) == (result.code, "--profile" in result.err), (command, result.err)
