"""The kernels of the rewritten blocks, each behind the gate of its site."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.kernels import (
    gated_residual,
    gated_residual_rmsnorm_modulate,
    geglu,
    layernorm_modulate,
    qk_norm_rotate_half,
    rmsnorm_modulate,
)
from fuseproof.fastpaths.operations import GatedOperation
from fuseproof.fastpaths.sites.ernie_image.blocks import Operations


def gated_operations(gates: Mapping[str, Gate]) -> Operations:
    """One :class:`GatedOperation` a kernel; a site without a gate runs its reference."""

    def gated(site: str, name: str, operation: Any) -> GatedOperation:
        return GatedOperation(name, operation, gates.get(site))

    return Operations(
        rmsnorm_modulate=gated("rmsnorm_modulate", "rmsnorm_modulate", rmsnorm_modulate),
        gated_residual=gated("gated_residual", "gated_residual", gated_residual),
        gated_residual_rmsnorm_modulate=gated(
            "gated_residual", "gated_residual_rmsnorm_modulate", gated_residual_rmsnorm_modulate
        ),
        qk_norm_rotate_half=gated("qk_norm_rotate_half", "qk_norm_rotate_half", qk_norm_rotate_half),
        geglu=gated("geglu", "geglu", geglu),
        layernorm_modulate=gated("layernorm_modulate", "layernorm_modulate", layernorm_modulate),
    )
