"""Before anything imports triton: where there is no GPU, kernels run in Triton's interpreter, in this process only."""

from __future__ import annotations

import os
import shutil

if shutil.which("nvidia-smi") is None:
    os.environ["TRITON_INTERPRET"] = "1"
    import triton
    import triton.language  # its own functions are interpreted only if the switch is on when they are defined

    triton.knobs.runtime.interpret = True
    del os.environ["TRITON_INTERPRET"]  # real processes that tests start run as a user's would
