"""What an arm's process printed last, for the sentence that says how it ended."""

from __future__ import annotations

from pathlib import Path

LOG_LINES = 2


def last_words(log: Path) -> str:
    """The last lines of a log, redacted, on one line."""
    from fuseproof.harness.machine.redaction import redact

    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return redact(" / ".join(lines[-LOG_LINES:])).removesuffix(".") or "it printed nothing"
