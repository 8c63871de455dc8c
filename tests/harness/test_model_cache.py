"""Whose files are whose in a cache root that campaigns share; nothing is fetched here."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import filelock
import pytest

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.campaign import model_places
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.interrupts import Interrupts
from fuseproof.harness.campaign.model_cache import CacheRoot, Claim
from fuseproof.harness.campaign.model_files import ClaimedModel, fetched_files, hub_cache, listing, usage_of
from fuseproof.harness.campaign.model_places import refuse_entangled_root, remove_empty_folders, remove_files
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
    assert ["root.id", "root.lock"] == sorted(path.name for path in root.state.iterdir())


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


def test_nothing_is_removed_through_a_link_that_took_the_repositorys_place(root: CacheRoot, stack: ExitStack) -> None:
    claim = claimed(stack, root, "one")
    fetch(root, claim, "model.safetensors", "x")
    folder, elsewhere = root.root / MODEL.folder, root.root.parent / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    ((_, removal),) = root.release(claim)
    assert (0, True) == (removal.removed.file_count, "is a link" in str(removal.kept_because))
    assert ["x", "model.safetensors"] == [name.rsplit("/", 1)[-1] for name in listing(elsewhere)]


@pytest.mark.parametrize("place", [MODEL.folder, ".fuseproof"])
def test_a_root_to_be_cleaned_may_hold_no_link_to_elsewhere(root: CacheRoot, place: str) -> None:
    (root.root.parent / "elsewhere").mkdir()
    root.root.mkdir()
    (root.root / place).symlink_to(root.root.parent / "elsewhere")
    with pytest.raises(UsageError, match="is a link"), root.claimed(root.root.parent / "c", [MODEL], cleans=True):
        pass
    assert [] == list((root.root.parent / "elsewhere").iterdir())


def test_a_folder_that_became_a_link_is_not_followed(root: CacheRoot, stack: ExitStack) -> None:
    """The names are listed first; what takes a folder's place between that and the removal is left alone."""
    claim = claimed(stack, root, "one")
    pointer = fetch(root, claim, "model.safetensors", "x")
    theirs = root.root.parent / "theirs"
    pointer.parent.rename(theirs)
    pointer.parent.symlink_to(theirs)
    remove_files(root.root, [str(pointer.relative_to(root.root))])
    remove_empty_folders(root.root, [str(pointer.parent.relative_to(root.root))])
    assert ["model.safetensors"] == [path.name for path in theirs.iterdir()]


def test_a_root_that_is_turned_elsewhere_while_we_run_loses_nothing(tmp_path: Path, stack: ExitStack) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    link = tmp_path / "root"
    link.symlink_to(tmp_path / "first")
    root = CacheRoot(link)
    claim = claimed(stack, root, "one")
    fetch(root, claim, "model.safetensors", "x")
    link.unlink()
    link.symlink_to(tmp_path / "second")
    theirs = fetch(CacheRoot(link), None, "model.safetensors", "x")
    root.release(claim)
    assert (True, []) == (theirs.is_file(), listing(tmp_path / "first" / MODEL.folder))


def claim_file(root: CacheRoot) -> Path:
    (file,) = root.state.glob("*.json")
    return file


def test_a_claim_that_is_gone_or_was_edited_removes_nothing(root: CacheRoot) -> None:
    pointer = fetch(root, None, "there.json", "x")
    with root.claimed(root.root.parent / "one", [MODEL], cleans=True) as claim:
        root.note_commit(claim, MODEL.model, COMMIT)
        claim_file(root).unlink()
        root.note_commit(claim, MODEL.model, COMMIT)
        claim.models = [dataclasses.replace(model, before=()) for model in claim.models]
        ((_, removal),) = root.release(claim)
    assert (True, True) == (pointer.is_file(), "is gone" in str(removal.kept_because))
    killed(root)
    edited = json.loads(claim_file(root).read_text())
    edited["models"][0]["before"] = []
    claim_file(root).write_text(json.dumps(edited))
    with (
        pytest.raises(FuseproofError, match="it was changed after it was written"),
        root.claimed(root.root.parent / "next", [MODEL], cleans=True),
    ):
        pass
    assert pointer.is_file()


def test_a_copied_root_is_not_cleaned_by_the_claims_in_it(root: CacheRoot, tmp_path: Path) -> None:
    killed(root)
    shutil.copytree(root.root, tmp_path / "copy", symlinks=True)
    copy = CacheRoot(tmp_path / "copy")
    with copy.claimed(tmp_path / "next", [MODEL], cleans=True) as claim:
        copy.note_commit(claim, MODEL.model, COMMIT)
        assert [] == copy.sweep(claim)
        copy.release(claim)
    assert ["killed", "killed.safetensors"] == left(copy)


def test_what_is_no_file_of_the_hubs_client_is_not_ours(root: CacheRoot, stack: ExitStack) -> None:
    """Of a command everything new is meant, of the files that a hub's client writes."""
    by_slots = ClaimedModel("owner/model", "cell/A", by_slots=True)
    claim = stack.enter_context(root.claimed(root.root.parent / "one", [by_slots], cleans=True))
    fetch(root, None, "model.safetensors", "x")
    mine = root.root / MODEL.folder / "notes" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    (root.root / MODEL.folder / "empty").mkdir()
    root.release(claim)
    assert ["empty", "notes"] == sorted(path.name for path in (root.root / MODEL.folder).iterdir())
    assert "mine" == mine.read_text()


def test_without_a_resolved_commit_nothing_is_known_to_be_ours(root: CacheRoot, stack: ExitStack) -> None:
    claim = claimed(stack, root, "one")
    theirs = fetch(root, None, "model.safetensors", "x")
    root.release(claim)
    assert theirs.is_file()


def test_an_unfinished_download_of_another_process_is_kept(root: CacheRoot, stack: ExitStack) -> None:
    claim = claimed(stack, root, "one")
    fetch(root, claim, "model.safetensors", "x")
    blobs = root.root / MODEL.folder / "blobs"
    for name in ("ours.incomplete", "theirs.1234.incomplete"):
        (blobs / name).write_text("half")
    lock = root.root / ".locks" / MODEL.folder / "theirs.lock"
    lock.parent.mkdir(parents=True)
    with filelock.FileLock(lock):
        root.release(claim)
    assert ["theirs.1234.incomplete"] == left(root)


@pytest.mark.parametrize("kind", ["campaign", "own", "mount"])
def test_a_repository_folder_with_something_else_in_it_is_left_whole(
    root: CacheRoot, stack: ExitStack, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = claimed(stack, root, "one")
    pointer = fetch(root, claim, "model.safetensors", "x")
    if kind == "campaign":
        (pointer.parent / "campaign.json").write_text("{}")
    elif kind == "own":  # as a bind mount would show it, with a name of its own
        Path(claim.campaign).symlink_to(pointer.parent)
    else:
        mounts = root.root.parent / "mountinfo"
        mounts.write_text(f"36 35 8:1 / {pointer.parent.parent} rw - ext4 /dev/sda1 rw\n")
        monkeypatch.setattr(model_places, "MOUNTS", mounts)
    ((_, removal),) = root.release(claim)
    assert (True, True) == (pointer.is_file(), removal.kept_because is not None)


@pytest.mark.parametrize(
    ("root_name", "campaign", "said"),
    [
        pytest.param("c/cache", "c", "lies in the campaign's own folder", id="root-in-campaign"),
        pytest.param("c", "c", "lies in the campaign's own folder", id="one-folder"),
        pytest.param("old/cache", "c", "the folder of another campaign", id="root-in-another-campaign"),
        pytest.param("hub/models--a--b/cache", "c", "belongs to another cache", id="root-in-a-repository"),
        pytest.param("hub", f"hub/{MODEL.folder}/c", "could remove it", id="campaign-in-a-repository"),
        pytest.param("hub", "hub/MODELS--new--one/c", "could remove it", id="campaign-in-a-repository-to-come"),
        pytest.param("hub", "link/c", "could remove it", id="campaign-by-a-link"),
        pytest.param("hub", "hub/.fuseproof/c", "could remove it", id="campaign-in-our-state"),
    ],
)
def test_a_root_and_evidence_never_lie_in_one_another(tmp_path: Path, root_name: str, campaign: str, said: str) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "campaign.json").write_text("{}")
    (tmp_path / "hub" / MODEL.folder).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "hub" / MODEL.folder)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=said):
        refuse_entangled_root(tmp_path / root_name, tmp_path / campaign)
    assert before == sorted(tmp_path.rglob("*"))


def test_a_root_beside_or_around_its_campaigns_is_fine(tmp_path: Path) -> None:
    (tmp_path / "hub" / MODEL.folder).mkdir(parents=True)
    refuse_entangled_root(tmp_path / "hub", tmp_path / "c")
    refuse_entangled_root(tmp_path / "hub", tmp_path / "hub" / "campaigns" / "c")


def test_one_folder_by_two_names_is_one_repository(root: CacheRoot, stack: ExitStack) -> None:
    """As on a disk without case: a running campaign that spells the model otherwise needs it all the same."""
    one = claimed(stack, root, "one")
    fetch(root, one, "model.safetensors", "x")
    other = ClaimedModel("Owner/Model", "cell/A")
    (root.root / other.folder).symlink_to(MODEL.folder)
    stack.enter_context(root.claimed(root.root.parent / "two", [other], cleans=False))
    ((_, removal),) = root.release(one)
    assert ("x", True) == (left(root)[0], str(removal.kept_because).endswith("two needs them"))
