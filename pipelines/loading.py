"""Strict loading: one dtype but for what stays in fp32, every tensor from the checkpoint, nothing made up.

diffusers and transformers fill a tensor that the file lacks with fresh random values and at most warn. Here the
loading report of each component is read, and anything missing, unexpected or of another shape is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from safetensors import SafetensorError

from fuseproof.errors import FuseproofError
from fuseproof.pipelines.checkpoints import Checkpoint, class_by_config
from fuseproof.pipelines.families import PROMPT_ENHANCER
from fuseproof.pipelines.libraries import silence_libraries
from fuseproof.pipelines.own_classes import library_class

TENSORS_SHOWN = 3
CAUSE_CHARACTERS = 200
LIBRARY_ERRORS = (
    OSError,
    ValueError,
    RuntimeError,
    LookupError,
    ArithmeticError,
    AssertionError,
    TypeError,
    AttributeError,
    ImportError,
    SafetensorError,
)
"""What the libraries raise where a config and its files do not go together."""


def load_pipeline(
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype,
    device: torch.device,
    with_text_processor: bool = False,
    with_prompt_enhancer: bool = False,
) -> Any:
    """The checkpoint's own diffusers pipeline on ``device``, in eval mode, every parameter in ``dtype``.

    What a model's class (``_keep_in_fp32_modules``) or its family keeps in fp32 is loaded so.
    Where prompt rewriting alone needs the text processor, and that needs torchvision, it is loaded only
    ``with_text_processor``, and the pipeline's slot is None otherwise; an editing pipeline always has one, made without
    torchvision (:mod:`fuseproof.pipelines.vision_processor`). A prompt enhancer is loaded only
    ``with_prompt_enhancer``. Nothing is fetched from the network.
    A FuseproofError names the component and the tensors at fault.
    """
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype is {dtype!r}; the libraries read anything but a torch.dtype as float32")
    silence_libraries()
    components: dict[str, Any] = {}
    for name, component in checkpoint.family.components.items():
        is_wanted = with_prompt_enhancer if name in PROMPT_ENHANCER else True
        if component.kind == "processor":
            is_wanted = with_text_processor and checkpoint.family.rewrites_prompts
        own = torch.float32 if name in checkpoint.family.float32_components else dtype
        components[name] = _load_component(checkpoint, name, own) if is_wanted else None
    if checkpoint.family.takes_image:
        components["text_processor"] = _load_vision_processor(checkpoint, components["tokenizer"])
    options = checkpoint.family.pipeline_options
    pipeline = library_class("diffusers", checkpoint.family.pipeline_class, "pipeline")(**components, **options)
    pipeline.set_progress_bar_config(disable=True)
    return _moved(pipeline, device)


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """The checkpoint's tokenizer alone, loaded as strictly as the whole pipeline."""
    silence_libraries()
    return _load_component(checkpoint, "tokenizer", torch.float32)


def _load_component(checkpoint: Checkpoint, name: str, dtype: torch.dtype) -> Any:
    library_name, class_name = checkpoint.components[name]
    folder = checkpoint.folder / name
    is_model = checkpoint.family.components[name].kind == "model"
    if is_model:
        class_name = class_by_config(checkpoint.config(name), class_name)
    component_class = library_class(library_name, class_name, name)
    try:
        if not is_model:
            return component_class.from_pretrained(folder, local_files_only=True)
        # Mismatches are "ignored" only so that they reach the report, by name and all at once.
        model, report = component_class.from_pretrained(
            folder,
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except LIBRARY_ERRORS as error:
        raise _not_loadable(name, checkpoint, error) from error
    _refuse_incomplete(report, name, checkpoint)
    _refuse_other_dtypes(model, name, dtype)
    return model.eval()


def _load_vision_processor(checkpoint: Checkpoint, tokenizer: Any) -> Any:
    from fuseproof.pipelines.vision_processor import load_text_processor

    try:
        return load_text_processor(checkpoint.folder / "text_processor", tokenizer)
    except LIBRARY_ERRORS as error:
        raise _not_loadable("text_processor", checkpoint, error) from error


def _not_loadable(name: str, checkpoint: Checkpoint, error: Exception) -> FuseproofError:
    return FuseproofError(
        f"The {name} of {checkpoint.folder} cannot be loaded: {_first_line(error)}.",
        next_step="Check that the component's config fits its files, or download the model again.",
    )


def _refuse_incomplete(report: Mapping[str, Iterable[Any]], name: str, checkpoint: Checkpoint) -> None:
    """Judge what the library reports: tensor names, and ``(name, shape in file, shape in model)`` for mismatches."""
    mismatched = {
        tensor: f"{tensor} {list(found)} for {list(expected)}" for tensor, found, expected in report["mismatched_keys"]
    }
    missing = set(report["missing_keys"]) - set(mismatched)
    faults = [
        _fault("lacks", "", missing),
        _fault("has", "misshapen ", mismatched.values()),
        _fault("has", "unexpected ", report["unexpected_keys"]),
        *(str(message) for message in report["error_msgs"]),
    ]
    found = [fault for fault in faults if fault]
    if found:
        raise FuseproofError(
            f"The {name} of {checkpoint.folder} does not fit its config: it {', and '.join(found)}.",
            next_step="Download the model again; running on made-up weights would prove nothing.",
        )


def _fault(verb: str, adjective: str, tensors: Iterable[str]) -> str | None:
    names = sorted(tensors)
    if not names:
        return None
    shown = ", ".join(names[:TENSORS_SHOWN])
    rest = f" and {len(names) - TENSORS_SHOWN} more" if len(names) > TENSORS_SHOWN else ""
    return f"{verb} {len(names)} {adjective}tensor{'s' if len(names) > 1 else ''} ({shown}{rest})"


def _refuse_other_dtypes(model: torch.nn.Module, name: str, dtype: torch.dtype) -> None:
    kept = frozenset(getattr(model, "_keep_in_fp32_modules", None) or ())
    for tensor_name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise FuseproofError(f"The {name} was loaded without a value for {tensor_name}.")
        is_kept = parameter.dtype == torch.float32 and not kept.isdisjoint(tensor_name.split("."))
        if parameter.is_floating_point() and parameter.dtype != dtype and not is_kept:
            raise FuseproofError(
                f"The {name} was loaded in mixed dtypes: {tensor_name} is {parameter.dtype}, and {dtype} was asked for."
            )


def _moved(pipeline: Any, device: torch.device) -> Any:
    try:
        return pipeline.to(device)
    except torch.OutOfMemoryError as error:
        raise FuseproofError(
            f"The model does not fit on {device}: {_first_line(error)}.",
            next_step="Free memory on the device, or choose another with --device.",
        ) from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:CAUSE_CHARACTERS].rstrip(".: ")
