"""``SHA256SUMS``: measurements that changed after they were signed are not signed again; a resumed campaign's are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fuseproof.errors import FuseproofError
from fuseproof.harness.report import stale_files, write_report
from tests.harness.campaign_builder import CampaignBuilder, Run

FASTER = ((10.0, 9.5, 9.51, 10.02), (9.52, 10.01, 10.03, 9.5))
RESULT = "slots/panda/01-1-A/result.json"


def signed(folder: Path, status: str = "complete") -> CampaignBuilder:
    builder = CampaignBuilder(folder / "campaign", status=status).blocks(FASTER)
    write_report(builder.write())
    return builder


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


@pytest.mark.parametrize("status", ["complete", "failed", "interrupted"])
@pytest.mark.parametrize("name", ["slots/panda/01-1-A/outputs/image-0.png", "slots/panda/02-4-B/stdout.log"])
@pytest.mark.parametrize("is_missing", [False, True], ids=["changed", "missing"])
def test_changed_evidence_is_refused(tmp_path: Path, status: str, name: str, is_missing: bool) -> None:
    folder = signed(tmp_path, status).directory
    sums = (folder / "SHA256SUMS").read_bytes()
    (folder / name).unlink() if is_missing else (folder / name).write_bytes(b"x")
    with pytest.raises(FuseproofError, match=f"{name} {'is missing' if is_missing else 'is not the file'}") as caught:
        write_report(folder)
    assert "--check lists every difference" in caught.value.next_step
    assert sums == (folder / "SHA256SUMS").read_bytes()


@pytest.mark.parametrize(
    ("is_refused", "status"), [(True, "complete"), (True, "failed"), (False, "interrupted"), (False, "running")]
)
def test_result_counts_once_the_campaign_has_ended(tmp_path: Path, is_refused: bool, status: str) -> None:
    folder = signed(tmp_path, status).directory
    edit(folder / RESULT, wall_s=1.0)
    if not is_refused:
        assert [] == stale_files(write_report(folder))
        return
    with pytest.raises(FuseproofError, match=RESULT):
        write_report(folder)


def test_report_files_may_change_and_are_rendered_again(tmp_path: Path) -> None:
    folder = signed(tmp_path).directory
    (folder / "report.md").write_text("edited", encoding="utf-8")
    assert [] == stale_files(write_report(folder))


def test_resumed_campaign_is_signed_again(tmp_path: Path) -> None:
    """A failed campaign was signed; a resume began block 2 again, and marked the finished slots of its first try."""
    builder = CampaignBuilder(tmp_path / "campaign", status="failed").block([Run(worker_s=s) for s in FASTER[0]])
    builder.block([Run(worker_s=9.5), Run(state="invalid", reason_code="TIMEOUT", reason="too slow")], block=2)
    write_report(builder.write())
    builder.block([Run(worker_s=s) for s in FASTER[1]], block=2, attempt=2)
    builder.status = "complete"
    superseded = builder.directory / "slots/panda/02-1-B/result.json"
    edit(superseded, state="superseded", reason_code="SUPERSEDED", reason="block 2 starts again")
    assert 0 == write_report(builder.write()).exit_code()


def test_a_block_cannot_be_dropped_by_calling_it_superseded(tmp_path: Path) -> None:
    folder = signed(tmp_path).directory
    edit(folder / RESULT, state="superseded", reason_code="SUPERSEDED", reason="no")
    with pytest.raises(FuseproofError, match=RESULT):
        write_report(folder)


def test_running_slot_is_not_signed_before_it_ends(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "campaign", status="running", blocks=1)
    builder.block([*(Run(worker_s=s) for s in FASTER[0][:3]), Run(state="running")])
    folder = builder.write()
    (folder / "slots/panda/02-1-B").mkdir()
    (folder / "slots/panda/02-1-B/stdout.log").write_text("just begun", encoding="utf-8")
    assert [] == stale_files(write_report(folder))
    sums = (folder / "SHA256SUMS").read_text(encoding="utf-8")
    assert "01-3-B/stdout.log" in sums and "01-4-A" not in sums and "02-1-B" not in sums
    (folder / "slots/panda/01-4-A/stdout.log").write_text("more lines", encoding="utf-8")
    builder.status = "complete"
    edit(folder / "slots/panda/01-4-A/result.json", state="done")
    write_report(builder.write())
    assert "01-4-A/stdout.log" in (folder / "SHA256SUMS").read_text(encoding="utf-8")
