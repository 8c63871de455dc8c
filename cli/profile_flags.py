"""The flags of a request as a profile records them: what was given, whichever way, in one spelling."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fuseproof.cli.option_fields import flag_name
from fuseproof.harness.machine.redaction import redact

if TYPE_CHECKING:
    from fuseproof.cli.generate_options import GenerateOptions

NOT_OF_THE_REQUEST = frozenset(
    {
        "as_json",
        "config",
        "log_level",
        "no_save_output",
        "num_profiled_timesteps",
        "output_compression",
        "output_file_name",
        "output_file_path",
        "output_path",
        "output_quality",
        "perf_dump_path",
        "profile",
        "profile_all_stages",
        "save_output",
        "show",
    }
)


def recorded_flags(options: GenerateOptions) -> list[str]:
    """``--name=value`` for every flag that is not at its default and says what runs; no home folder in it."""
    return [redact(text) for text in _given(options)]


def _given(options: GenerateOptions) -> Iterator[str]:
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if field.name in NOT_OF_THE_REQUEST or value == field.default or value is None:
            continue
        for one in value if isinstance(value, tuple) else (value,):
            yield f"{flag_name(field.name)}={str(one).lower() if isinstance(one, bool) else one}"
