from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import huggingface_hub
import pytest
from huggingface_hub import errors

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines.embedded import resolve_model
from fuseproof.pipelines.hub import is_repository_id
from tests.pipelines.fake_checkpoints import MODEL_INDEX, write_fake_checkpoint, write_json

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SECRET = "hf_secretsecretsecret"
REPOSITORY = "meituan-longcat/LongCat-Image"


class Answer:
    """What the hub client reads of an HTTP answer."""

    def __init__(self, status_code: int) -> None:
        self.headers: dict[str, str] = {}
        self.request = None
        self.status_code = status_code


def http(kind: Any, status: int) -> Any:
    return kind(f"{status} for url https://user:{SECRET}@huggingface.co/{REPOSITORY}", response=Answer(status))


def caused_by(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def raising(error: Exception) -> Callable[..., NoReturn]:
    def fail(*positional: object, **named: object) -> NoReturn:
        raise error

    return fail


FAILURES = {
    "gated": (http(errors.GatedRepoError, 403), r"is gated: .* accepted its licence", "HF_TOKEN"),
    "not-found": (http(errors.RepositoryNotFoundError, 404), "does not exist on the hub, or it is private", "HF_TOKEN"),
    "private": (http(errors.RepositoryNotFoundError, 401), "or it is private", "HF_TOKEN"),
    "bad-token": (http(errors.HfHubHTTPError, 401), r"refuses access .*HTTP 401", "HF_TOKEN is valid"),
    "forbidden": (http(errors.DisabledRepoError, 403), r"refuses access .*HTTP 403", "HF_TOKEN"),
    "hub-down": (http(errors.HfHubHTTPError, 503), "answered HTTP 503", "Try again"),
    "no-revision": (http(errors.RevisionNotFoundError, 404), "has no revision 'v9'", "--revision"),
    "no-index": (http(errors.RemoteEntryNotFoundError, 404), r"has no model_index\.json", "Diffusers"),
    "offline": (
        errors.OfflineModeIsEnabled(SECRET),
        r"not completely in the local hub cache.*OfflineMode",
        "HF_HUB_OFFLINE",
    ),
    "not-cached": (errors.LocalEntryNotFoundError(SECRET), "not completely in the local hub cache", "Connect"),
    "no-network": (
        caused_by(errors.LocalEntryNotFoundError(SECRET), errors.HTTPError(SECRET)),
        r"hub cannot be reached \(HTTPError\)",
        "Connect",
    ),
    "hub-down-behind-cache": (
        caused_by(errors.LocalEntryNotFoundError(SECRET), http(errors.HfHubHTTPError, 500)),
        "answered HTTP 500",
        "Try again",
    ),
    "disk-full": (
        OSError(errno.ENOSPC, "No space left on device"),
        "cannot be stored: No space left on device",
        "HF_HOME",
    ),
    "transfer-broken": (RuntimeError(SECRET), r"cannot be reached \(RuntimeError\)", "Connect"),
}


@pytest.mark.parametrize(("error", "expected", "next_step"), FAILURES.values(), ids=FAILURES)
def test_a_failed_download_is_one_sentence_without_token(
    error: Exception, expected: str, next_step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", raising(error))
    with pytest.raises(FuseproofError, match=expected) as caught:
        resolve_model(REPOSITORY, "v9")
    assert (2 if isinstance(error, errors.RepositoryNotFoundError) and "gated" not in expected else 1) == (
        caught.value.exit_code
    )
    assert REPOSITORY in caught.value.message
    assert next_step in str(caught.value.next_step)
    assert SECRET not in f"{caught.value.message}{caught.value.next_step}"
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("code", "next_step", "error", "repository"),
    [
        (2, "Did you mean baidu/ERNIE-Image? For", http(errors.RepositoryNotFoundError, 404), "baidu/ERNIE-Imag"),
        (2, "Check the name. For", http(errors.RepositoryNotFoundError, 404), "someone/else"),
        (2, "Did you mean baidu/ERNIE-Image? If not, c", errors.LocalEntryNotFoundError(SECRET), "baidu/ernie-image"),
        (1, "Connect", errors.LocalEntryNotFoundError(SECRET), "baidu/ERNIE-Image"),
        (1, "Connect", errors.LocalEntryNotFoundError(SECRET), "someone/else"),
    ],
    ids=["misspelt", "unknown", "misspelt-offline", "right-offline", "unknown-offline"],
)
def test_a_misspelt_id_is_told_from_a_hub_that_cannot_be_reached(
    code: int, next_step: str, error: Exception, repository: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", raising(error))
    with pytest.raises(FuseproofError) as caught:
        resolve_model(repository, None)
    assert code == caught.value.exit_code
    assert str(caught.value.next_step).startswith(next_step)


class FakeHub:
    """Serves one folder as a snapshot, and remembers what was asked for."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "snapshots" / COMMIT
        self.asked: list[dict[str, Any]] = []

    def hf_hub_download(self, repository: str, name: str, revision: str | None) -> str:
        self.asked.append({"repository": repository, "name": name, "revision": revision})
        return str(self.folder / name)

    def snapshot_download(self, repository: str, **named: Any) -> str:
        self.asked.append({"repository": repository, **named})
        return str(self.folder)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(tmp_path)
    write_fake_checkpoint(fake.folder)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fake.hf_hub_download)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot_download)
    return fake


def test_the_resolved_commit_is_recorded_and_pinned(hub: FakeHub) -> None:
    resolved = resolve_model(REPOSITORY, "main")
    assert (resolved.source, resolved.revision, resolved.folder) == ("hub", COMMIT, hub.folder)
    assert (resolved.requested, resolved.content_sha256) == (REPOSITORY, None)
    assert [asked["revision"] for asked in hub.asked] == ["main", COMMIT]
    assert hub.asked[1]["allow_patterns"] == [
        "model_index.json",
        "scheduler/*",
        "text_encoder/*",
        "tokenizer/*",
        "transformer/*",
        "vae/*",
    ]
    assert "*.bin" in hub.asked[1]["ignore_patterns"]


def test_an_unsupported_family_is_refused_before_its_weights_are_fetched(hub: FakeHub) -> None:
    write_json(hub.folder / "model_index.json", {**MODEL_INDEX, "_class_name": "FluxPipeline"})
    with pytest.raises(UsageError, match=r"FLUX\.1"):
        resolve_model(REPOSITORY, None)
    assert [asked.get("name") for asked in hub.asked] == ["model_index.json"]


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        (True, "meituan-longcat/LongCat-Image"),
        (True, "a/b.c_d-1"),
        (False, "longcat"),
        (False, "a/b/c"),
        (False, "./a"),
        (False, "../a"),
        (False, "/a"),
        (False, "a/"),
        (False, "a b/c"),
        (False, "https://x/y"),
    ],
)
def test_only_owner_slash_name_is_a_repository(expected: bool, text: str) -> None:
    assert expected is is_repository_id(text)
