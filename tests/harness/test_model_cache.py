"""Whose files are whose in a cache root that campaigns share; nothing is fetched here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fuseproof.errors import FuseproofError
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.interrupts import Interrupts
from fuseproof.harness.campaign.model_cache import CacheRoot, Claim
from fuseproof.harness.campaign.model_files import ClaimedModel, fetched_files, hub_cache, listing, usage_of
from fuseproof.harness.campaign.slots import ProcessExecutor
from fuseproof.schedules.order import timed_slots
from tests.harness.fake_commands import fake_plan

MODEL = ClaimedModel("owner/model", "cell/A")
COMMIT, OTHER = "a" * 40, "b" * 40


@pytest.fixture
def root(tmp_path: Path) -> CacheRoot:
    return CacheRoot(tmp_path / "root")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as open_claims:
        yield open_claims


def fetch(cache: CacheRoot, claim: Claim | None, name: str, blob: str, commit: str = COMMIT) -> Path:
    """One file as the hub's client leaves it, for a claim or for somebody without one."""
    folder = cache.root / MODEL.folder
    pointer = folder / "snapshots" / commit / name
    pointer.parent.mkdir(parents=True, exist_ok=True)
    (folder / "blobs").mkdir(exist_ok=True)
    (folder / "blobs" / blob).write_text(blob)
    pointer.symlink_to(Path("../../blobs") / blob)
    if claim is not None:
        cache.note_commit(claim, MODEL.model, commit)
    return pointer


def claimed(stack: ExitStack, cache: CacheRoot, name: str, *, cleans: bool = True) -> Claim:
    return stack.enter_context(cache.claimed(cache.root.parent / name, [MODEL], cleans=cleans))


def left(cache: CacheRoot) -> list[str]:
    return [path.rsplit("/", 1)[-1] for path in listing(cache.root / MODEL.folder)]


def test_only_what_came_after_the_claim_is_removed(root: CacheRoot, stack: ExitStack) -> None:
    fetch(root, None, "there.json", "x1")
    claim = claimed(stack, root, "one")
    fetch(root, claim, "new.safetensors", "x2")
    ((model, removal),) = root.release(claim)
    assert ((COMMIT,), 1, 1, 2) == (
        model.commits,
        removal.removed.file_count,
        removal.removed.weight_file_count,
        removal.removed.total_bytes,
    )
    assert ["x1", "there.json"] == left(root)


def test_another_revision_and_the_blobs_it_shares_are_not_ours(root: CacheRoot, stack: ExitStack) -> None:
    claim = claimed(stack, root, "one")
    fetch(root, claim, "config.json", "shared")
    fetch(root, claim, "model.safetensors", "own")
    fetch(root, None, "config.json", "shared", OTHER)
    fetch(root, None, "theirs.safetensors", "theirs", OTHER)
    root.release(claim)
    assert sorted(["shared", "theirs", "config.json", "theirs.safetensors"]) == sorted(left(root))


def test_what_a_running_campaign_needs_is_kept_and_it_cleans_up_for_both(root: CacheRoot, stack: ExitStack) -> None:
    one = claimed(stack, root, "one")
    fetch(root, one, "model.safetensors", "x")
    two = claimed(stack, root, "two")
    root.note_commit(two, MODEL.model, COMMIT)
    ((_, removal),) = root.release(one)
    assert (0, True) == (removal.removed.file_count, str(removal.kept_because).endswith("two needs them"))
    assert ["x", "model.safetensors"] == left(root)
    root.release(two)
    assert [] == left(root)


def test_a_running_campaign_that_does_not_clean_keeps_them(root: CacheRoot, stack: ExitStack) -> None:
    one = claimed(stack, root, "one")
    fetch(root, one, "model.safetensors", "x")
    two = claimed(stack, root, "two", cleans=False)
    root.release(one)
    root.release(two)
    assert ["x", "model.safetensors"] == left(root)


def killed(root: CacheRoot, name: str = "killed") -> None:
    """A campaign that fetched one file and then was killed: its claim stays, its lock does not."""
    with root.claimed(root.root.parent / name, [MODEL], cleans=True) as claim:
        fetch(root, claim, f"{name}.safetensors", name)


def test_the_next_run_cleans_up_after_a_killed_one(root: CacheRoot) -> None:
    killed(root)
    fetch(root, None, "config.json", "elsewhere", OTHER)
    with root.claimed(root.root.parent / "next", [ClaimedModel("owner/else", "cell/A")], cleans=False) as claim:
        ((other, model, removal),) = root.sweep(claim)
        assert ("killed", MODEL.model, 1) == (Path(other.campaign).name, model.model, removal.removed.file_count)
        assert [] == root.sweep(claim)
        root.release(claim)
    assert ["elsewhere", "config.json"] == left(root)
    assert ["root.lock"] == sorted(path.name for path in root.state.iterdir())


@pytest.mark.parametrize(("cleans", "kept"), [(True, []), (False, ["killed", "killed.safetensors"])])
def test_the_next_run_of_the_same_model_takes_over_what_was_left(
    root: CacheRoot, cleans: bool, kept: list[str]
) -> None:
    killed(root)
    with root.claimed(root.root.parent / "next", [MODEL], cleans=cleans) as claim:
        assert [] == root.sweep(claim), "it is needed now"
        root.note_commit(claim, MODEL.model, COMMIT)
        root.release(claim)
    assert kept == left(root)


def test_a_resumed_campaign_knows_what_it_fetched_before_it_was_killed(root: CacheRoot) -> None:
    fetch(root, None, "there.json", "x1")
    killed(root)
    with root.claimed(root.root.parent / "killed", [], cleans=True) as claim:
        root.release(claim)
    assert ["x1", "there.json"] == left(root)


def test_one_campaign_folder_has_one_claim(root: CacheRoot, stack: ExitStack) -> None:
    claimed(stack, root, "one")
    with pytest.raises(FuseproofError, match="Another campaign of the same folder uses the model cache"):
        claimed(stack, root, "one")


def test_what_a_command_fetched_is_told_apart_only_while_it_runs(root: CacheRoot) -> None:
    pointer = fetch(root, None, "model.safetensors", "x")
    by_slots = ClaimedModel("owner/model", "cell/A", by_slots=True)
    folder = root.root / MODEL.folder
    assert ["blobs/x", f"snapshots/{COMMIT}/{pointer.name}"] == fetched_files(folder, by_slots)
    assert [] == fetched_files(folder, by_slots, is_over=True)


def test_usage_counts_links_as_files_and_bytes_once(root: CacheRoot) -> None:
    fetch(root, None, "model.safetensors", "four")
    fetch(root, None, "copy.json", "four")
    usage = usage_of(root.root / MODEL.folder)
    assert (2, 1, 4) == (usage.file_count, usage.weight_file_count, usage.total_bytes)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        pytest.param({"HF_HUB_CACHE": "/a"}, "/a", id="cache"),
        pytest.param({"HUGGINGFACE_HUB_CACHE": "/a"}, "/a", id="old-name"),
        pytest.param({"HF_HOME": "/a"}, "/a/hub", id="home"),
        pytest.param({"XDG_CACHE_HOME": "/a"}, "/a/huggingface/hub", id="xdg"),
        pytest.param({}, str(Path("~/.cache/huggingface/hub").expanduser()), id="default"),
    ],
)
def test_the_hub_cache_is_where_its_client_looks(variables: dict[str, str], expected: str) -> None:
    assert expected == str(hub_cache(variables))


def test_slots_are_told_and_an_arms_own_variables_win(tmp_path: Path) -> None:
    plan = fake_plan({}, {"worker_ms": 1})
    arm = plan.arms.baseline.model_copy(update={"env": {"HF_HUB_OFFLINE": "0"}})
    plan = plan.model_copy(update={"arms": plan.arms.model_copy(update={"baseline": arm})})
    campaign = Campaign.create(tmp_path / "c", plan, command=["x"], environment={}, created="2026-01-01T00:00:00+00:00")
    campaign.slot_variables = {("cell", "A"): {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": "/elsewhere/weights"}}
    record = ProcessExecutor().execute(campaign, timed_slots("cell", 1, 1, "ABBA")[0], Interrupts())
    told = {name: value for name, value in record.environment_overrides.items() if name.startswith("HF_")}
    assert {"HF_HUB_OFFLINE": "0", "HF_HUB_CACHE": "/elsewhere/weights"} == told


def test_a_root_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("a file")
    with (
        pytest.raises(FuseproofError, match=r"The model cache .*root cannot be used"),
        CacheRoot(tmp_path / "root").claimed(tmp_path / "c", [MODEL], cleans=True),
    ):
        pass
