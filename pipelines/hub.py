"""Model folders from the Hugging Face hub: the family is judged first, then only the needed files are fetched.

Every failure becomes one sentence of our own. Messages of the hub client are never passed on, because they can hold
request headers and addresses, and with them a token.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines.checkpoint_marker import families_with_options
from fuseproof.pipelines.checkpoints import MODEL_INDEX, listed_components, read_model_index
from fuseproof.pipelines.families import close_model_id

REPOSITORY_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
CONNECT = "connect (and unset HF_HUB_OFFLINE), or pass the path of a downloaded model folder."
NEVER_NEEDED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.msgpack", "*.h5", "*.onnx", "*.gguf")


@dataclass(frozen=True)
class Snapshot:
    """A downloaded model folder and the commit that it holds."""

    folder: Path
    commit: str


def is_repository_id(text: str) -> bool:
    """True for ``owner/name``."""
    return REPOSITORY_ID.fullmatch(text) is not None


def download_snapshot(repository: str, revision: str | None) -> Snapshot:
    """Fetch ``repository`` at ``revision`` (None is its default branch), or find it in the hub's own cache."""
    return fetch_snapshot(_located(repository, revision, None))


def cached_snapshot(repository: str) -> Snapshot | None:
    """What the hub's own cache has of ``repository`` at its default branch; None where that is nothing. No network."""
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(huggingface_hub.snapshot_download(repository, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    return Snapshot(folder, folder.name)


@dataclass(frozen=True)
class NeededFiles:
    """What loading needs of a repository, at which commit, in which cache (None is the hub's own)."""

    repository: str
    revision: str | None
    commit: str
    patterns: tuple[str, ...]
    cache: Path | None


def needed_files(repository: str, revision: str | None, cache: Path) -> NeededFiles:
    """Resolve the commit and judge the family; fetches ``model_index.json`` and nothing else."""
    return _located(repository, revision, cache)


def missing_bytes(needed: NeededFiles) -> int | None:
    """How much of the files is not in the cache yet; None where the hub cannot be asked."""
    import huggingface_hub
    from huggingface_hub.errors import DryRunError

    try:
        with _explaining(needed.repository, needed.revision):
            files = huggingface_hub.snapshot_download(needed.repository, dry_run=True, **_arguments(needed))
    except FuseproofError as error:
        if isinstance(error.__context__, DryRunError):
            return None
        raise
    return sum(file.file_size or 0 for file in files if file.will_download)


def fetch_snapshot(needed: NeededFiles) -> Snapshot:
    """Fetch what is missing of ``needed``; one sentence for every failure."""
    import huggingface_hub

    with _explaining(needed.repository, needed.revision):
        folder = huggingface_hub.snapshot_download(needed.repository, **_arguments(needed))
    return Snapshot(Path(folder), needed.commit)


def _located(repository: str, revision: str | None, cache: Path | None) -> NeededFiles:
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    import huggingface_hub

    own_cache = {} if cache is None else {"cache_dir": cache}
    with _explaining(repository, revision):
        index_path = Path(huggingface_hub.hf_hub_download(repository, MODEL_INDEX, revision=revision, **own_cache))
        index = read_model_index(index_path.parent)
    family = families_with_options(index["_class_name"], index, repository)[0]
    components = listed_components(index, family, index_path.parent)
    patterns = (MODEL_INDEX, *(f"{name}/*" for name in components))
    return NeededFiles(repository, revision, index_path.parent.name, patterns, cache)


def _arguments(needed: NeededFiles) -> dict[str, Any]:
    return {
        "revision": needed.commit,
        "allow_patterns": list(needed.patterns),
        "ignore_patterns": list(NEVER_NEEDED),
        **({} if needed.cache is None else {"cache_dir": needed.cache}),
    }


@contextmanager
def _explaining(repository: str, revision: str | None) -> Iterator[None]:
    """Turn whatever the hub client raises into one sentence of our own."""
    from huggingface_hub.errors import HTTPError  # the base class of whatever HTTP client the hub library uses

    try:
        yield
    except (OSError, ValueError, RuntimeError, HTTPError) as error:
        raise _explained(error, repository, revision) from None


def _explained(error: Exception, repository: str, revision: str | None) -> FuseproofError:
    """One sentence for what the hub client raised. The order matters: a gated repository is also "not found"."""
    from huggingface_hub import errors

    at = f" at revision {revision!r}" if revision else ""
    if isinstance(error, errors.HFValidationError):
        return UsageError(f"{repository!r} is not a repository id of the form owner/name.", next_step="Check the name.")
    if isinstance(error, errors.GatedRepoError):
        return FuseproofError(
            f"{repository} is gated: the hub gives it only to accounts that accepted its licence.",
            next_step=f"Accept the licence on huggingface.co/{repository} and set HF_TOKEN.",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return UsageError(
            f"{repository} does not exist on the hub, or it is private, and there is no local folder of that name.",
            next_step=f"{_did_you_mean(repository) or 'Check the name.'} For a private repository set HF_TOKEN.",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return FuseproofError(f"{repository} has no revision {revision!r}.", next_step="Check --revision.")
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return FuseproofError(
            f"{repository}{at} has no {MODEL_INDEX}, so it is not a pipeline in the Diffusers layout.",
            next_step="Use the repository (or revision) with the Diffusers files.",
        )
    if isinstance(error, errors.HfHubHTTPError):
        return _explained_status(error.response.status_code, repository, at)
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
        return FuseproofError(
            f"{repository}{at} cannot be stored: {error.strerror}.",
            next_step="Free space for it, or set HF_HOME to another folder.",
        )
    cause = error.__cause__ or error
    if isinstance(cause, errors.HfHubHTTPError):
        return _explained_status(cause.response.status_code, repository, at)
    hint = _did_you_mean(repository)
    unreachable = FuseproofError if hint is None else UsageError  # a misspelling is one wherever it is found
    return unreachable(
        f"{repository}{at} is not completely in the local hub cache, the hub cannot be reached "
        f"({type(cause).__name__}), and there is no local folder of that name.",
        next_step=f"{hint} If not, {CONNECT}" if hint else f"C{CONNECT[1:]}",
    )


def _did_you_mean(repository: str) -> str | None:
    close = close_model_id(repository)
    return None if close is None else f"Did you mean {close}?"


def _explained_status(status: int, repository: str, at: str) -> FuseproofError:
    if status in {401, 403}:
        return FuseproofError(
            f"The hub refuses access to {repository}{at} (HTTP {status}).",
            next_step="Check that HF_TOKEN is valid and that its account may read this repository.",
        )
    return FuseproofError(
        f"The hub answered HTTP {status} for {repository}{at}.",
        next_step="Try again later, or pass the path of a downloaded model folder.",
    )
