"""The whole loop in real processes, as a user types it: a picture, its dump, a campaign, its report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuseproof.pipelines.checkpoint_marker import RANDOM, RANDOM_WARNING
from fuseproof.pipelines.embedded import embedded_weights
from fuseproof.pipelines.model_cache import CACHE_VARIABLE

pytestmark = [pytest.mark.slow_process, pytest.mark.timeout(600)]

HELD_OR_REWRITTEN = {"context_embedding", "rotary_tables", "timestep_embedding", "modulation", "packed_blocks"}
SMALL = ("--width=64", "--height=64", "--num-inference-steps=2")
# diffusers' quotation splitting goes through a set of strings: its order follows PYTHONHASHSEED.
TWO_CONTRACTIONS = "a cat that can't sleep because it's raining"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A user's environment without our own settings, and a model cache that all processes here share."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONHASHSEED", "NO_COLOR")}
    cache = str(tmp_path_factory.mktemp("model-cache"))
    return {**inherited, CACHE_VARIABLE: cache, "OMP_NUM_THREADS": "1"}


def fuseproof(environment: dict[str, str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fuseproof", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_fresh_processes_and_both_backends_give_the_same_bits(environment, tmp_path):
    dumps, weights = [], embedded_weights("longcat-image")
    for backend in ("native", "diffusers"):
        done = fuseproof(
            environment, tmp_path, "generate", f"--prompt={TWO_CONTRACTIONS}", *SMALL, "--warmup",
            f"--backend={backend}", f"--perf-dump-path={backend}.json", f"--output-file-name={backend}.png",
        )  # fmt: skip
        told = f"fuseproof: warning: {RANDOM_WARNING}\n" if weights == RANDOM else ""
        assert (0, told) == (done.returncode, done.stderr)
        assert f"Output saved to outputs/{backend}.png" in done.stdout
        assert (tmp_path / "outputs" / f"{backend}.png").is_file()
        dumps.append(json.loads((tmp_path / f"{backend}.json").read_text()))
    for level in ("raw_sha256", "latents_sha256", "pixels_sha256", "file_sha256"):
        assert 1 == len({dump["outputs"][0][level] for dump in dumps}), level
    assert ["0"] * 2 == [dump["environment"]["python_hash_seed"] for dump in dumps]
    assert [weights] * 2 == [dump["config"]["weights_kind"] for dump in dumps]
    states = [{name: site["state"] for name, site in dump["fastpaths"]["sites"].items()} for dump in dumps]
    assert HELD_OR_REWRITTEN == {name for name, state in states[0].items() if state == "fused"}
    assert {"declined"} == {state for name, state in states[0].items() if name not in HELD_OR_REWRITTEN}
    assert {"off"} == set(states[1].values())


def test_a_campaign_ends_in_a_report_that_renders_again_byte_for_byte(environment, tmp_path):
    done = fuseproof(
        environment, tmp_path, "abba", "embedded", "--blocks=1", "--allow-busy", "--output=campaign",
        "--flags", " ".join(SMALL),
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr
    assert "INCONCLUSIVE" in done.stdout, "one block is never directional"
    slots = sorted(folder.name for folder in (tmp_path / "campaign" / "slots" / "shapes").iterdir())
    assert ["01-0-A", "01-1-A", "01-2-B", "01-3-B", "01-4-A"] == slots
    results = [
        json.loads((tmp_path / "campaign" / "slots" / "shapes" / slot / "result.json").read_text())
        for slot in slots[1:]
    ]
    assert 1 == len({result["outputs"][0]["raw_sha256"] for result in results}), "lossless: every slot has equal bits"
    assert [False, True, True, False] == [
        any(site["calls_fused"] for site in result["fastpaths"]["sites"].values()) for result in results
    ]
    assert all(result["memory"]["peak_rss_mib"] > 100 for result in results)
    rendered = {
        name: (tmp_path / "campaign" / name).read_bytes() for name in ("report.md", "report.html", "report.json")
    }
    assert b"Outputs: identical (4 of 4 equal in raw arrays)" in rendered["report.md"]
    again = fuseproof(environment, tmp_path, "report", "campaign")
    assert 0 == again.returncode, again.stderr
    assert rendered == {name: (tmp_path / "campaign" / name).read_bytes() for name in rendered}
