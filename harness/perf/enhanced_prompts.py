"""Two runs that drew the same texts, one by its prompt enhancer and one from texts that were enhanced before."""

from __future__ import annotations

from fuseproof.harness.perf.dump import PerfDump

STAGE = "PromptEnhancementStage"
FIXED_STEP = "Give both arms --fixed-prompt-path with the texts to draw: then the enhancer runs in neither."
LONGEST_TEXT = 60


def same_texts_text(baseline: PerfDump, other: PerfDump) -> str | None:
    """That both drew the same enhanced texts and the enhancer ran in one of them only; None where that is not so."""
    texts = _texts_drawn(baseline)
    runs = [dump for dump in (baseline, other) if _enhances(dump)]
    if not texts or texts != _texts_drawn(other) or len(runs) != 1:
        return None
    stage_ms = runs[0].run_stages.get(STAGE)
    cost = "" if stage_ms is None else f", {stage_ms:.1f} ms"
    first = texts[0] if len(texts[0]) <= LONGEST_TEXT else f"{texts[0][:LONGEST_TEXT]}..."
    more = f" and {len(texts) - 1} more" if len(texts) > 1 else ""
    who = "the baseline" if runs[0] is baseline else runs[0].label
    return (
        f"both drew the same text (“{first}”{more}), and the prompt enhancer ({STAGE}{cost}) ran in {who} alone: "
        "the outputs may be compared, the times of the whole request may not"
    )


def needs_fixed_texts(fields: set[str]) -> bool:
    """Whether runs differ in whether they enhance, or in which texts they were given."""
    return bool(fields & {"use_pe", "fixed_prompt"})


def _texts_drawn(dump: PerfDump) -> list[str]:
    texts = [request.get("rewritten_prompt") for request in dump.requests]
    return [text for text in texts if isinstance(text, str)] if all(isinstance(text, str) for text in texts) else []


def _enhances(dump: PerfDump) -> bool:
    return dump.config.get("use_pe") is True
