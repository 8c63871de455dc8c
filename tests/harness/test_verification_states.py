"""Forged states, clocks, commands, settings and origins are found although the report was rendered and signed again."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuseproof.errors import FuseproofError
from fuseproof.harness.report import write_report
from fuseproof.harness.verification.verify import verify_campaign
from tests.harness.campaign_builder import REQUEST_FLAGS, CampaignBuilder, Run
from tests.harness.test_verification import origin_of, sign

FASTER = ((10.0, 9.5, 9.51, 10.02), (9.52, 10.01, 10.03, 9.5))
SLOT = "slots/panda/01-2-B"
PERF, RESULT = f"{SLOT}/perf.json", f"{SLOT}/result.json"
STEPS_MS = (395.747605, 607.186216, 801.215164, 595.415306, 733.289280, 567.698801)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    builder = CampaignBuilder(
        tmp_path_factory.mktemp("t") / "c", command=("fuseproof", "abba", "synthetic", "--blocks", "2")
    )
    for index, (way, row) in enumerate(zip(("ABBA", "BAAB"), FASTER, strict=True)):
        runs = [Run(worker_s=s, denoise_s=5.0, work={"transformer_calls": 8}) for _, s in zip(way, row, strict=True)]
        builder.block(runs, block=index + 1)
    return builder.write()


@pytest.fixture
def folder(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "c"))


Change = Callable[[dict[str, Any]], object]


def edit(folder: Path, file: str, change: Change) -> None:
    values = json.loads((folder / file).read_text(encoding="utf-8"))
    change(values)
    (folder / file).write_text(json.dumps(values, indent=1), encoding="utf-8")


def found(folder: Path) -> str:
    """The first lie of a folder whose forger has rendered and signed it again."""
    write_report(folder)
    return verify_campaign(folder).first_text


def state(state: str, code: str | None, **more: Any) -> Change:
    return lambda result: result.update(state=state, reason_code=code, reason=code and "x", **more)


def test_honest_folder(folder: Path) -> None:
    assert "" == found(folder)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        pytest.param({"returncode": 1}, "returncode is 1, but 0 by its state done", id="done with status 1"),
        pytest.param({"returncode": None}, "returncode is nothing, but 0", id="done with no status"),
        pytest.param({"wall_s": None}, "has no wall_s", id="no wall time"),
        pytest.param({"ended": "1999-01-01T00:00:00+00:00"}, 'or later" by started', id="ended before it began"),
        pytest.param({"started": "yesterday"}, "has a started that is no moment", id="no moment"),
        pytest.param({"wall_s": 1.0, "ended_monotonic_s": 21.0}, "IMPOSSIBLE_TIME", id="shorter than its work"),
        pytest.param(
            {"started_monotonic_s": 500.0, "ended_monotonic_s": 519.0},
            "started_monotonic_s is 40.0, but",
            id="ran after the slot that follows it",
        ),
        pytest.param({"work": None}, "work.transformer_calls is nothing, but 8", id="hidden work"),
        pytest.param({"command": ["/bin/cheat"]}, "does not run fuseproof generate", id="another command"),
        pytest.param({"orientation": "BAAB"}, 'arm is "B", but "A" by position 2', id="orientation"),
        pytest.param({"reason_code": "EXIT"}, "state is", id="done with a reason"),
    ],
)
def test_forged_record(folder: Path, change: dict[str, Any], text: str) -> None:
    edit(folder, RESULT, lambda result: result.update(change))
    assert text in found(folder)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        pytest.param(state("invalid", "EXIT"), "returncode is 0", id="EXIT with status 0"),
        pytest.param(state("invalid", "HW_SLOWDOWN"), "nothing that is kept of it shows that", id="no slowdown seen"),
        pytest.param(state("invalid", "IMPOSSIBLE_TIME"), "nothing that is kept of it shows that", id="possible time"),
        pytest.param(state("invalid", "TIMEOUT"), "nothing that is kept of it shows that", id="no time-out"),
        pytest.param(state("invalid", "FALLBACK"), "nothing that is kept of it shows that", id="no fallback"),
        pytest.param(state("superseded", "SUPERSEDED"), "was not begun again", id="superseded by nothing"),
        pytest.param(state("invalid", "=EXIT"), "in the place of a reason code", id="no code"),
        pytest.param(state("invalid", "BAD_DUMP"), "says complete, and block 1 of panda is not", id="not whole"),
    ],
)
def test_slot_that_was_made_to_drop_out(folder: Path, change: Change, text: str) -> None:
    edit(folder, RESULT, change)

    def index(campaign: dict[str, Any]) -> None:
        own = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        campaign["slots"][1].update({key: own[key] for key in ("state", "reason_code")})

    edit(folder, "campaign.json", index)
    write_report(folder)
    assert any(text in finding.text for finding in verify_campaign(folder).findings)


def test_busy_slot_that_says_it_was_not(folder: Path) -> None:
    edit(folder, RESULT, lambda result: result["contention"].update(other_cpu_share=0.8, busy=False))
    assert "contention.busy is False, but True by contention.other_cpu_share 0.8" in found(folder)


def test_dump_of_another_time(folder: Path) -> None:
    edit(folder, PERF, lambda dump: dump.update(timestamp="2026-01-01T00:10:00+00:00"))
    assert f'{PERF}: timestamp is "2026-01-01T00:10:00+00:00"' in found(folder)


def test_dump_that_was_written_to_another_slot(folder: Path) -> None:
    other = "/somewhere/slots/panda/01-3-B/perf.json"
    edit(folder, PERF, lambda dump: dump["config"].update(perf_dump_path=other))
    assert f'config.perf_dump_path is "slots/panda/01-3-B/perf.json", but "{PERF}"' in found(folder)


def test_dump_of_other_flags(folder: Path) -> None:
    edit(folder, PERF, lambda dump: dump["config"].update(fastpaths="off"))
    assert 'config.fastpaths is "off", but "auto"' in found(folder)


def test_dump_copied_and_touched_up(folder: Path) -> None:
    for number, name in enumerate(("01-2-B", "01-3-B")):

        def fine(dump: dict[str, Any], number: int = number) -> None:
            dump["denoise_steps_ms"] = [{"step": step, "duration_ms": ms} for step, ms in enumerate(STEPS_MS)]
            dump["denoise_steps_ms"][0]["duration_ms"] += number

        edit(folder, f"slots/panda/{name}/perf.json", fine)
    assert "times in its perf.json are those of panda/01-" in found(folder)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        pytest.param(lambda c: c["plan"].update(blocks=3), "plan.blocks is 3, but 2 by command --blocks", id="blocks"),
        pytest.param(
            lambda c: c["plan"]["arms"]["candidate"].update(flags="--fastpaths=off --seed 7"),
            "command[14] is",
            id="candidate's flags",
        ),
        pytest.param(lambda c: c["plan"].update(order="ABBA"), "orientation is", id="order"),
        pytest.param(
            lambda c: c.update(command=["fuseproof", "import", "x"]),
            "the command that made it is an import",
            id="import",
        ),
        pytest.param(
            lambda c: c.update(sessions=[session(environment={"cpu": "Real"})]),
            'environment.cpu is "Synthetic CPU", but "Real" by sessions[0].environment',
            id="environment of the session",
        ),
        pytest.param(
            lambda c: c.update(lineage={"A": {"setup": SETUP}}), "setup/A.log is missing", id="setup log that is gone"
        ),
        pytest.param(lambda c: c.update(lineage={"B": {"commit": "b" * 40}}), "", id="lineage of slots without one"),
    ],
)
def test_forged_campaign(folder: Path, change: Change, text: str) -> None:
    edit(folder, "campaign.json", change)
    write_report(folder)
    texts = [finding.text for finding in verify_campaign(folder).findings]
    assert any(text in told for told in texts) if text else [] == texts


SETUP = {"command": "make", "exit_code": 0, "seconds": 1.0, "log": "setup/A.log", "log_sha256": "0" * 64}


def session(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "started": "2026-01-01T00:00:00+00:00",
        "command": ["fuseproof", "abba", "synthetic", "--blocks", "2"],
        "fuseproof_version": "0.1.0",
        "environment": {"cpu": "Synthetic CPU"},
    }
    return values | changes


def test_edited_setup_log(folder: Path) -> None:
    (folder / "setup").mkdir()
    (folder / "setup/A.log").write_text("fine\n", encoding="utf-8")
    edit(folder, "campaign.json", lambda campaign: campaign.update(lineage={"A": {"setup": SETUP}}))
    assert "setup/A.log: its SHA-256 is" in found(folder)


def test_commit_of_a_slot_is_that_of_its_arm(folder: Path) -> None:
    edit(folder, "campaign.json", lambda c: c.update(lineage={"B": {"commit": "b" * 40, "ref": "x"}}))
    edit(folder, RESULT, lambda result: result.update(lineage={"commit": "c" * 40, "ref": "x"}))
    assert f'lineage.commit is "{"c" * 40}", but "{"b" * 40}"' in found(folder)


def test_machine_of_the_dumps_is_that_of_the_campaign(folder: Path) -> None:
    edit(folder, PERF, lambda dump: dump.update(environment={"cpu": "Another", "gpus": []}))
    assert 'environment.cpu is "Synthetic CPU", but "Another"' in found(folder)


@pytest.mark.parametrize(
    ("path", "slot", "text"),
    [
        pytest.param("x/r1-a1.json", "panda/01-2-B", "a slot of arm A", id="arm"),
        pytest.param("x/notes.json", "panda/01-2-B", "a name that fits", id="no label"),
    ],
)
def test_import_holds_a_dump_to_its_label(folder: Path, path: str, slot: str, text: str) -> None:
    origin = origin_of(folder) | {"labels": "{block}-{arm}"}
    for file in origin["files"]:
        place = file["slot"].rpartition("/")[2]
        file["path"] = f"x/r{int(place[:2])}-{place[-1].lower()}{1 if place[3] in '12' else 2}.json"
    origin["files"][0] |= {"path": path, "slot": slot}
    edit(folder, "campaign.json", lambda campaign: campaign.update(origin=origin))
    assert text in found(folder)


def test_imported_file_that_no_import_wrote_down(folder: Path) -> None:
    origin = origin_of(folder)
    del origin["files"][0]
    edit(folder, "campaign.json", lambda campaign: campaign.update(origin=origin))
    assert f"{PERF} is no file that origin.files" in found(folder)


@pytest.mark.parametrize("name", ["report.md", "SHA256SUMS", f"{SLOT}/outputs/image-0.png", "campaign.json"])
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_nothing_is_read_through_a_link_or_from_a_pipe(folder: Path, tmp_path: Path, name: str, kind: str) -> None:
    write_report(folder)
    (folder / name).unlink()
    if kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to(tmp_path / "elsewhere")
    verification = verify_campaign(folder)
    assert [name] == [finding.file for finding in verification.findings]
    assert 0 == verification.totals()["hashes"]


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(b"\x93NUMPY\x01\x00\x10\x00(((((((((((\n \n  x", id="open brackets"),
        pytest.param(b"\x93NUMPY\x01\x00\x10\x00  {'a'\n\t  1\n'''\"", id="open text"),
        pytest.param(b"PK\x03\x04garbage", id="no archive"),
        pytest.param(b"", id="empty"),
    ],
)
def test_hostile_array(folder: Path, header: bytes) -> None:
    (folder / SLOT / "raw").mkdir()
    (folder / SLOT / "raw/image-0.npy").write_bytes(header)
    assert f"{SLOT}/raw/image-0.npy is no array that can be read" in found(folder)


def test_structured_array(folder: Path) -> None:
    (folder / SLOT / "raw").mkdir()
    np.save(folder / SLOT / "raw/image-0.npy", np.zeros(2, dtype=[("a", "<f4")]))
    assert "and numbers were expected" in found(folder)


@pytest.mark.parametrize("value", [10**400, float("1e300"), -(10**400)])
def test_numbers_that_no_sum_can_hold(folder: Path, value: float) -> None:
    request = {"work": {"transformer_calls": 8}, "worker_ms": value, "steps": [{"duration_ms": value}]}
    edit(folder, PERF, lambda dump: dump.update(requests=[request]))
    write_report(folder)
    assert any("that is no time" in finding.text for finding in verify_campaign(folder).findings)


def test_block_number_beyond_every_plan(folder: Path) -> None:
    edit(folder, RESULT, lambda result: result.update(block=99_999_999))
    sign(folder)
    with pytest.raises(FuseproofError, match="block is 99999999, expected 1 to 1000"):
        verify_campaign(folder)


def test_frames_listing_that_is_gone(folder: Path) -> None:
    (folder / SLOT / "frames.sha256").unlink()
    assert f"{SLOT}/frames.sha256 is missing" in found(folder)


@pytest.mark.parametrize(
    ("steps", "skipped", "text"),
    [
        pytest.param(5, [6, 7], "", id="lengthened to meet both kinds of step"),
        pytest.param(1, [6, 7], 'warmup_steps is 1, but "2" by', id="shortened"),
        pytest.param(5, [], 'warmup_steps is 5, but "2" by', id="no reason to lengthen it"),
    ],
)
def test_warm_up_of_a_quality_that_skips_guidance(tmp_path: Path, steps: int, skipped: list[int], text: str) -> None:
    flags = f"{REQUEST_FLAGS} --quality high --warmup-steps 2"
    builder = CampaignBuilder(
        tmp_path / "c",
        blocks=1,
        cells={"panda": {"flags": flags}},
        command=("fuseproof", "abba", "synthetic", "--blocks", "1"),
    )
    config = {"quality": "high", "warmup_steps": steps, "guidance_skipped_steps": skipped}
    builder.block([Run(worker_s=seconds, denoise_s=5.0, config=config) for seconds in FASTER[0]])
    lie = found(builder.write())
    assert (text in lie) if text else lie == ""


def test_outputs_that_are_kept_silent(folder: Path) -> None:
    edit(folder, RESULT, lambda result: result.update(outputs=[]))
    (folder / SLOT / "outputs/image-0.png").unlink()
    (folder / SLOT / "frames.sha256").write_text("", encoding="utf-8")
    assert "names no output, though its arm was told to write some" in found(folder)


def test_noise_floor_of_a_campaign_that_measured_none(folder: Path) -> None:
    write_report(folder)
    (folder / "aa.json").write_text("{}", encoding="utf-8")
    sign(folder)
    assert "aa.json belongs to no report of this campaign" == verify_campaign(folder).first_text


def test_only_our_own_temporary_files_are_passed_over(folder: Path) -> None:
    write_report(folder)
    (folder / ".fuseproof-17-0123abcd.tmp").write_text("x", encoding="utf-8")
    verification = verify_campaign(folder)
    assert verification.is_verified and any(".tmp is left of" in note for c in verification.checks for note in c.notes)
    (folder / ".fuseproof-evil.tmp").write_text("x", encoding="utf-8")
    assert ".fuseproof-evil.tmp is not in SHA256SUMS" == verify_campaign(folder).first_text


def test_list_of_left_out_logs_says_what_follows_from_the_signature(folder: Path) -> None:
    write_report(folder)
    (folder / "left-out.txt").write_text("FASTER by half\n", encoding="utf-8")
    assert "left-out.txt" in verify_campaign(folder).first_text
