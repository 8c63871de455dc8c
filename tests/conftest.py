"""Before anything imports triton: where there is no GPU, kernels run in Triton's interpreter, in this process only."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile

if shutil.which("nvidia-smi") is None:
    os.environ["TRITON_INTERPRET"] = "1"
    import triton
    import triton.language  # its own functions are interpreted only if the switch is on when they are defined

    triton.knobs.propagate_env = False  # a test that patches the switch would leave it in the environment
    triton.knobs.runtime.interpret = True
    del os.environ["TRITON_INTERPRET"]  # real processes that tests start run as a user's would

    from tests.triton_interpreter import find_builtins_once

    find_builtins_once()

if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    # Campaigns of two workers would refuse each other: their locks lie in the temporary folder.
    os.environ["TMPDIR"] = tempfile.mkdtemp(prefix=f"fuseproof-{worker}-")
    tempfile.tempdir = None

# A shell starts background jobs with interrupts ignored, and their children inherit that: tests of Ctrl-C would wait.
for interrupt in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(interrupt) == signal.SIG_IGN:
        signal.signal(interrupt, signal.default_int_handler if interrupt == signal.SIGINT else signal.SIG_DFL)
