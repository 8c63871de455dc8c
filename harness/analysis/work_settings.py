"""How the work is computed: the recorded settings in which arms may differ, and the flags that declare a difference."""

from __future__ import annotations

from fuseproof.harness.perf import determinism, graphs
from fuseproof.harness.perf.parallelism import PARALLEL_FLAGS

SETTINGS = {
    "backend": "backend",
    "backend_used": "backend",
    "dtype": "dtype",
    "device": "device",
    "attention_backend": "attention_backend",
    "enable_torch_compile": "enable_torch_compile",
    graphs.FLAG: graphs.FLAG,
    "quality": "quality",
    "guidance_skipped_steps": "quality",
    **{
        flag: flag
        for flag in (
            "performance_mode",
            *PARALLEL_FLAGS,
            "dit_cpu_offload",
            "dit_layerwise_offload",
            "text_encoder_cpu_offload",
            "image_encoder_cpu_offload",
            "vae_cpu_offload",
            "use_fsdp_inference",
            "dit_precision",
            "vae_precision",
            "text_encoder_precisions",
            "autocast",
            "disable_autocast",
            "batching_max_size",
        )
    },
}
"""How the work is computed → the flag that declares it: may differ between the arms only where an arm names it."""

RESIDENCY_FLAGS = frozenset(
    {"performance_mode", "device", "use_fsdp_inference", *(flag for flag in SETTINGS if flag.endswith("_offload"))}
)
SETTINGS_OF_SEVERAL = {"residency": RESIDENCY_FLAGS, "offload": RESIDENCY_FLAGS}
"""What several flags decide; any of them declares it."""

SOFTWARE = frozenset(
    {"torch threads", "TF32 policy", "rounding policy", determinism.HASH_SEED}
    | {*determinism.VARIABLES, *determinism.SWITCHES}
)
"""What no flag of `generate` decides, and versions besides: unequal unless the arms are other programs, or run
with variables that decide it, by the plan."""


def declaring_flags(field: str) -> frozenset[str]:
    """The flags of which any declares a difference in ``field``; empty for what is no setting."""
    own = SETTINGS.get(field)
    return SETTINGS_OF_SEVERAL.get(field, frozenset() if own is None else frozenset({own}))


def is_software(field: str) -> bool:
    """Whether ``field`` is a version, or a setting that software and its variables decide."""
    return field in SOFTWARE or field.endswith(" version")
