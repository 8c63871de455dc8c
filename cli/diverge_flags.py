"""What the flags of two arms come to, before anything runs: where they differ, and what rules a comparison out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fuseproof.errors import FuseproofError, UsageError

if TYPE_CHECKING:
    from fuseproof.cli.generate_options import GenerateOptions
    from fuseproof.cli.request_checks import Checked
    from fuseproof.pipelines.requests import GenerationRequest

Config = Mapping[str, Any]
"""An arm's effective flags by field name, as its dump has them."""
NOISE = ("seed", "generator_device")
"""The first latents are drawn by these."""
SIZES = ("width", "height", "num_frames")
REQUEST_VALUES = (*SIZES, "num_inference_steps", "guidance_scale", "enable_cfg_renorm", "negative_prompt", "seed")
DESTINATIONS = frozenset({"output_path", "output_file_name", "output_file_path", "save_output", "perf_dump_path"})
"""What has no bearing on a bit: an arm writes nothing there."""
LONGEST = 60


@dataclass(frozen=True)
class Setting:
    """One flag, or one thing that flags came to, that is not the same in both arms."""

    name: str
    baseline: str
    candidate: str

    def __str__(self) -> str:
        return f"{self.name} {_short(self.baseline)} against {_short(self.candidate)}"


def effective_config(options: GenerateOptions, checked: Checked) -> dict[str, Any]:
    """``options`` with what the model decides filled in, as far as that can be told without loading it.

    Raises :class:`FuseproofError` with generate's own sentence for a request that it would refuse.
    """
    from fuseproof.cli.diverge_arm import foreign_folder
    from fuseproof.cli.prompts import read_prompts
    from fuseproof.cli.request_checks import requests_of

    prompts = read_prompts(options.prompt, options.prompt_path)
    requests = () if foreign_folder(options) is not None else requests_of(options, checked)
    return options.as_config() | {"prompt": list(prompts)} | _values_of(requests)


def _values_of(requests: Sequence[GenerationRequest]) -> dict[str, Any]:
    return {name: getattr(requests[0], name) for name in REQUEST_VALUES} if requests else {}


def differences(baseline: Config, candidate: Config) -> list[Setting]:
    """Where two effective configurations differ, flags under their own names, in the order of ``baseline``.

    What only one of them has is left out: another commit need not know it, and what it knows it has as a default.
    """
    return [
        Setting(flag_name(name), _text(value), _text(candidate[name]))
        for name, value in baseline.items()
        if name in candidate and candidate[name] != value and name not in DESTINATIONS
    ]


def flag_name(field_name: str) -> str:
    """``--num-inference-steps`` for a flag's field; other names, such as ``model_sha256``, as they are."""
    import dataclasses

    from fuseproof.cli.generate_options import GenerateOptions

    fields = {field.name for field in dataclasses.fields(GenerateOptions)}
    return f"--{field_name.replace('_', '-')}" if field_name in fields else field_name


def noise_differences(baseline: Config, candidate: Config) -> list[Setting]:
    """What makes the first latents differ, whatever else does."""
    return differences({name: baseline[name] for name in NOISE if name in baseline}, candidate)


def refuse_other_requests(baseline: Config, candidate: Config) -> None:
    """Raise :class:`UsageError` where the flags alone tell that the arms are asked for different things.

    A value that only the model or the machine decides (None, ``auto``) is left to the check behind pass 1.
    """
    known = ("num_inference_steps", *SIZES, "dtype", "prompt")
    one, other = ({name: _decided(side.get(name)) for name in known} for side in (baseline, candidate))
    both = [name for name in known if None not in (one[name], other[name]) and one[name] != other[name]]
    if "num_inference_steps" in both:
        raise other_steps(one["num_inference_steps"], other["num_inference_steps"])
    if "prompt" in both:
        raise UsageError(
            f"the baseline draws {_short(_text(one['prompt']))} and the candidate {_short(_text(other['prompt']))}, "
            "and diverge follows one request in both.",
            next_step="Give the prompt once, in --flags.",
        )
    if both:
        told = " and ".join(str(Setting(flag_name(name), _text(one[name]), _text(other[name]))) for name in both)
        raise UsageError(
            f"the arms have {told}, so their bits cannot be compared.",
            next_step="Give both the same size and --dtype.",
        )


def other_steps(baseline: int, candidate: int) -> UsageError:
    """The refusal of arms that run ``baseline`` and ``candidate`` steps."""
    return UsageError(
        f"the baseline runs {baseline} steps and the candidate {candidate}, so their steps cannot be compared.",
        next_step="Give both the same --num-inference-steps and model, best in --flags.",
    )


def checked_config(role: str, options: GenerateOptions, checked: Checked) -> dict[str, Any]:
    """:func:`effective_config`, its refusal said of the arm of ``role``; several prompts are refused too."""
    from fuseproof.cli.abba_arms import refusal
    from fuseproof.cli.diverge_arm import refuse_several

    try:
        config = effective_config(options, checked)
    except FuseproofError as error:
        raise refusal(f"The {role}", error) from error
    refuse_several(len(config["prompt"]))
    return config


def _decided(value: Any) -> Any:
    return None if value in (None, "auto", []) else value


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) if value else "none"
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
