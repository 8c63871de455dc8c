"""An A/A floor beside a later campaign: printed, compared key by key, kept in the folder, and never a verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fuseproof.cli.main import main
from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.analysis.campaign import CellAnalysis, analyse
from fuseproof.harness.analysis.floor import obstacles_of
from fuseproof.harness.campaign.floors import KEPT_FLOOR, keep_floor, kept_floor, read_floor, remove_floor
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.report import render_markdown, write_report
from fuseproof.harness.report.write import stale_files
from fuseproof.harness.statistics.verdict import Word
from fuseproof.schedules.plan import plan_from
from tests.harness.campaign_builder import CampaignBuilder

QUIET = ((10.0, 10.01, 10.0, 10.02), (10.01, 10.0, 10.02, 10.0))
NOISY = ((10.0, 10.2, 9.9, 10.3), (10.1, 9.8, 10.3, 10.0))
FASTER = ((10.0, 9.8, 9.81, 10.01), (9.8, 10.0, 10.01, 9.81))
CARD, OTHER = "GPU-aaaaaaaa", "GPU-bbbbbbbb"


def machine(uuid: str = CARD, model: str = "NVIDIA H200", torch: str = "2.13.0") -> dict[str, Any]:
    return {
        "gpus": [{"uuid": uuid, "name": model, "driver_version": "570.1"}],
        "visible_gpu_uuids": [uuid],
        "python": {"version": "3.12.0"},
        "libraries": {"torch": torch},
    }


def floor_of(folder: Path, times: Any = QUIET, environment: Mapping[str, Any] | None = None, **more: Any) -> Path:
    """The folder of a rendered A/A campaign."""
    flags = {"baseline_flags": "--fastpaths=off", "candidate_flags": "--fastpaths=off"}
    builder = CampaignBuilder(folder, environment=environment or machine(), **(flags | more)).blocks(times)
    write_report(builder.write())
    return folder


def campaign_of(folder: Path, environment: Mapping[str, Any] | None = None, **more: Any) -> Path:
    return CampaignBuilder(folder, environment=environment or machine(), **more).blocks(FASTER).write()


def beside(campaign: Path, floor: Path) -> CellAnalysis:
    keep_floor(read_floor(floor), campaign)
    (cell,) = analyse(Campaign.open(campaign)).cells
    return cell


def codes(cell: CellAnalysis) -> list[str]:
    return [warning.code for warning in cell.warnings]


def test_the_floor_of_the_same_card_is_printed_beside_the_effect(tmp_path: Path) -> None:
    cell = beside(campaign_of(tmp_path / "c"), floor_of(tmp_path / "aa"))
    assert cell.floor is not None and cell.floor.found is not None
    assert (Word.FASTER, []) == (cell.word, codes(cell))
    lower, upper = cell.floor.found.interval
    assert max(abs(lower), abs(upper)) == cell.floor.found.reach
    analysis = write_report(tmp_path / "c")
    text = render_markdown(analysis)
    assert f"A/A on the same card: ±{100 * cell.floor.found.reach:.2f} % (worker; it measured " in text
    assert "no word changes by the floor" in text
    assert any("A/A on the same card" in line for line in analysis.summary_lines())
    assert cell.floor.found.reach == analysis.to_json()["cells"][0]["floor"]["reach"]


@pytest.mark.parametrize("place", ["floor", KEPT_FLOOR])
def test_a_floor_is_neither_kept_nor_removed_through_a_link(tmp_path: Path, place: str) -> None:
    campaign, outside = campaign_of(tmp_path / "c"), tmp_path / "outside"
    floor = read_floor(floor_of(tmp_path / "aa"))
    keep_floor(floor, campaign)
    (campaign / place).rename(outside)
    (campaign / place).symlink_to(outside)
    before = sorted(tmp_path.rglob("*"))
    for change in (lambda: keep_floor(floor, campaign), lambda: remove_floor(campaign)):
        with pytest.raises(FuseproofError, match=f"{place} is a link"):
            change()
    assert before == sorted(tmp_path.rglob("*"))


def test_an_effect_inside_the_floor_keeps_its_word_and_gets_a_warning(tmp_path: Path) -> None:
    cell = beside(campaign_of(tmp_path / "c"), floor_of(tmp_path / "aa", NOISY))
    assert (Word.FASTER, ["INSIDE_FLOOR"]) == (cell.word, codes(cell))
    assert "the word rests on this campaign's own scatter and stands" in cell.warnings[0].detail


@pytest.mark.parametrize(
    ("environment", "plan", "code", "said"),
    [
        pytest.param(machine(model="NVIDIA L4"), {}, "FLOOR_MISMATCH", "(NVIDIA H200 against NVIDIA L4)", id="card"),
        pytest.param(machine(OTHER), {}, "FLOOR_DIFFERS", "card (another NVIDIA H200: GPU-aaaaaaaa against", id="uuid"),
        pytest.param(
            machine(torch="2.14.0"), {}, "FLOOR_DIFFERS", "versions: torch (2.13.0 against 2.14.0)", id="versions"
        ),
        pytest.param(machine(), {"cells": ("fox",)}, "FLOOR_MISMATCH", "cell: it has no fox", id="no-such-cell"),
        pytest.param(
            machine(),
            {"cells": {"panda": {"flags": "--seed 1"}}},
            "FLOOR_MISMATCH",
            "cell panda: its flags are not this plan's",
            id="other-flags",
        ),
        pytest.param(machine(), {"baseline_flags": "--quality high"}, "FLOOR_DIFFERS", "arm (the A/A did", id="arm"),
        pytest.param(machine(), {"primary": "denoise"}, "FLOOR_MISMATCH", "timer: it has no denoise", id="timer"),
    ],
)
def test_what_differs_is_said_key_by_key(
    tmp_path: Path, environment: dict[str, Any], plan: dict[str, Any], code: str, said: str
) -> None:
    folder = tmp_path / "c"
    cells = plan.get("cells", ("panda",))
    name = next(iter(cells))
    builder = CampaignBuilder(folder, environment=environment, **plan).blocks(FASTER, cell=name)
    cell = beside(builder.write(), floor_of(tmp_path / "aa"))
    told = {warning.code: warning.detail for warning in cell.warnings}
    assert said in told[code]
    assert cell.floor is not None and cell.floor.is_comparable is (code == "FLOOR_DIFFERS")
    if not cell.floor.is_comparable:
        assert "is no floor here" in cell.floor.text
        assert "INSIDE_FLOOR" not in told


def test_a_floor_of_a_machine_without_gpus_goes_by_the_processor(tmp_path: Path) -> None:
    mine, other = ({"processor": {"model": model}} for model in ("EPYC", "Xeon"))
    floor = floor_of(tmp_path / "aa", environment=mine)
    same = beside(campaign_of(tmp_path / "same", mine), floor)
    assert same.floor is not None and same.floor.text.startswith("A/A on the same processor: ±")
    assert "FLOOR_MISMATCH" in codes(beside(campaign_of(tmp_path / "other", other), floor))


def test_the_kept_floor_is_all_that_a_report_needs(tmp_path: Path) -> None:
    floor, folder = floor_of(tmp_path / "aa"), campaign_of(tmp_path / "c")
    original = (floor / "aa.json").read_bytes()
    keep_floor(read_floor(floor / "aa.json"), folder)
    write_report(folder)
    (floor / "aa.json").unlink()
    assert original == (folder / KEPT_FLOOR).read_bytes()
    assert KEPT_FLOOR in (folder / "SHA256SUMS").read_text(encoding="utf-8")
    assert [] == stale_files(analyse(Campaign.open(folder)))
    values = json.loads(original)
    values["cells"]["panda"]["worker"]["interval"] = [-0.5, 0.5]
    (folder / KEPT_FLOOR).write_text(json.dumps(values), encoding="utf-8")
    assert {KEPT_FLOOR, "report.md", "report.json"} <= set(stale_files(analyse(Campaign.open(folder))))


def test_a_campaign_keeps_one_floor(tmp_path: Path) -> None:
    folder, floor = campaign_of(tmp_path / "c"), floor_of(tmp_path / "aa")
    keep_floor(read_floor(floor), folder)
    keep_floor(read_floor(floor), folder)
    with pytest.raises(UsageError, match="already holds the floor of synthetic"):
        keep_floor(read_floor(floor_of(tmp_path / "other", NOISY)), folder)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("{", "is no noise floor", id="no-json"),
        pytest.param("[]", "schema is None", id="a-list"),
        pytest.param(f"[{'9' * 5000}]", "a number in it has too many digits", id="digits"),
        pytest.param("[" * 100_000, "is no noise floor", id="depth"),
        pytest.param('{"schema": "fuseproof.report/1"}', "schema is 'fuseproof.report/1'", id="a-report"),
        pytest.param('{"schema": "fuseproof.floor/1"}', "key campaign is missing", id="keys"),
    ],
)
def test_what_is_no_floor_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "aa.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=said):
        read_floor(file)
    (tmp_path / "c" / "floor").mkdir(parents=True)
    (tmp_path / "c" / KEPT_FLOOR).write_text(text, encoding="utf-8")
    with pytest.raises(FuseproofError, match=said):
        kept_floor(tmp_path / "c")


def _changed(values: Any, key: str, value: object) -> None:
    *parents, last = key.split("/")
    for parent in parents:
        values = values[parent]
    values[last] = value


TIMER = "cells/panda/worker"


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        pytest.param("conditions/card models", 7, "key conditions.card models: ", id="a-number-for-a-list"),
        pytest.param("conditions/card models", [{"a": 1}, 3], "key conditions.card models.0: ", id="a-list-of-others"),
        pytest.param("conditions/cards", 5, "key conditions.cards: ", id="cards"),
        pytest.param("conditions/driver", {"a": 1}, "key conditions.driver: ", id="driver"),
        pytest.param("conditions/versions", [1, 2, 3], "key conditions.versions: ", id="a-list-for-a-table"),
        pytest.param("conditions/versions", {"torch": 2}, "key conditions.versions.torch: ", id="a-version"),
        pytest.param("conditions", None, "key conditions: ", id="no-conditions"),
        pytest.param("campaign", 3, "key campaign: ", id="name"),
        pytest.param("campaign", "x" * 5000, "key campaign: ", id="a-long-name"),
        pytest.param("workloads", ["panda"], "key workloads: ", id="workloads"),
        pytest.param("cells", [1], "key cells: ", id="cells"),
        pytest.param(f"{TIMER}/interval", [0.9, -0.9], "interval [0.9, -0.9] is none around", id="reversed"),
        pytest.param(f"{TIMER}/interval", [0.5, 0.9], "is none around apparent_reduction", id="beside-its-effect"),
        pytest.param(f"{TIMER}/interval", [-1e300, 0.5], f"key {TIMER}.interval.0: ", id="huge"),
        pytest.param(f"{TIMER}/interval", [-0.5, 1.5], f"key {TIMER}.interval.1: ", id="more-than-all"),
        pytest.param(f"{TIMER}/interval", ["-0.5", "0.5"], f"key {TIMER}.interval.0: ", id="texts"),
        pytest.param(f"{TIMER}/interval", [0.0], f"key {TIMER}.interval: ", id="one-end"),
        pytest.param(f"{TIMER}/apparent_reduction", 10**400, f"key {TIMER}.apparent_reduction: ", id="no-double"),
        pytest.param(f"{TIMER}/level", 7.5, f"key {TIMER}.level: ", id="level"),
        pytest.param(f"{TIMER}/level", float("nan"), f"key {TIMER}.level: ", id="nan"),
        pytest.param(f"{TIMER}/blocks", 0, f"key {TIMER}.blocks: ", id="no-block"),
        pytest.param(f"{TIMER}/blocks", True, f"key {TIMER}.blocks: ", id="a-truth"),
        pytest.param(f"{TIMER}/blocks", 10**400, f"key {TIMER}.blocks: ", id="too-many-blocks"),
        pytest.param(f"{TIMER}/scatter_of_one_run", -1.0, f"key {TIMER}.scatter_of_one_run: ", id="scatter"),
    ],
)
def test_a_floor_with_a_wrong_type_or_an_absurd_number_is_refused_by_its_key(
    floor_text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, value: object, said: str
) -> None:
    values = json.loads(floor_text)
    _changed(values, key, value)
    file = tmp_path / "aa.json"
    file.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(UsageError) as found:
        read_floor(file)
    assert said.replace(TIMER, TIMER.replace("/", ".")) in found.value.message
    assert len(found.value.message) < 500 + len(str(file))


@pytest.fixture(scope="module")
def floor_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return (floor_of(tmp_path_factory.mktemp("aa")) / "aa.json").read_text(encoding="utf-8")


def test_a_kept_floor_with_wrong_numbers_ends_the_report_by_name(
    tmp_path: Path, floor_text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, values = campaign_of(tmp_path / "c"), json.loads(floor_text)
    _changed(values, f"{TIMER}/level", 7.5)
    (folder / "floor").mkdir()
    (folder / KEPT_FLOOR).write_text(json.dumps(values), encoding="utf-8")
    assert 1 == main(["report", str(folder)])
    assert "floor/aa.json is no noise floor: key cells.panda.worker.level: " in capsys.readouterr().err


def disturbed_floor(folder: Path, **run: Any) -> Path:
    """An A/A whose every run had ``run``'s facts."""
    builder = CampaignBuilder(
        folder, environment=machine(), baseline_flags="--fastpaths=off", candidate_flags="--fastpaths=off"
    ).blocks(QUIET, **run)
    write_report(builder.write())
    return folder


def test_a_disturbed_floor_says_so_beside_the_effect(tmp_path: Path) -> None:
    cell = beside(campaign_of(tmp_path / "c"), disturbed_floor(tmp_path / "aa", is_busy=True))
    told = {warning.code: warning.detail for warning in cell.warnings}
    assert ["FLOOR_DISTURBED"] == list(told)
    said = "the A/A ended as INCONCLUSIVE: CONTENTION: other processes used the machine during 8 of 8 runs"
    assert told["FLOOR_DISTURBED"].startswith(f"the A/A floor is doubtful: {said}")
    assert cell.floor is not None and said in cell.floor.text
    assert Word.FASTER == cell.word


def test_noise_alone_is_no_disturbance(tmp_path: Path) -> None:
    floor = floor_of(tmp_path / "aa", NOISY)
    timer = json.loads((floor / "aa.json").read_text(encoding="utf-8"))["cells"]["panda"]["worker"]
    assert ("INCONCLUSIVE", ["SPREAD_EXCEEDS_EFFECT"]) == (timer["word"], [one["code"] for one in timer["reasons"]])
    assert "FLOOR_DISTURBED" not in codes(beside(campaign_of(tmp_path / "c"), floor))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"word": "INCONCLUSIVE"}, "ended as INCONCLUSIVE, and its file does not say why", id="no-reason"),
        pytest.param({}, "its file does not say how the A/A ended", id="no-word"),
        pytest.param({"word": "FASTER"}, "so two runs of one program differed by more than their scatter", id="faster"),
    ],
)
def test_a_floor_that_keeps_its_word_to_itself_is_doubtful(
    tmp_path: Path, floor_text: str, changes: dict[str, str], said: str
) -> None:
    values, file = json.loads(floor_text), tmp_path / "aa.json"
    timer = values["cells"]["panda"]["worker"]
    del timer["word"], timer["reasons"]
    timer |= changes
    file.write_text(json.dumps(values), encoding="utf-8")
    cell = beside(campaign_of(tmp_path / "c"), file)
    assert said in {warning.code: warning.detail for warning in cell.warnings}["FLOOR_DISTURBED"]


def test_a_floor_must_fit_before_anything_runs(tmp_path: Path) -> None:
    floor = read_floor(floor_of(tmp_path / "aa"))
    plan = plan_from(CampaignBuilder(tmp_path / "p").plan, "here")
    eight = {**machine(), "visible_gpu_uuids": [OTHER, CARD]}
    assert [] == obstacles_of(floor, plan, eight)
    assert ["card (NVIDIA H200 against none)"] == obstacles_of(floor, plan, {"processor": {"model": "EPYC"}})


# the commands


def test_report_keeps_the_floor_that_it_is_given_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, floor = campaign_of(tmp_path / "c"), floor_of(tmp_path / "aa")
    assert 0 == main(["report", str(folder), "--floor", str(floor)])
    captured = capsys.readouterr()
    assert "A/A on the same card: ±" in captured.out
    assert f"fuseproof: {folder}/floor/aa.json holds the floor of " in captured.err
    assert f"report and SHA256SUMS of {folder} are written again" in captured.err
    assert 0 == main(["report", str(folder)])
    assert "A/A on the same card: ±" in capsys.readouterr().out


def test_report_takes_the_floor_out_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, floor = campaign_of(tmp_path / "c"), floor_of(tmp_path / "aa")
    main(["report", str(folder)])
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    main(["report", str(folder), "--floor", str(floor)])
    capsys.readouterr()
    assert 0 == main(["report", str(folder), "--floor", "none"])
    assert f"fuseproof: removed {folder}/floor/aa.json, the floor of " in capsys.readouterr().err
    assert before == {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert not (folder / "floor").exists()
    assert 2 == main(["report", str(folder), "--floor", "none"])
    assert "holds no floor that could be removed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        pytest.param(["--floor", "l4"], "is no floor for any cell of", id="another-card"),
        pytest.param(["--floor", "nowhere"], "cannot be read: No such file", id="no-file"),
        pytest.param(["--floor", "aa", "--check"], "--check and --block write nothing", id="check"),
    ],
)
def test_report_refuses_what_is_no_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    floor_of(tmp_path / "aa")
    floor_of(tmp_path / "l4", environment=machine(model="NVIDIA L4"))
    folder = campaign_of(tmp_path / "c")
    assert 2 == main(["report", str(folder), *flags])
    assert said in capsys.readouterr().err
    assert not (folder / "floor").exists()


@pytest.mark.parametrize("other", ["--aa", "--plan-for=1%"])
def test_abba_takes_a_floor_only_for_a_campaign(capsys: pytest.CaptureFixture[str], other: str) -> None:
    assert 2 == main(["abba", "--floor", "aa", other, "--dry-run"])
    assert "exclude each other" in capsys.readouterr().err
