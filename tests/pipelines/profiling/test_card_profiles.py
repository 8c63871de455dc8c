"""What was recorded on an H200 (torch 2.11) makes a profile that its own strict reader takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuseproof.harness.profiles.reading import read_profile
from fuseproof.pipelines.profiling.profile import Seen, tables
from tests.harness.profiles.samples import profile
from tests.pipelines.profiling.event_lists import STAGE, recorded

OWN = ("stages", "steps", "rows", "sites", "chains", "attribution")


@pytest.mark.parametrize("name, reference", [("eager", None), ("fused", None), ("graph", "fused")])
def test_a_recording_of_a_card_is_a_profile_that_can_be_read(tmp_path: Path, name: str, reference: str | None) -> None:
    recording, names = recorded(f"longcat_{name}")
    eager = None if reference is None else recorded(f"longcat_{reference}")[0]
    found = tables(
        Seen((recording,), eager), names, {"sites": {}}, steps_of_request={STAGE: 8}, bandwidth_gb_s=4000.0, paths=()
    )
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(profile(is_fused=True) | {part: found[part] for part in OWN}))
    read = read_profile(file)
    assert len(found["rows"]) == len(read.rows)
    assert found["attribution"]["to_site_or_module"] >= 0.98
    assert 0 < sum(row["device_us"] for row in found["rows"])
