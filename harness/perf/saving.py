"""Encoding and saving inside the worker's time, by the names of a dump's stages.

Our own dumps save outside it (``save_ms``), and so does sglang, except where it feeds the video encoder while decoding.
A total that contains saving is another timer than one that does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from fuseproof.harness.perf.dump import PerfDump

CODE = "SAVE_INSIDE"
NEXT_STEP = "Judge by denoise time where saving is not what is compared."

_SAVING = re.compile(
    r"sav(?:e(?!r)|ing)"
    r"|(?:mp4|ffmpeg|png|jpe?g|webp|outputs?|video_?file)_?(?:encod|writ|export|mux)"
    r"|(?:writ(?:e|ing)|export(?:ing)?)_?(?:output|video|image|frame|file|mp4)",
    re.IGNORECASE,
)
"""``SavingStage``, ``save_png``, ``ExportVideo``; neither ``TextEncodingStage`` nor a VAE that encodes an input."""


def saving_stages_ms(dump: PerfDump) -> dict[str, float]:
    """Stage → ms of the run for the stages inside the worker's time that encode or write outputs, by their names."""
    return {name: duration_ms for name, duration_ms in dump.run_stages.items() if _SAVING.search(name)}


def saves_inside(dump: PerfDump) -> bool | None:
    """Whether the worker's time contains saving; None where the dump names no stages."""
    return bool(saving_stages_ms(dump)) if dump.stages else None


def saving_inside_text(stages_ms: Iterable[str]) -> str | None:
    """``the worker's time contains saving: SavingStage``; None without such stages."""
    names = ", ".join(stages_ms)
    return f"the worker's time contains saving: {names}" if names else None
