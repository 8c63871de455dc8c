"""Arms that are any program: times that are only printed, which programs ran, what they and the campaign are called."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from fuseproof.cli.main import main
from fuseproof.harness.analysis.campaign import analyse
from fuseproof.harness.campaign.arm_programs import programs_of
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.runner import BlockLoop
from fuseproof.harness.media.files import file_sha256
from tests.cli.deaf_telemetry import be_deaf_to_the_load

PATTERN = r"--time-pattern=time: (?P<s>[0-9.]+) s"
MS_PATTERN = r"--time-pattern=took (?P<ms>[0-9.]+)"
ONE_BLOCK = ("--blocks=1", "--output=c")


class Result(NamedTuple):
    code: int
    out: str
    err: str


Fuseproof = Callable[..., Result]


@pytest.fixture
def fuseproof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Fuseproof:
    """The program in an empty folder with two shell scripts, deaf to the load of this machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path.parent))
    be_deaf_to_the_load(monkeypatch)
    script("old.sh", "0.0020$(date +%N)")
    script("new.sh", "0.0010$(date +%N)")

    def call(command: str, *arguments: str) -> Result:
        capfd.readouterr()
        code = main([command, *arguments, *(["--allow-busy"] if command == "abba" else [])])
        return Result(code, *capfd.readouterr())

    return call


def script(name: str, seconds: str) -> None:
    Path(name).write_text(f'echo "time: {seconds} s"\n', encoding="utf-8")


def commands(baseline: str = "sh old.sh", candidate: str = "sh new.sh") -> tuple[str, str]:
    return f"--baseline-command={baseline}", f"--candidate-command={candidate}"


def test_a_printed_time_is_measured_recorded_and_verified(fuseproof: Fuseproof) -> None:
    result = fuseproof("abba", *commands(), PATTERN, "--output=c")
    assert (0, "FASTER") == (result.code, result.out.partition(":")[0]), result.err
    slot = Path("c/slots/command/01-1-A")
    dump = json.loads((slot / "perf.json").read_text())
    printed = (slot / "stdout.log").read_text().split()[1]
    expected = {"pattern": "time: (?P<s>[0-9.]+) s", "log": "stdout.log", "line": 1, "text": printed, "unit": "s"}
    assert expected == dump["printed_time"]
    assert pytest.approx(1e3 * float(printed)) == dump["total_duration_ms"]
    report = Path("c/report.md").read_text()
    assert f"| Files of the command | old.sh {file_sha256('old.sh')[:12]} | new.sh" in report
    assert "Printed time" in report and f"# old.sh: SHA-256 {file_sha256('old.sh')}" in report
    verified = fuseproof("verify", "c")
    assert (0, True) == (verified.code, "9 printed times" in verified.out), verified.out


def test_another_time_in_the_log_is_found_also_where_it_is_signed_again(fuseproof: Fuseproof) -> None:
    assert 0 == fuseproof("abba", *commands(), PATTERN, *ONE_BLOCK).code
    log = Path("c/slots/command/01-2-B/stdout.log")
    log.write_text("time: 0.0005 s\n", encoding="utf-8")
    Path("c/SHA256SUMS").unlink()
    fuseproof("report", "c")
    result = fuseproof("verify", "c")
    assert 1 == result.code
    assert "but 0.5 by slots/command/01-2-B/stdout.log line 1" in result.out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param("all is well", "matches no printed line", id="none"),
        pytest.param("took 1.5 ms\ntook 1.6 ms", "matches 2 times in its logs, first '1.5'", id="two"),
        pytest.param("took 1.5.2 ms", "found '1.5.2', which is no time in ms", id="no-number"),
        pytest.param("took 0 ms", "found '0', which is no time in ms", id="zero"),
    ],
)
def test_a_slot_without_one_printed_time_is_invalid(fuseproof: Fuseproof, line: str, said: str) -> None:
    Path("new.sh").write_text("".join(f"echo '{part}'\n" for part in line.split("\n")), encoding="utf-8")
    Path("old.sh").write_text("echo took 1.25\n", encoding="utf-8")
    result = fuseproof("abba", *commands(), MS_PATTERN, *ONE_BLOCK)
    assert (1, True) == (result.code, said in result.err), result.err
    assert "NO_TIME" == Campaign.open("c").slots()[-1].reason_code
    assert 0 == fuseproof("verify", "c").code


def test_a_program_that_writes_no_dump_is_told_the_smallest_one(fuseproof: Fuseproof) -> None:
    result = fuseproof("abba", *commands("sh old.sh {perf_dump}", "sh new.sh {perf_dump}"), *ONE_BLOCK)
    assert 1 == result.code
    assert 'its log: c/slots/command/01-0-A/stdout.log. A dump is a JSON object of at least {"total_duration_ms"' in (
        result.err
    )
    assert "--time-pattern" in Path("c/report.md").read_text()


def test_a_program_that_changes_between_slots_is_said_at_once_and_in_the_report(
    fuseproof: Fuseproof, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = BlockLoop._try_block

    def edited(self: BlockLoop, cell: object, block: int, attempt: int) -> object:
        if block == 2:
            script("new.sh", "0.0011$(date +%N)")
        return tried(self, cell, block, attempt)  # type: ignore[arg-type]

    before = file_sha256("new.sh")[:12]
    monkeypatch.setattr(BlockLoop, "_try_block", edited)
    result = fuseproof("abba", *commands(), PATTERN, "--output=c")
    change = f"new.sh went from {before} to {file_sha256('new.sh')[:12]}"
    assert f"the candidate's command names changed before slot command/02-1-B: {change}" in result.err
    (warning,) = [item for item in analyse(Campaign.open("c")).cells[0].warnings if item.code == "PROGRAMS_DIFFER"]
    assert "the candidate runs had 2 different contents of new.sh" in warning.detail
    assert "PROGRAMS_DIFFER" in Path("c/report.md").read_text()


def test_a_program_that_was_edited_is_said_before_a_campaign_goes_on(fuseproof: Fuseproof) -> None:
    assert 0 == fuseproof("abba", *commands(), PATTERN, "--blocks=2", "--output=c").code
    script("old.sh", "0.0021$(date +%N)")
    result = fuseproof("abba", "--resume=c", "--add-blocks=2")
    first, *_ = [line for line in result.err.splitlines() if "old.sh" in line]
    assert "a file that the baseline's command names changed since this campaign last ran: old.sh went from" in first
    assert "PROGRAMS_DIFFER" in result.out


def test_a_stored_plan_wants_its_programs_and_names_other_ones(
    fuseproof: Fuseproof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 0 == fuseproof("abba", *commands("sh old.sh"), PATTERN, *ONE_BLOCK).code
    old = file_sha256("old.sh")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    missing = fuseproof("abba", "--from=../c", "--dry-run")
    assert (2, True) == (missing.code, "names old.sh, as the stored campaign did" in missing.err)
    assert f"SHA-256 {old}" in missing.err
    script("old.sh", "0.003$(date +%N)")
    script("new.sh", "0.0010$(date +%N)")
    again = fuseproof("abba", "--from=../c", "--output=d")
    assert "the baseline's program is another one than was measured: old.sh went from" in again.err
    assert "new.sh went" not in again.err
    assert 'fuseproof abba --from="$CAMPAIGN"' in Path("d/report.md").read_text()


def test_a_plan_travels_with_its_programs(
    fuseproof: Fuseproof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm = "name = '{0}'\ncommand = 'sh {{plan_dir}}/{0}.sh'\ntime_pattern = 'time: (?P<s>[0-9.]+) s'\n"
    arms = "".join(f"[arms.{role}]\n{arm.format(name)}" for role, name in (("baseline", "old"), ("candidate", "new")))
    Path("plan.toml").write_text(f"name = 'travels'\nblocks = 1\n{arms}[[cells]]\nname = 'cell'\n", encoding="utf-8")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert 0 == fuseproof("abba", "../plan.toml", "--output=c").code
    assert {"../old.sh", str(tmp_path / "old.sh")} & programs_of(Campaign.open("c").slots()[0]).keys()
    (tmp_path / "new.sh").unlink()
    gone = fuseproof("abba", "../plan.toml", "--dry-run")
    assert (2, True) == (gone.code, f"{tmp_path / 'new.sh'} is no file" in gone.err)


@pytest.mark.parametrize(
    ("arguments", "name", "title"),
    [
        pytest.param(commands(), "old-vs-new", "", id="programs"),
        pytest.param([*commands(), "--name=mine"], "mine", "", id="own"),
        pytest.param(commands("sh old.sh --a", "sh old.sh --b"), "old", "", id="one-program"),
        pytest.param(
            [*commands(), "--baseline-name=as it was", "--candidate-name=fused"],
            "as-it-was-vs-fused",
            "as it was against fused",
            id="names",
        ),
        pytest.param(["--baseline-command=sh old.sh", "--aa"], "old-aa", "", id="aa"),
    ],
)
def test_campaigns_are_called_by_what_they_compare(
    fuseproof: Fuseproof, arguments: list[str], name: str, title: str
) -> None:
    from fuseproof.cli.abba_plan import build_plan

    assert 0 == fuseproof("abba", *arguments, PATTERN, "--dry-run").code
    plan = build_plan(options_of(*arguments, PATTERN))
    assert (name, title) == (plan.name, plan.title)


def test_every_candidate_may_have_a_name(fuseproof: Fuseproof) -> None:
    from fuseproof.cli.abba_plan import build_plan

    third = ("--candidate-command=sh new.sh --third", "--candidate-name=b", "--candidate-name=c")
    plan = build_plan(options_of(*commands(), *third, PATTERN))
    assert ["baseline", "b", "c"] == [arm.name for arm in plan.arms.all]


def options_of(*arguments: str) -> object:
    from fuseproof.cli.abba import abba
    from fuseproof.cli.abba_options import options_from

    return options_from(abba.make_context("abba", list(arguments)).params)
