"""The kernels of the rewritten blocks, each behind the gate of its site."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.kernels import (
    attention_mlp_gelu,
    gated_residual,
    gated_residual_layernorm_modulate,
    gelu_tanh,
    layernorm_modulate,
    qk_norm_rope,
)
from fuseproof.fastpaths.operations import GatedOperation
from fuseproof.fastpaths.sites.longcat_image.blocks import Operations


def gated_operations(gates: Mapping[str, Gate]) -> Operations:
    """One :class:`GatedOperation` a kernel; a site without a gate runs its reference."""

    def gated(site: str, name: str, operation: Any) -> GatedOperation:
        return GatedOperation(name, operation, gates.get(site))

    return Operations(
        layernorm_modulate=gated("layernorm_modulate", "layernorm_modulate", layernorm_modulate),
        gated_residual=gated("gated_residual", "gated_residual", gated_residual),
        gated_residual_layernorm_modulate=gated(
            "gated_residual", "gated_residual_layernorm_modulate", gated_residual_layernorm_modulate
        ),
        qk_norm_rope=gated("qk_norm_rope", "qk_norm_rope", qk_norm_rope),
        gelu_tanh=gated("gelu_tanh", "gelu_tanh", gelu_tanh),
        attention_mlp_gelu=gated("gelu_tanh", "attention_mlp_gelu", attention_mlp_gelu),
    )
