"""Published checkpoints whose families come in a later release, known by name so that nothing is downloaded first."""

from __future__ import annotations

from pathlib import Path

from fuseproof.errors import UsageError

LATER_MODELS = {
    "meituan-longcat/LongCat-Image-Edit": "LongCat-Image-Edit",
    "meituan-longcat/LongCat-Image-Edit-Turbo": "LongCat-Image-Edit-Turbo",
    "Rabinovich/LongLive-2.0-5B-Diffusers": "LongLive 2",
    "baidu/ERNIE-Image": "ERNIE-Image",
    "baidu/ERNIE-Image-Turbo": "ERNIE-Image-Turbo",
}


def refuse_later_models(model_path: str) -> None:
    """Raise :class:`UsageError` for such an id, unless a local folder has that name."""
    title = LATER_MODELS.get(model_path)
    if title is not None and not Path(model_path).is_dir():
        raise UsageError(
            f"{title} ({model_path}) is not supported yet.",
            next_step="`fuseproof models list` shows the families that run today.",
        )
