"""What ``generate`` decides about fast paths: requirements, certificates, checks, kernels of one's own."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from fuseproof.cli.generate_options import GenerateOptions
from fuseproof.errors import UsageError
from fuseproof.pipelines.model_cache import CACHE_VARIABLE
from tests.cli.desk import SMALL, Desk

PROMPT = ("--prompt", "a red panda", *SMALL, "--no-save-output")
OWN = "from fuseproof.fastpaths import UserSite\nSITES = [UserSite('mine', fused=print, modules='norm_out')]\n"


def site(state: str, reason: str | None = None) -> dict[str, Any]:
    return {"state": state, "reason": reason, "calls_fused": 0, "calls_eager": 2}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No certificate of this machine is found."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def report(desk: Desk, **sites: dict[str, Any]) -> None:
    whole = {"requested": "auto", "quality": "lossless", "gate": "enforce", "reason": None, "sites": sites}
    desk.session.fastpaths = whole  # type: ignore[attr-defined]
    desk.session.fastpaths_report = lambda: whole  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("code", "words", "sites"),
    [
        pytest.param(0, None, {"a": site("fused"), "b": site("certified")}, id="all ran"),
        pytest.param(0, None, {"a": site("fused"), "b": site("off", "not requested")}, id="one was not asked for"),
        pytest.param(0, None, {"a": site("replaced", "mine stands in")}, id="another stands in"),
        pytest.param(0, None, {"a": site("not needed", "one step"), "b": site("fused")}, id="nothing to do"),
        pytest.param(6, "a eager (first call)", {"a": site("eager", "first call")}, id="eager"),
        pytest.param(6, "a observed (3 compared)", {"a": site("observed", "3 compared")}, id="observed"),
        pytest.param(6, "a unchecked (gate off)", {"a": site("unchecked", "gate off")}, id="unchecked"),
        pytest.param(6, "a, c eager (x)", {"a": site("eager", "x"), "c": site("eager", "x")}, id="one reason for two"),
        pytest.param(6, "a declined (on cpu)", {"a": site("declined", "on cpu"), "b": site("fused")}, id="declined"),
        pytest.param(6, "a rejected (1 key(s))", {"a": site("rejected", "1 key(s)")}, id="rejected"),
        pytest.param(6, "b unreached", {"a": site("fused"), "b": site("unreached", "no call")}, id="unreached"),
        pytest.param(6, "no fast path knows", {}, id="no site at all"),
    ],
)
def test_require_fastpaths(desk: Desk, code: int, words: str | None, sites: dict[str, Any]) -> None:
    report(desk, **sites)
    if not sites:
        desk.session.fastpaths_report = lambda: {  # type: ignore[method-assign]
            "requested": "auto",
            "reason": "no fast path knows Thing",
            "sites": {},
        }
    assert desk.run(*PROMPT, "--require-fastpaths") == code
    assert words is None or words in desk.err
    assert ("next: `fuseproof fastpaths list`" in desk.err) is (code == 6)


def test_a_named_site_must_run_even_where_it_has_nothing_to_do(desk: Desk) -> None:
    report(desk, modulation=site("not needed", "one step"))
    desk.session.fastpaths["requested"] = "modulation"  # type: ignore[attr-defined]
    assert desk.run(*PROMPT, "--fastpaths=modulation", "--require-fastpaths") == 6
    assert "--require-fastpaths: modulation not needed (one step)." in desk.err


@pytest.mark.parametrize("gate", ["observe", "off"])
def test_a_gate_that_does_not_enforce_meets_no_requirement_and_runs_nothing(desk: Desk, gate: str) -> None:
    report(desk, a=site("unreached"))
    desk.session.fastpaths["gate"] = gate  # type: ignore[attr-defined]
    assert desk.run(*PROMPT, f"--gate={gate}", "--require-fastpaths") == 6
    assert f"nothing that runs under --gate {gate} is held to eager's bits" in desk.err
    assert [] == desk.session.requests


@pytest.mark.parametrize(
    "flags",
    [
        ("--require-fastpaths",),
        ("--verify-every-step",),
        ("--fastpaths-from=mine.py",),
        ("--gate=observe",),
    ],
    ids=lambda flags: flags[0],
)
def test_a_fallback_that_takes_the_fast_paths_away_is_refused_where_a_flag_needs_them(
    desk: Desk, flags: tuple[str, ...]
) -> None:
    Path("mine.py").write_text(OWN, encoding="utf-8")
    desk.session.backend, desk.session.fallback_reason = "diffusers", "no native loop"
    assert desk.run(*PROMPT, "--backend=auto", *flags) == 6
    assert "the run fell back to diffusers, whose fast paths are off unless named" in desk.err
    assert "next: Add --fastpaths auto" in desk.err
    assert [] == desk.session.requests
    assert desk.session.is_closed


@pytest.mark.parametrize(
    ("expected", "flags"),
    [(None, []), *((name, [f"--fastpaths={name}"]) for name in ("auto", "off", "modulation"))],
    ids=["unsaid", "auto", "off", "named"],
)
def test_what_was_said_of_fast_paths_reaches_the_session_as_it_was_said(
    desk: Desk, expected: str | None, flags: list[str]
) -> None:
    assert desk.run(*PROMPT, "--backend=diffusers", *flags) == 0
    assert expected == desk.session.opened_with.fastpaths


def test_a_fallback_shows_in_the_dump_as_fast_paths_off(desk: Desk) -> None:
    desk.session.backend, desk.session.fallback_reason = "diffusers", "no native loop"
    assert desk.run(*PROMPT, "--backend=auto", "--perf-dump-path", "perf.json") == 0
    assert "off" == json.loads(Path("perf.json").read_text(encoding="utf-8"))["config"]["fastpaths"]


def test_a_check_that_found_other_bits_fails_and_leaves_a_dump_that_says_so(desk: Desk) -> None:
    desk.session.found["rotary"] = "not bit-exact: 3 % of the values differ"
    assert desk.run(*PROMPT, "--verify-every-step", "--perf-dump-path", "perf.json") == 1
    sentence = "--verify-every-step: site rotary is not bit-exact: 3 % of the values differ."
    assert f"fuseproof: error: {sentence}" in desk.err
    dump = json.loads(Path("perf.json").read_text(encoding="utf-8"))
    assert desk.session.found == dump["fastpaths"]["mismatches"]
    assert f"this check failed: {sentence}" == dump["warnings"][-1]


def test_what_declines_at_once_is_said_before_anything_runs(desk: Desk) -> None:
    report(desk, a=site("declined", "on cpu"))
    assert desk.run(*PROMPT, "--require-fastpaths", "--perf-dump-path", "perf.json") == 6
    assert [] == desk.session.requests
    assert not Path("perf.json").exists()


def test_what_was_rejected_in_the_run_leaves_a_dump_that_says_so(desk: Desk) -> None:
    report(desk, a=site("rejected", "1 key(s): not bit-exact"))
    assert desk.run(*PROMPT, "--require-fastpaths", "--perf-dump-path", "perf.json") == 6
    dump = json.loads(Path("perf.json").read_text(encoding="utf-8"))
    assert any("this measurement is invalid: --require-fastpaths: a rejected" in text for text in dump["warnings"])


def test_without_it_the_run_goes_on(desk: Desk) -> None:
    report(desk, a=site("declined", "on cpu"))
    assert desk.run(*PROMPT) == 0


def options(**values: Any) -> GenerateOptions:
    return GenerateOptions(prompt=("a red panda",), **values)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (
            "--verify-every-step and --enable-breakable-cuda-graph",
            {"verify_every_step": True, "enable_breakable_cuda_graph": True},
        ),
        ("--verify-every-step and --enable-torch-compile", {"verify_every_step": True, "enable_torch_compile": True}),
        ("--verify-every-step and --gate off", {"verify_every_step": True, "gate": "off"}),
        ("--verify-every-step and --certificate FILE", {"verify_every_step": True, "certificate": "c.json"}),
        ("--certificate FILE and --gate observe", {"certificate": "c.json", "gate": "observe"}),
        ("--require-fastpaths and --fastpaths off", {"require_fastpaths": True, "fastpaths": "off"}),
        ("--require-fastpaths and --backend diffusers", {"require_fastpaths": True, "backend": "diffusers"}),
        ("--certificate FILE and --fastpaths off", {"certificate": "c.json", "fastpaths": "off"}),
        ("--certificate FILE and --backend diffusers", {"certificate": "c.json", "backend": "diffusers"}),
        ("--verify-every-step and --fastpaths off", {"verify_every_step": True, "fastpaths": "off"}),
        ("--verify-every-step and --backend diffusers", {"verify_every_step": True, "backend": "diffusers"}),
        ("--fastpaths-from and --backend diffusers", {"fastpaths_from": "k.py", "backend": "diffusers"}),
        ("--gate observe and --backend diffusers", {"gate": "observe", "backend": "diffusers"}),
        ("--gate off and --fastpaths off", {"gate": "off", "fastpaths": "off"}),
        ("--fastpaths-from and --fastpaths off", {"fastpaths_from": "k.py", "fastpaths": "off"}),
        ("--certificate is ' '", {"certificate": " "}),
    ],
)
def test_flags_that_contradict_each_other(words: str, values: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=words):
        options(**values)


def test_verifying_every_step_is_recorded_and_reaches_the_session(desk: Desk) -> None:
    assert desk.run(*PROMPT, "--verify-every-step", "--perf-dump-path", "perf.json") == 0
    assert desk.session.opened_with.verify_every_step is True
    assert json.loads(Path("perf.json").read_text(encoding="utf-8"))["config"]["verify_every_step"] is True


def test_a_file_of_ones_own_reaches_the_session_and_its_hash_the_dump(desk: Desk) -> None:
    Path("mine.py").write_text(OWN, encoding="utf-8")
    assert desk.run(*PROMPT, "--fastpaths-from", "mine.py", "--perf-dump-path", "perf.json") == 0
    assert ["mine"] == [one.name for one in desk.session.opened_with.user_sites]
    config = json.loads(Path("perf.json").read_text(encoding="utf-8"))["config"]
    assert hashlib.sha256(OWN.encode()).hexdigest() == config["fastpaths_from_sha256"]


@pytest.mark.parametrize(
    ("words", "text"),
    [("is no Python, line 1", "def\n"), ("defines no SITES", "x = 1\n"), ("fails in line 1", "import nothing_here\n")],
)
def test_a_broken_file_is_a_usage_error_before_anything_is_loaded(desk: Desk, words: str, text: str) -> None:
    Path("mine.py").write_text(text, encoding="utf-8")
    assert desk.run(*PROMPT, "--fastpaths-from", "mine.py") == 2
    assert words in desk.err
    assert desk.session.opened_with is None


def test_two_arms_with_different_files_differ(desk: Desk) -> None:
    from fuseproof.harness.perf.dump import read_perf_dump
    from fuseproof.harness.perf.work import check_equal_work

    for name, text in (("a", OWN), ("b", OWN + "# another\n")):
        Path(f"{name}.py").write_text(text, encoding="utf-8")
        assert desk.run(*PROMPT, "--fastpaths-from", f"{name}.py", "--perf-dump-path", f"{name}.json") == 0
    check = check_equal_work(read_perf_dump(Path("a.json")), read_perf_dump(Path("b.json")), judges_speed=False)
    assert "fastpaths_from_sha256" in {difference.field for difference in check.notes}


def certificate_here(folder: Path, **changes: Any) -> Path:
    """A certificate of this machine's CPU, which `verify` never writes, at its own place."""
    import torch

    from fuseproof.fastpaths.certificate_sources import Sources
    from fuseproof.fastpaths.certificates import Certificate, default_path, place_here, to_json

    place = place_here(torch.device("cpu"))
    sources = Sources().of_site("rotary_tables")
    values = {"place": place, "sources": sources, "keys": {"rotary_tables": ("'key'",)}, "created": "2026-11-30"}
    values |= changes
    path = default_path(folder, place)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_json(Certificate(**values)), encoding="utf-8")
    return path


def other_place() -> Any:
    import torch

    from fuseproof.fastpaths.certificates import place_here

    here = place_here(torch.device("cpu"))
    return dataclasses.replace(here, versions={**here.versions, "torch": "1.0"})


def test_the_machines_own_certificate_is_taken(desk: Desk, own_cache: Path) -> None:
    certificate_here(own_cache)
    assert desk.run(*PROMPT, "--device=cpu") == 0
    assert {"rotary_tables": frozenset({"'key'"})} == desk.session.opened_with.certified


@pytest.mark.parametrize("flag", ["--certificate=off", "--gate=observe", "--verify-every-step", "--fastpaths=off"])
def test_it_is_left_alone_where_nothing_may_be_skipped(desk: Desk, own_cache: Path, flag: str) -> None:
    certificate_here(own_cache)
    assert desk.run(*PROMPT, "--device=cpu", flag) == 0
    assert desk.session.opened_with.certified is None


def test_one_that_no_longer_holds_is_a_warning(desk: Desk, own_cache: Path) -> None:
    certificate_here(own_cache, place=other_place())
    assert desk.run(*PROMPT, "--device=cpu") == 0
    assert desk.session.opened_with.certified is None
    assert "was not used: it was made with torch 1.0" in desk.err


def test_a_damaged_one_is_a_warning(desk: Desk, own_cache: Path) -> None:
    certificate_here(own_cache).write_text("{", encoding="utf-8")
    assert desk.run(*PROMPT, "--device=cpu") == 0
    assert "no certificate was used" in desk.err


@pytest.mark.parametrize(
    ("words", "text"), [("cannot be read", None), ("is no certificate", "{"), ("does not hold here", "other")]
)
def test_a_named_one_must_hold(desk: Desk, tmp_path: Path, words: str, text: str | None) -> None:
    path = tmp_path / "named.json"
    if text == "other":
        path = certificate_here(tmp_path, place=other_place())
    elif text is not None:
        path.write_text(text, encoding="utf-8")
    assert desk.run(*PROMPT, "--device=cpu", f"--certificate={path}") == 1
    assert words in desk.err
    assert desk.session.opened_with is None


def test_coverage_below_the_certificate_is_one_line(desk: Desk, own_cache: Path) -> None:
    certificate_here(own_cache)
    report(desk, rotary_tables=site("declined", "an adapter"), other=site("declined", "x"))
    assert desk.run(*PROMPT, "--device=cpu") == 0
    lines = [line for line in desk.err.splitlines() if "cover less than the certificate of 2026-11-30" in line]
    assert ["rotary_tables declined (an adapter)" in line and "other" not in line for line in lines] == [True]


def test_abba_refuses_an_arm_that_verifies_every_step(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from fuseproof.cli.main import main

    arms = ["--baseline", "--fastpaths off", "--candidate", "--verify-every-step", "--flags", "--prompt panda"]
    assert main(["abba", *arms, "--output", str(tmp_path / "campaign"), "--dry-run"]) == 2
    assert "candidate: --verify-every-step runs every call twice" in capsys.readouterr().err
