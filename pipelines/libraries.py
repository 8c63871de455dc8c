"""Keeps diffusers, transformers and huggingface_hub off stderr, which belongs to fuseproof's own messages."""

from __future__ import annotations

import os

QUIET_ENVIRONMENT = {
    "TRANSFORMERS_VERBOSITY": "error",
    "DIFFUSERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}


def silence_libraries() -> None:
    """Import diffusers and transformers without their warnings and progress bars.

    The environment must say so before the first import, because both libraries read it while they are imported; where
    something else was first (a file of fast paths), they are told again. A verbosity that the user set stays. What is
    silenced is never the only sign of a fault: loading checks every tensor itself, and requests are validated before
    they run.
    """
    for name, value in QUIET_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import diffusers
    import transformers

    for library, name in ((transformers, "TRANSFORMERS_VERBOSITY"), (diffusers, "DIFFUSERS_VERBOSITY")):
        if os.environ[name] == QUIET_ENVIRONMENT[name]:
            library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()
