"""python norm_weights.py CHECKPOINT: norm_q and norm_k by the rotary frequency of their channels, highest first."""

import sys
from pathlib import Path

from safetensors.torch import load_file

SHOWN = (0, 1, 2, 3, 4, 6, 8, 12, 16, 27)
weights = load_file(Path(sys.argv[1]) / "transformer" / "diffusion_pytorch_model.safetensors")
for name, weight in weights.items():
    if "norm_q" in name or "norm_k" in name:
        channels = weight.float()
        by_axis = [channels[start : start + 56].view(28, 2).mean(1)[list(SHOWN)] for start in (16, 72)]
        rows, columns = (" ".join(f"{value:.2f}" for value in values) for values in by_axis)
        print(f"{name}: modality {channels[:16].mean():.2f}; rows {rows}; columns {columns}")
