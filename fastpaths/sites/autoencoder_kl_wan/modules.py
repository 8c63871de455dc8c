"""Which modules of the VAE are replaced, and whether they are still the plain ones that the replacements reproduce.

Adapters, offloading, caching and quantisation would each be bypassed by code that reads ``module.weight`` itself, so
each makes the sites decline, by name, at mount. That all stays as it was is what :mod:`watched_coder` compares.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from fuseproof.fastpaths.foreign_code import foreign_method_reason, foreign_reason
from fuseproof.fastpaths.replacements import Replacement
from fuseproof.fastpaths.sites.plain_modules import is_hooked

CODERS = ("encoder", "decoder")
CLASS_OF_CODER = {"encoder": "WanEncoder3d", "decoder": "WanDecoder3d"}
METHODS_OF_A_REQUEST = ("_decode", "_encode")
METHODS = (*METHODS_OF_A_REQUEST, "decode", "encode", "tiled_decode", "tiled_encode", "clear_cache")
DTYPES = (torch.bfloat16, torch.float32)
_KINDS = {
    "WanResidualBlock": "residual_block",
    "WanResample": "sampler",
    "WanResidualUpBlock": "up_block",
    "WanResidualDownBlock": "down_block",
    "WanAttentionBlock": "attention",
    "WanRMS_norm": "norm",
}
_KNOWN = {
    *_KINDS, *CLASS_OF_CODER.values(), "WanMidBlock", "WanUpBlock", "AvgDown3D", "DupUp3D",
    "WanUpsample", "WanCausalConv3d", "Conv2d", "SiLU", "Dropout", "Identity", "ZeroPad2d", "Sequential", "ModuleList",
}  # fmt: skip


def replaced_modules(coder_name: str, coder: Any) -> Iterator[tuple[str, str, Any]]:
    """Kind, name and module of everything of ``coder`` whose forward may be replaced."""
    yield "coder", coder_name, coder
    for name, module in coder.named_modules():
        kind = _KINDS.get(type(module).__name__)
        if kind is not None:
            yield kind, f"{coder_name}.{name}", module


def reject_reason(vae: Any) -> str | None:
    """The first thing about the VAE that is not what the replacements reproduce, or None."""
    for coder_name in CODERS:
        coder: Any = getattr(vae, coder_name, None)
        if type(coder).__name__ != CLASS_OF_CODER[coder_name]:
            return f"{coder_name} is {type(coder).__name__}, the sites need {CLASS_OF_CODER[coder_name]}"
        reason = _coder_reason(coder_name, coder)
        if reason is not None:
            return reason
    dtypes = sorted({str(weight.dtype).removeprefix("torch.") for weight in _convolution_weights(vae)})
    if len(dtypes) != 1 or dtypes[0] not in ("bfloat16", "float32"):
        return f"convolutions are {', '.join(dtypes)}; the kernels need bfloat16 or float32 throughout"
    return foreign_reason((name or "vae", module) for name, module in vae.named_modules()) or _method_reason(vae)


def change_in(*children: Any) -> str | None:
    """What about these modules the replacements cannot take: hooks, other weights; or None."""
    for child in children:
        is_ours = isinstance(child.__dict__.get("forward"), Replacement)
        if child._forward_hooks or child._forward_pre_hooks or (not is_ours and is_hooked(child)):
            return f"{type(child).__name__} has a hook or another forward"
        for name, weight in child.named_parameters(recurse=False):
            reason = _weight_reason(weight)
            if reason is not None:
                return f"{type(child).__name__}.{name} is {reason}"
    return None


def _coder_reason(coder_name: str, coder: Any) -> str | None:
    for name, module in coder.named_modules():
        full = f"{coder_name}.{name}".rstrip(".")
        if type(module).__name__ not in _KNOWN:
            return f"{full} is {type(module).__name__}, which the sites do not know"
        if is_hooked(module):
            return f"{full} has a hook or another forward, which the sites would pass by"
        reason = _structure_reason(module) or change_in(module)
        if reason is not None:
            return f"{full}: {reason}"
    if type(coder.nonlinearity) is not nn.SiLU:
        return f"{coder_name}.nonlinearity is {type(coder.nonlinearity).__name__}, the sites need SiLU"
    layers = coder.down_blocks if coder_name == "encoder" else ()
    if any(type(layer).__name__ == "WanAttentionBlock" for layer in layers):
        return f"{coder_name} has attention among its down blocks, which diffusers calls without its cache"
    return None


def _structure_reason(module: Any) -> str | None:
    """What in the module's construction the replacement does not reproduce, or None."""
    kind = type(module).__name__
    if kind == "WanRMS_norm":
        if not module.channel_first or isinstance(module.bias, torch.Tensor) or module.bias != 0.0:
            return "a norm with a bias, or of channels that are not first"
    elif kind == "WanResidualBlock":
        if type(module.nonlinearity) is not nn.SiLU:
            return f"nonlinearity is {type(module.nonlinearity).__name__}, the site needs SiLU"
        if module.dropout.p:
            return f"dropout is {module.dropout.p}, the site needs 0"
    elif kind == "WanResample":
        if module.mode not in ("upsample2d", "upsample3d", "downsample2d", "downsample3d"):
            return f"mode is {module.mode}, which the site does not know"
    elif isinstance(module, nn.Conv2d | nn.Conv3d):
        return _convolution_reason(module)
    return None


def _convolution_reason(convolution: Any) -> str | None:
    if convolution.bias is None or convolution.padding_mode != "zeros" or convolution.groups != 1:
        return "a convolution without bias, with groups, or with a padding other than zeros"
    if isinstance(convolution, nn.Conv3d) and tuple(convolution.padding) != (0, 0, 0):
        return "a causal convolution that pads by itself"
    return None


def _weight_reason(weight: Any) -> str | None:
    if type(weight) is not nn.Parameter:
        return f"a {type(weight).__name__} (a quantised layer?)"
    if weight.dtype not in DTYPES:
        return f"{weight.dtype}; the kernels need torch.bfloat16 or torch.float32"
    if 0 not in weight.stride() and not weight.is_contiguous():
        return "not contiguous, which would choose the layout of the output"
    return None


def _convolution_weights(vae: Any) -> Iterator[torch.Tensor]:
    for name in CODERS:
        for module in getattr(vae, name).modules():
            if isinstance(module, nn.Conv2d | nn.Conv3d):
                yield module.weight


def _method_reason(vae: Any) -> str | None:
    """A method of the VAE that is not diffusers' own; a copy of a mounted VAE has its own ones among its attributes."""
    replaced = [name for name in METHODS if name in vars(vae) and not _is_own(vae, vars(vae)[name], name)]
    if replaced:
        return f"vae is one of which {replaced[0]} was replaced"
    reason = foreign_method_reason(vae, [name for name in METHODS if name not in vars(vae)])
    return None if reason is None else f"vae {reason}"


def _is_own(vae: Any, method: Any, name: str) -> bool:
    is_bound = isinstance(method, types.MethodType) and method.__self__ is vae
    return is_bound and method.__func__ is getattr(type(vae), name)
