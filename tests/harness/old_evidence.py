"""Folders of old evidence as people keep them: perf dumps in sglang's form, logs, pictures, labelled by name."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fuseproof.harness.analysis.campaign import CampaignAnalysis, analyse
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.importing.campaign import ImportRequest, import_campaign
from fuseproof.harness.report import stale_files, write_report
from tests.harness.campaign_builder import picture_png

DATA = Path(__file__).resolve().parents[1] / "data" / "perf_dumps"
KLEIN, LONGLIVE2 = DATA / "klein", DATA / "longlive2"
FIRST = datetime(2026, 9, 20, 12, 0, tzinfo=UTC)
SECONDS = {"a1": 10.0, "b1": 9.5, "b2": 9.51, "a2": 10.02}
COMMITS = {"a": "a" * 40, "b": "b" * 40}
LOG = """Processing 1 grouped request(s)
[DenoisingStage] finished in 9.0000 seconds
Warmed-up request processed in {worker:.2f} seconds (with warmup excluded)
Pixel data generated successfully in {client:.2f} seconds
Output saved to /home/somebody/outputs/picture.png
"""


def sglang_dump(seconds: float, written: datetime | None = FIRST, *, arm: str = "a", **more: Any) -> dict[str, Any]:
    """A dump of one run; ``more`` replaces keys."""
    stamp = {} if written is None else {"timestamp": written.isoformat()}
    return {
        **stamp,
        "request_id": f"{seconds}-{written}",
        "commit_hash": COMMITS[arm],
        "tag": "cli_generate",
        "total_duration_ms": seconds * 1000.0,
        "steps": [{"name": "DenoisingStage", "duration_ms": seconds * 900.0}],
        "denoise_steps_ms": [{"step": 0, "duration_ms": seconds * 900.0}],
        "memory_checkpoints": {},
        "meta": {"prompt": ["a lamp"], "model": "org/name"},
        **more,
    }


def write_dump(path: Path, values: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


def write_block(
    folder: Path,
    block: int = 1,
    order: str = "a1 b1 b2 a2",
    *,
    name: str = "r{block}-{arm}",
    is_timed: bool = True,
    **more: Any,
) -> list[Path]:
    """Dumps of one block that ran in ``order``, a minute apart; ``more`` replaces keys of all of them."""
    paths = []
    for index, arm in enumerate(order.split()):
        written = FIRST + timedelta(minutes=10 * block + index) if is_timed else None
        seconds = SECONDS[arm] + 0.001 * block
        values = sglang_dump(seconds, written, arm=arm[0], request_id=f"{block}-{arm}") | more
        paths.append(write_dump(folder / f"{name.format(block=block, arm=arm)}.json", values))
    return paths


def write_log(dump: Path, *, client: float | None = None, extra: str = "", is_warm: bool = True) -> Path:
    """``X.log`` beside ``X.json``, with the times of that dump."""
    worker = json.loads(dump.read_text(encoding="utf-8"))["total_duration_ms"] / 1000.0
    text = LOG.format(worker=worker, client=worker + 0.3 if client is None else client)
    lines = [line for line in text.splitlines() if is_warm or "Warmed-up" not in line]
    path = dump.with_suffix(".log")
    path.write_text("\n".join([*lines, extra, ""]), encoding="utf-8")
    return path


def write_picture(dump: Path, number: int = 1) -> Path:
    path = dump.with_suffix(".png")
    path.write_bytes(picture_png(number))
    return path


def imported(tmp_path: Path, *sources: Path, name: str = "campaign", **request: Any) -> CampaignAnalysis:
    """Import, render, and read back; the report and its checksums must be what the folder says."""
    folder = import_campaign(ImportRequest(sources, tmp_path / name, **request), write_report)
    analysis = analyse(Campaign.open(folder))
    assert [] == stale_files(analysis)
    return analysis


def with_manifest(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "evidence.toml"
    path.write_text(text, encoding="utf-8")
    return path


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def origin_of(analysis: CampaignAnalysis) -> Any:
    assert analysis.campaign.origin is not None
    return analysis.campaign.origin


ORDER = ("a1", "b1", "b2", "a2")
