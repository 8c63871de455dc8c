"""Model folders from the Hugging Face hub: the family is judged first, then only the needed files are fetched.

Every failure becomes one sentence of our own. Messages of the hub client are never passed on, because they can hold
request headers and addresses, and with them a token.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines.checkpoints import MODEL_INDEX, listed_components, read_model_index
from fuseproof.pipelines.families import family_of_pipeline_class

REPOSITORY_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
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
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    import huggingface_hub
    from huggingface_hub.errors import HTTPError  # the base class of whatever HTTP client the hub library uses

    try:
        index_path = Path(huggingface_hub.hf_hub_download(repository, MODEL_INDEX, revision=revision))
        commit = index_path.parent.name
        index = read_model_index(index_path.parent)
        family = family_of_pipeline_class(index["_class_name"])
        components = listed_components(index, family, index_path.parent)
        folder = huggingface_hub.snapshot_download(
            repository,
            revision=commit,
            allow_patterns=[MODEL_INDEX, *(f"{name}/*" for name in components)],
            ignore_patterns=list(NEVER_NEEDED),
        )
    except (OSError, ValueError, RuntimeError, HTTPError) as error:
        raise _explained(error, repository, revision) from None
    return Snapshot(Path(folder), commit)


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
        return FuseproofError(
            f"{repository} does not exist on the hub, or it is private, and there is no local folder of that name.",
            next_step="Check the name; for a private repository set HF_TOKEN.",
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
    return FuseproofError(
        f"{repository}{at} is not completely in the local hub cache, the hub cannot be reached "
        f"({type(cause).__name__}), and there is no local folder of that name.",
        next_step="Connect (and unset HF_HUB_OFFLINE), or pass the path of a downloaded model folder.",
    )


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
