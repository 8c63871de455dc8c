"""The flags that spread one request over several devices: sglang's names, as dumps and command lines have them."""

from __future__ import annotations

PARALLEL_FLAGS = (
    "num_gpus",
    "tp_size",
    "sp_degree",
    "ulysses_degree",
    "ring_degree",
    "dp_size",
    "cfg_parallel_size",
    "enable_cfg_parallel",
)
