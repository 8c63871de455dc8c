"""Which modules of the VAE are replaced, and whether they are still the plain ones that the replacements reproduce.

Adapters replace convolutions, offloading and caching hook modules, quantisation changes weights: each would be bypassed
by code that reads ``module.weight`` itself, so each makes the sites decline, by name, at mount. What may change with
the weights is asked again at every call; that all else stays as it was is what :mod:`watched_coder` compares.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from fuseproof.fastpaths.foreign_code import foreign_reason
from fuseproof.fastpaths.replacements import Replacement, runs_its_own

CODERS = ("encoder", "decoder")
BLOCKS = ("DownEncoderBlock2D", "UNetMidBlock2D", "UpDecoderBlock2D")
_KINDS = {"ResnetBlock2D": "residual_block", "Upsample2D": "upsampler", "Downsample2D": "downsampler"}

_SEATS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Conv2d: ("conv", "conv1", "conv2", "conv_shortcut", "conv_in", "conv_out"),
    nn.GroupNorm: ("norm1", "norm2", "conv_norm_out"),
    nn.SiLU: ("nonlinearity", "conv_act"),
    nn.Dropout: ("dropout",),
}


def replaced_modules(coder_name: str, coder: Any) -> Iterator[tuple[str, str, Any]]:
    """Kind, name and module of everything of ``coder`` whose forward is replaced."""
    yield "coder", coder_name, coder
    for name, module in coder.named_modules():
        kind = _KINDS.get(type(module).__name__)
        if kind is not None:
            yield kind, f"{coder_name}.{name}", module
        elif type(module).__name__ == "Attention" and module.group_norm is not None:
            yield "norm", f"{coder_name}.{name}.group_norm", module.group_norm


def reject_reason(vae: Any) -> str | None:
    """The first thing about the VAE that is not what the replacements reproduce: dtypes, or a module; or None."""
    dtypes = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in vae.parameters()})
    if dtypes != ["bfloat16"]:
        return f"weights are {', '.join(dtypes)}; the kernels need bfloat16 throughout"
    for coder_name in CODERS:
        coder: Any = getattr(vae, coder_name, None)
        if type(coder).__name__ != coder_name.capitalize():
            return f"{coder_name} is {type(coder).__name__}, the sites need {coder_name.capitalize()}"
        blocks = (coder.mid_block, *(coder.down_blocks if coder_name == "encoder" else coder.up_blocks))
        for block in blocks:
            if type(block).__name__ not in BLOCKS:
                return f"{coder_name} has a {type(block).__name__}, the sites know {', '.join(BLOCKS)}"
        reason = _coder_reason(coder_name, coder)
        if reason is not None:
            return reason
    return foreign_reason((name or "vae", module) for name, module in vae.named_modules())


def _coder_reason(coder_name: str, coder: Any) -> str | None:
    for kind, name, module in replaced_modules(coder_name, coder):
        if is_hooked(module):
            return f"{name} has a hook or another forward, which the sites would pass by"
        reason = structure_reason(kind, module) or change_in(*rewritten_children(kind, module)) or _seat_reason(module)
        if reason is not None:
            return f"{name}: {reason}"
    return None


def structure_reason(kind: str, module: Any) -> str | None:
    """What in the module's construction the replacement does not reproduce, or None."""
    if kind == "residual_block":
        return _residual_block_reason(module)
    if kind == "upsampler" and (module.norm is not None or module.use_conv_transpose or not module.interpolate):
        return "an upsampler with a norm, a transposed convolution or without interpolation"
    if kind in ("upsampler", "downsampler") and (not module.use_conv or module.norm is not None):
        return "a sampler without a convolution, or with a norm"
    if kind == "downsampler" and module.padding not in (0, 1):
        return f"padding is {module.padding}, the site needs 0 or 1"
    return None


def rewritten_children(kind: str, module: Any) -> tuple[Any, ...]:
    """The modules whose arithmetic the replacement takes over."""
    if kind == "residual_block":
        children = (module.norm1, module.conv1, module.norm2, module.conv2, module.nonlinearity, module.dropout)
        return children if module.conv_shortcut is None else (*children, module.conv_shortcut)
    if kind == "coder":
        return (module.conv_in, module.conv_norm_out, module.conv_act, module.conv_out)
    return (module,) if kind == "norm" else (module.conv,)


def change_in(*children: Any) -> str | None:
    """What about these modules the replacements cannot take: hooks, other classes, other weights; or None."""
    for child in children:
        kind = type(child).__name__
        is_ours = isinstance(child.__dict__.get("forward"), Replacement)
        if child._forward_hooks or child._forward_pre_hooks or (not is_ours and is_hooked(child)):
            return f"{kind} has a hook or another forward"
        if type(child) not in (nn.Conv2d, nn.GroupNorm, nn.SiLU, nn.Dropout):
            return f"{kind} is not a plain Conv2d, GroupNorm, SiLU or Dropout (an adapter or a quantised layer?)"
        reason = _weight_reason(child)
        if reason is not None:
            return reason
    return None


def is_hooked(module: nn.Module) -> bool:
    """Whether calling the module does anything besides its class's own forward."""
    return bool(not runs_its_own(module) or module._forward_hooks or module._forward_pre_hooks)


def _seat_reason(module: Any) -> str | None:
    """The first child in whose place the replacement computes something else: an activation other than SiLU, say."""
    for kind, seats in _SEATS.items():
        for seat in seats:
            child = getattr(module, seat, None)
            if child is not None and type(child) is not kind:
                return f"{seat} is {type(child).__name__}, the site needs {kind.__name__}"
    return None


def _residual_block_reason(block: Any) -> str | None:
    if block.time_emb_proj is not None or block.time_embedding_norm == "scale_shift":
        return "a residual block with a time embedding"
    if block.upsample is not None or block.downsample is not None:
        return "a residual block that samples up or down"
    if block.dropout.p:
        return f"dropout is {block.dropout.p}, the site needs 0"
    return None


def _weight_reason(child: Any) -> str | None:
    if isinstance(child, nn.Conv2d) and (child.bias is None or child.padding_mode != "zeros"):
        return "a convolution without bias, or with a padding other than zeros"
    if isinstance(child, nn.Conv2d) and not child.weight.is_contiguous():
        return "a convolution whose weight is not contiguous, which would choose the layout of its output"
    if isinstance(child, nn.GroupNorm) and not child.affine:
        return "a norm without weight and bias"
    for name, parameter in child.named_parameters(recurse=False):
        if type(parameter) is not nn.Parameter:
            return f"{type(child).__name__}.{name} is a {type(parameter).__name__} (a quantised layer?)"
    return None
