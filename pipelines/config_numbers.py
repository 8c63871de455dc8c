"""The numbers in a model folder's configs that are computed with, and that no library looks at first. Torch-free.

A wrong one ends deep inside a request, in a traceback or, worse, in a picture: a rotary embedding wider than a head, an
epsilon that is text, a schedule of no timesteps, an enhancer that may write no token.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

LARGEST_NUMBER = 1e9
LONGEST_TRAINING = 1e6
"""Schedulers make as many timesteps as a model was trained on when they are loaded; 1000 is usual."""
LONGEST_ROTARY_TABLE = 65_536
"""Made when a model is loaded, a row for each position; 1024 is usual."""
SHOWN_CHARACTERS = 40


@dataclass(frozen=True)
class NumberRule:
    """What the number under one key of a component's config must be; ``required`` where absence means null.

    ``largest`` is allowed itself, ``below`` is not; None as ``largest`` allows every finite number.
    """

    key: str
    expected: str
    is_whole: bool = False
    is_positive: bool = False
    is_nonzero: bool = False
    required: bool = False
    allows_null: bool = False
    smallest: float = -LARGEST_NUMBER
    largest: float | None = LARGEST_NUMBER
    below: float = math.inf

    def allows(self, value: object) -> bool:
        """Whether ``value``, as JSON gave it, can be computed with."""
        if value is None:
            return self.allows_null
        if isinstance(value, bool) or not isinstance(value, int if self.is_whole else int | float):
            return False
        largest = self.largest if self.largest is not None else math.inf
        is_usable = self.smallest <= value <= largest and value < self.below  # false for NaN and infinity too
        return is_usable and not (self.is_positive and value <= 0) and not (self.is_nonzero and value == 0)


TRAINED_TIMESTEPS = NumberRule(
    "num_train_timesteps",
    f"a whole number from 1 to {LONGEST_TRAINING:,.0f}",
    is_whole=True,
    is_positive=True,
    largest=LONGEST_TRAINING,
)
PICTURE_CHANNELS = tuple(
    NumberRule(key, "3, for red, green and blue,", is_whole=True, smallest=3, largest=3)
    for key in ("in_channels", "out_channels")
)
WAN_TRANSFORMER = (
    NumberRule("attention_head_dim", "a positive whole number", is_whole=True, is_positive=True),
    NumberRule("num_attention_heads", "a positive whole number", is_whole=True, is_positive=True),
    NumberRule(
        "rope_max_seq_len",
        f"a whole number from 1 to {LONGEST_ROTARY_TABLE:,}",
        is_whole=True,
        is_positive=True,
        largest=LONGEST_ROTARY_TABLE,
    ),
)
CONFIG_NUMBERS: Mapping[str, tuple[NumberRule, ...]] = MappingProxyType(
    {
        "FlowMatchEulerDiscreteScheduler": (
            TRAINED_TIMESTEPS,
            NumberRule("shift", "a positive number", is_positive=True),
            NumberRule("shift_terminal", "null or a number from 0 to below 1", allows_null=True, smallest=0, below=1),
            NumberRule("base_shift", "a number"),
            NumberRule("max_shift", "a number"),
            NumberRule("base_image_seq_len", "a positive whole number", is_whole=True, is_positive=True),
            NumberRule("max_image_seq_len", "a positive whole number", is_whole=True, is_positive=True),
        ),
        "UniPCMultistepScheduler": (TRAINED_TIMESTEPS,),
        "AutoencoderKL": (
            NumberRule("scaling_factor", "a number other than 0", is_nonzero=True),
            NumberRule("shift_factor", "a number", required=True),
            *PICTURE_CHANNELS,
        ),
        "AutoencoderKLFlux2": PICTURE_CHANNELS,
        "ErnieImageTransformer2DModel": (
            NumberRule("hidden_size", "a positive whole number", is_whole=True, is_positive=True),
            NumberRule("num_attention_heads", "a positive whole number", is_whole=True, is_positive=True),
            NumberRule("rope_theta", "a positive number", is_positive=True),
        ),
        "LongCatImageTransformer2DModel": (
            NumberRule("attention_head_dim", "a positive whole number", is_whole=True, is_positive=True),
            NumberRule("num_attention_heads", "a positive whole number", is_whole=True, is_positive=True),
        ),
        "WanTransformer3DModel": WAN_TRANSFORMER,
        "LongLive2Transformer3DModel": WAN_TRANSFORMER,
    }
)
EPSILON = NumberRule("eps", "a positive number", is_positive=True)
EPSILON_ENDINGS = ("_eps", "_epsilon")
TOKEN_LIMIT = NumberRule("model_max_length", "a positive number of tokens", smallest=1, largest=None)
"""transformers writes 1e30 where a tokenizer has no limit."""


@dataclass(frozen=True)
class RotaryAxes:
    """How a transformer's config splits the channels of a head among the axes of a position; class defaults."""

    key: str
    axes: tuple[int, int, int]
    head_channels: Mapping[str, int]
    """The key that holds a head's channels; or a width and the number of heads that share it."""


ROTARY_AXES: Mapping[str, RotaryAxes] = MappingProxyType(
    {
        "ErnieImageTransformer2DModel": RotaryAxes(
            "rope_axes_dim", (32, 48, 48), MappingProxyType({"hidden_size": 3072, "num_attention_heads": 24})
        ),
        "LongCatImageTransformer2DModel": RotaryAxes(
            "axes_dims_rope", (16, 56, 56), MappingProxyType({"attention_head_dim": 128})
        ),
    }
)


def number_faults(config: Mapping[str, Any], class_name: str, kind: str) -> Iterator[str]:
    """What is wrong with a component's ``config``, as in "has eps null; a positive number was expected".

    A later fault is looked for as if there were no earlier one, so only the first is to be relied on.
    """
    rules = (TOKEN_LIMIT,) if kind == "tokenizer" else CONFIG_NUMBERS.get(class_name, ())
    for rule in rules:
        if rule.key not in config and not rule.required:
            continue
        value = config.get(rule.key)
        if not rule.allows(value):
            seen = f"has {rule.key} {_shown(value)}" if rule.key in config else f"lacks {rule.key}"
            yield f"{seen}; {rule.expected} was expected"
    base, largest = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
    if class_name in CONFIG_NUMBERS and base == largest:
        yield f"has base_image_seq_len and max_image_seq_len {base}; they must differ"
    if kind == "scheduler" and config.get("stochastic_sampling", False) is not False:
        yield f"has stochastic_sampling {_shown(config['stochastic_sampling'])}; false was expected: it draws unseeded"
    if kind == "model":
        yield from _epsilon_faults(config)
    if class_name in ROTARY_AXES:
        yield from _rotary_faults(config, ROTARY_AXES[class_name])


def _epsilon_faults(config: Mapping[str, Any]) -> Iterator[str]:
    """Every norm's epsilon, whatever the class calls it, in the configs inside a config too."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _epsilon_faults(value)
        elif (key == EPSILON.key or key.endswith(EPSILON_ENDINGS)) and not EPSILON.allows(value):
            yield f"has {key} {_shown(value)}; {EPSILON.expected} was expected"


def _rotary_faults(config: Mapping[str, Any], rotary: RotaryAxes) -> Iterator[str]:
    width, *heads = (config.get(key, default) for key, default in rotary.head_channels.items())
    channels = width // heads[0] if heads else width
    axes = config.get(rotary.key, rotary.axes)
    is_usable = (
        isinstance(axes, list | tuple)
        and len(axes) == len(rotary.axes)
        and all(type(axis) is int and axis > 0 and axis % 2 == 0 for axis in axes)
    )
    if not is_usable:
        yield f"has {rotary.key} {_shown(axes)}; three even positive whole numbers were expected"
    elif sum(axes) != channels:
        yield f"has {rotary.key} {_shown(axes)}, {sum(axes)} in all; a head's {channels} channels were expected"


def _shown(value: object) -> str:
    return json.dumps(value)[:SHOWN_CHARACTERS]
