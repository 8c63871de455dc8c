"""Which modules of the VAE are replaced, and whether they are still the plain ones that the replacements reproduce.

Adapters replace convolutions, offloading and caching hook modules, quantisation changes weights: each would be bypassed
by code that reads ``module.weight`` itself, so each makes the sites decline, by name, at mount and at every call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from fuseproof.fastpaths.replacements import Replacement

BLOCKS = ("DownEncoderBlock2D", "UNetMidBlock2D", "UpDecoderBlock2D")
_KINDS = {"ResnetBlock2D": "residual_block", "Upsample2D": "upsampler", "Downsample2D": "downsampler"}


def replaced_modules(vae: Any) -> Iterator[tuple[str, str, Any]]:
    """Kind, name and module of everything whose forward is replaced."""
    for coder_name in ("encoder", "decoder"):
        coder = getattr(vae, coder_name)
        yield "coder", coder_name, coder
        for name, module in coder.named_modules():
            kind = _KINDS.get(type(module).__name__)
            if kind is not None:
                yield kind, f"{coder_name}.{name}", module
            elif type(module).__name__ == "Attention" and module.group_norm is not None:
                yield "norm", f"{coder_name}.{name}.group_norm", module.group_norm


def reject_reason(vae: Any) -> str | None:
    """The first module that is not what the replacements reproduce, or None."""
    for coder_name in ("encoder", "decoder"):
        coder: Any = getattr(vae, coder_name, None)
        if type(coder).__name__ != coder_name.capitalize():
            return f"{coder_name} is {type(coder).__name__}, the sites need {coder_name.capitalize()}"
        blocks = (coder.mid_block, *(coder.down_blocks if coder_name == "encoder" else coder.up_blocks))
        for block in blocks:
            if type(block).__name__ not in BLOCKS:
                return f"{coder_name} has a {type(block).__name__}, the sites know {', '.join(BLOCKS)}"
    for kind, name, module in replaced_modules(vae):
        if is_hooked(module):
            return f"{name} has a hook or another forward, which the sites would pass by"
        reason = structure_reason(kind, module) or change_in(*rewritten_children(kind, module))
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
    own = module.__dict__.get("forward")  # a copy of a mounted module has its class's forward as an attribute
    is_plain = own is None or getattr(own, "__func__", None) is type(module).forward
    return bool(not is_plain or module._forward_hooks or module._forward_pre_hooks)


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
