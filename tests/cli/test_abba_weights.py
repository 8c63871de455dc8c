"""Weights of a campaign over a real local hub: before slot 1, offline slots, and a root left as it was found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fuseproof.cli.abba_options import options_from
from fuseproof.cli.abba_weights import HubWeights, weights_of
from fuseproof.cli.abba_weights_wanted import wanted_weights
from fuseproof.cli.main import main
from fuseproof.errors import FuseproofError, InvalidMeasurementError, UsageError
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.interrupts import Interrupts
from fuseproof.harness.campaign.model_ledger import chosen_root, read
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.campaign.session import CampaignSession
from fuseproof.schedules.order import PlannedSlot
from fuseproof.schedules.plan import Plan, plan_from
from tests.cli.fake_hub import NEW, OLD, FakeHub, serving
from tests.harness.test_runner import Notes, ScriptedExecutor
from tests.pipelines.fake_checkpoints import write_fake_checkpoint

MODEL = "owner/model"
FOLDER = "models--owner--model"
RESOLVE = "from fuseproof.pipelines.embedded import resolve_model as r; print(r('owner/model', None).revision)"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with one model; the ordinary cache and the locks are the test's own."""
    fake = FakeHub()
    fake.add(MODEL, write_fake_checkpoint(tmp_path / "published"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("HF_HUB_OFFLINE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "ordinary"))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    with serving(fake):
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        yield fake


def plan(flags: str = f"--model-path {MODEL}", **arms: dict[str, Any]) -> Plan:
    values = {"baseline": {"name": "off", "flags": "--fastpaths=off"}, "candidate": {"name": "auto"}}
    return plan_from(
        {
            "name": "weights",
            "blocks": 1,
            "warmup_slots": 0,
            "retries": 0,
            "arms": {role: values[role] | arms.get(role, {}) for role in values},
            "cells": [{"name": "cell", "flags": f"--prompt panda {flags}"}],
        },
        "test",
    )


@dataclass
class Watching(ScriptedExecutor):
    """A scripted executor that looks at what its slots are told, and at the root while they run."""

    root: Path | None = None
    told: list[dict[str, str]] = field(default_factory=list)
    held: list[int] = field(default_factory=list)

    def execute(self, campaign: Campaign, slot: PlannedSlot, interrupts: Interrupts) -> SlotRecord:
        self.told.append(dict(campaign.slot_variables.get((slot.cell, slot.arm), {})))
        self.held.append(0 if self.root is None else len(weights_in(self.root)))
        return super().execute(campaign, slot, interrupts)


def weights_in(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.glob("models--*/snapshots/*/*/*.safetensors"))


def run(weights: HubWeights, directory: Path, executor: ScriptedExecutor, wanted: Plan | None = None) -> str:
    session = CampaignSession(["fuseproof"], {}, executor, Notes(), weights=weights)
    return session.start(wanted or plan(), directory).status


def test_fetched_before_slot_1_read_offline_and_removed_at_the_end(hub: FakeHub, tmp_path: Path) -> None:
    root, told = tmp_path / "root", []
    executor = Watching(root=root)
    assert "complete" == run(HubWeights(root, True, told.append), tmp_path / "c", executor)
    assert [{"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(root)}] * 4 == executor.told
    assert [3] * 4 == executor.held
    assert not (root / FOLDER).exists()
    fetched, cleaned = read(tmp_path / "c")
    assert ("fetched", MODEL, None, OLD, "cell/A, cell/B") == tuple(
        fetched[key] for key in ("event", "model", "revision", "commit", "label")
    )
    empty = {"file_count": 0, "weight_file_count": 0, "total_bytes": 0}
    assert (empty, 10, 3) == (fetched["before"], fetched["files"], fetched["weight_files"])
    assert ("cleaned", "complete", fetched["after"], empty) == tuple(
        cleaned[key] for key in ("event", "exit_reason", "before", "after")
    )
    assert (10, 3, fetched["bytes"]) == (cleaned["files"], cleaned["weight_files"], cleaned["bytes"])
    assert cleaned["cleaned_at_unix_s"] > 1e9
    assert any(text.startswith(f"fetching {MODEL} at {OLD} before slot 1") for text in told)
    assert any(text.startswith(f"removed the weights of {MODEL} (10 files") for text in told)


def test_without_flags_the_ordinary_cache_is_filled_once_and_kept(hub: FakeHub, tmp_path: Path) -> None:
    executor = Watching(root=tmp_path / "ordinary")
    run(HubWeights(), tmp_path / "first", executor)
    assert [{"HF_HUB_OFFLINE": "1"}] * 4 == executor.told
    assert 3 == len(weights_in(tmp_path / "ordinary"))
    assert not (tmp_path / "ordinary" / ".fuseproof").exists()
    hub.asked.clear()
    run(HubWeights(), tmp_path / "second", Watching())
    assert [] == hub.downloads()
    assert ["fetched", "found"] == [read(tmp_path / name)[0]["event"] for name in ("first", "second")]
    environment = {**os.environ, **executor.told[0], "HF_ENDPOINT": "http://127.0.0.1:9"}
    answer = subprocess.run(
        [sys.executable, "-c", RESOLVE], check=False, env=environment, capture_output=True, text=True
    )
    assert OLD == answer.stdout.strip(), answer.stderr


def test_an_interrupted_campaign_is_cleaned_and_nothing_else_is(hub: FakeHub, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / FOLDER / "snapshots" / NEW).mkdir(parents=True)
    kept = [
        root / FOLDER / "snapshots" / NEW / "mine.txt",
        root / "models--other--one" / "blobs" / "x",
        root / "notes.txt",
    ]
    for file in kept:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")
    executor = ScriptedExecutor({"cell/01-2-B": "INTERRUPTED"})
    assert "interrupted" == run(HubWeights(root, True), tmp_path / "c", executor)
    assert ["mine"] * 3 == [file.read_text() for file in kept]
    assert [] == weights_in(root)
    assert "interrupted" == read(tmp_path / "c")[-1]["exit_reason"]


def test_an_interrupted_fetch_ends_at_once_and_leaves_nothing(hub: FakeHub, tmp_path: Path) -> None:
    hub.stalls |= {"model.safetensors", "diffusion_pytorch_model.safetensors"}
    interrupter = threading.Thread(target=lambda: hub.stalled.wait(20) and os.kill(os.getpid(), signal.SIGINT))
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        run(HubWeights(tmp_path / "root", True), tmp_path / "c", Watching())
    interrupter.join()
    assert not (tmp_path / "root" / FOLDER).exists()
    assert not (tmp_path / "c").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from fuseproof.cli.abba_weights import HubWeights
import tempfile; tempfile.tempdir = sys.argv[1]
from tests.cli.test_abba_weights import plan, run, Watching
class Killing(Watching):
    def execute(self, campaign, slot, interrupts):
        os.kill(os.getpid(), signal.SIGKILL)
run(HubWeights(Path(sys.argv[1]) / "root", True), Path(sys.argv[1]) / "c", Killing())
"""


def test_a_killed_campaign_is_cleaned_up_by_its_resumption(hub: FakeHub, tmp_path: Path) -> None:
    root, executor = tmp_path / "root", Watching(root=tmp_path / "root")
    words = [sys.executable, "-c", KILLED, str(tmp_path)]
    killed = subprocess.run(words, check=False, cwd=Path(__file__).parents[2])
    assert (-signal.SIGKILL, 3) == (killed.returncode, len(weights_in(root)))
    session = CampaignSession(["fuseproof"], {}, executor, Notes(), weights=HubWeights())
    assert "complete" == session.resume(tmp_path / "c", None).status
    assert [3] * 4 == executor.held
    assert not (root / FOLDER).exists()
    assert ["fetched", "found", "cleaned"] == [line["event"] for line in read(tmp_path / "c")]


def test_too_little_space_is_said_before_anything_is_fetched(hub: FakeHub, tmp_path: Path) -> None:
    hub.sizes["transformer/diffusion_pytorch_model.safetensors"] = 2**60
    with pytest.raises(FuseproofError, match=r"need 1073741824\.0 GiB more in .* and \d+\.\d GiB are free") as caught:
        run(HubWeights(tmp_path / "root"), tmp_path / "c", Watching())
    assert "--model-cache-root" in str(caught.value.next_step)
    assert ["model_index.json"] == hub.downloads()
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        pytest.param("gated", f"{MODEL} is gated", id="gated"),
        pytest.param("offline", "the hub cannot be reached", id="no-network"),
    ],
)
def test_weights_that_cannot_be_had_are_one_sentence(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str, told: str
) -> None:
    if trouble == "gated":
        hub.gated.add(MODEL)
    else:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FuseproofError, match=told) as caught:
        run(HubWeights(), tmp_path / "c", Watching())
    assert (1, True) == (caught.value.exit_code, bool(caught.value.next_step))
    assert not (tmp_path / "c").exists()


def test_two_commits_of_one_model_in_a_cell_are_refused(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(MODEL, tmp_path / "published", NEW, "v2")
    with pytest.raises(InvalidMeasurementError, match=f"arm A runs {OLD[:12]}, arm B runs {NEW[:12]}"):
        run(HubWeights(), tmp_path / "c", Watching(), plan(candidate={"flags": "--revision v2"}))


@pytest.mark.parametrize(
    ("flags", "arms", "expected"),
    [
        pytest.param(f"--model-path {MODEL}", {}, [(MODEL, None, False)], id="hub"),
        pytest.param(f"--model-path={MODEL} --revision v1", {}, [(MODEL, "v1", False)], id="revision"),
        pytest.param(f"--model-path {MODEL} --load-format dummy", {}, [], id="dummy"),
        pytest.param("--model-path embedded:longcat-image", {}, [], id="embedded"),
        pytest.param("--model-path local/folder", {}, [], id="local"),
        pytest.param(
            f"--model-path {MODEL}",
            {"candidate": {"command": "x --model-path a/b {perf_dump}"}},
            [(MODEL, None, False), ("a/b", None, True)],
            id="command",
        ),
    ],
)
def test_what_is_wanted(
    tmp_path: Path, flags: str, arms: dict[str, Any], expected: list[tuple[str, str | None, bool]]
) -> None:
    (tmp_path / "local" / "folder").mkdir(parents=True)
    wanted = wanted_weights(plan(flags, **arms), tmp_path, tmp_path / "root")
    assert expected == [(want.model, want.revision, want.by_command) for want in wanted]


def test_a_command_is_told_of_the_root_and_stays_online(hub: FakeHub, tmp_path: Path) -> None:
    executor, root = Watching(), tmp_path / "root"
    command = {"flags": "", "command": f"{sys.executable} -c pass {{perf_dump}}"}
    run(HubWeights(root), tmp_path / "c", executor, plan(candidate=command))
    assert [{"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(root)}, {"HF_HUB_CACHE": str(root)}] == executor.told[:2]


def test_cleaning_needs_a_root_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ordinary = tmp_path / "hf" / "hub"
    ordinary.mkdir(parents=True)
    (tmp_path / "link").symlink_to(ordinary)
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with pytest.raises(UsageError, match="--cleanup-model-cache removes files from --model-cache-root"):
        options_from({"cleanup_model_cache": True})
    for shared in (ordinary, tmp_path, tmp_path / "link", ordinary / "below"):
        flags = {"cleanup_model_cache": True, "model_cache_root": str(shared)}
        with pytest.raises(UsageError, match="shared hub cache"):
            weights_of(options_from(flags), print)
    assert HubWeights(tmp_path / "own", True, print) == weights_of(
        options_from({"cleanup_model_cache": True, "model_cache_root": str(tmp_path / "own")}), print
    )


def test_one_cache_is_named_once(tmp_path: Path) -> None:
    own = plan(candidate={"env": {"HF_HOME": "/elsewhere"}})
    with pytest.raises(UsageError, match="sets HF_HOME, and --model-cache-root names"):
        wanted_weights(own, tmp_path, tmp_path / "root")
    caches = {want.cache for want in wanted_weights(own, tmp_path, None)}
    assert Path("/elsewhere/hub") in caches


def test_a_campaign_never_lies_in_what_its_cache_keeps(hub: FakeHub, tmp_path: Path) -> None:
    root = tmp_path / "root"
    with pytest.raises(UsageError, match="could remove it"):
        run(HubWeights(root, True), root / FOLDER / "c", Watching())
    with pytest.raises(UsageError, match="lies in the campaign's own folder"):
        run(HubWeights(tmp_path / "c" / "cache"), tmp_path / "c", Watching())
    assert (False, False, []) == (root.exists(), (tmp_path / "c").exists(), hub.asked)


def test_a_dry_run_refuses_what_the_run_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["abba", "--aa", f"--model-cache-root={tmp_path / 'c' / 'cache'}", f"--output={tmp_path / 'c'}"]
    assert 2 == main([*words, "--dry-run"])
    assert "lies in the campaign's own folder" in capsys.readouterr().err
    assert [] == list(tmp_path.iterdir())


def test_a_linked_repository_is_refused_before_anything_is_fetched(hub: FakeHub, tmp_path: Path) -> None:
    root, theirs = tmp_path / "root", tmp_path / "theirs"
    for folder in (root, theirs):
        folder.mkdir()
    (root / FOLDER).symlink_to(theirs)
    with pytest.raises(UsageError, match=f"would remove weights of {MODEL}, and .*{FOLDER} is a link"):
        run(HubWeights(root, True), tmp_path / "c", Watching())
    assert ([], []) == (hub.downloads(), list(theirs.iterdir()))


SECRET_ROOT = "root_hf_abcdefghijklmnopqrstuv"


@pytest.mark.parametrize("named", ["redacted", "home", "edited"])
def test_a_resumed_campaign_knows_its_root_or_asks_for_it(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """The ledger is made to be published, so it may not hold the path that the campaign began with."""
    monkeypatch.setenv("HOME", str(tmp_path / "anna"))
    root = {"redacted": tmp_path / SECRET_ROOT, "home": tmp_path / "anna" / "root", "edited": tmp_path / "root"}[named]
    interrupted = ScriptedExecutor({"cell/01-2-B": "INTERRUPTED"})
    assert "interrupted" == run(HubWeights(root, True), tmp_path / "c", interrupted)
    monkeypatch.setenv("HOME", str(tmp_path / "bert"))
    if named == "edited":
        other = tmp_path / "other"
        run(HubWeights(other), tmp_path / "d", Watching())
        ledger = tmp_path / "c" / "model-cache.jsonl"
        ledger.write_text(ledger.read_text().replace(str(root), str(other)))
    before = sorted(tmp_path.rglob("models--*"))
    session = CampaignSession(["fuseproof"], {}, Watching(), Notes(), weights=HubWeights())
    with pytest.raises(UsageError, match="no folder here is the one that this campaign began with") as caught:
        session.resume(tmp_path / "c", None)
    assert "--model-cache-root DIR --cleanup-model-cache" in str(caught.value.next_step)
    assert before == sorted(tmp_path.rglob("models--*"))
    session.weights = HubWeights(root, True)
    assert "complete" == session.resume(tmp_path / "c", None).status
    assert not (root / FOLDER).exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param("[1]", r"line 1: \[1\] is no JSON object", id="list"),
        pytest.param("null", "line 1: None is no JSON object", id="null"),
        pytest.param("{", "cannot be read", id="half-a-line"),
        pytest.param('{"root": true, "cache_dir": 5}', "key cache_dir is 5, and a text was expected", id="number"),
        pytest.param('{"root": true, "cache_dir": "/x"}', "key root_id is None", id="no-id"),
        pytest.param(
            '{"root": true, "cache_dir": "~nouserx/q", "root_id": "x", "cleans": false}', "no folder here", id="no-home"
        ),
        pytest.param('{"root": true, "cache_dir": "/x", "root_id": "x", "cleans": 1}', "key cleans is 1", id="cleans"),
        pytest.param('{"root": true, "cache_dir": "q", "root_id": "x", "cleans": true}', "no folder here", id="other"),
    ],
)
def test_an_odd_ledger_is_one_sentence_and_makes_no_folder(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "model-cache.jsonl").write_text(line + "\n")
    with pytest.raises(FuseproofError, match=said):
        chosen_root(tmp_path)
    assert ["model-cache.jsonl"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.parametrize("text", ["", " "])
@pytest.mark.parametrize("field", ["from_stored", "model_cache_root", "resume", "output"])
def test_an_empty_path_is_not_the_present_folder(field: str, text: str) -> None:
    with pytest.raises(UsageError, match=r"--[a-z-]+ is ' ?'; a path was expected"):
        options_from({field: text})
