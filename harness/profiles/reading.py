"""Reading ``profile.json``: strict about every field that is used, and about its sums."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fuseproof.errors import FuseproofError
from fuseproof.harness.perf.fields import Fields, read_json_object
from fuseproof.harness.profiles.accounts import refuse_wrong_sums
from fuseproof.harness.profiles.places import is_folder
from fuseproof.harness.profiles.profile import (
    CLASSES,
    COMPONENTS,
    SCHEMA,
    Attribution,
    Chain,
    Device,
    KeyCalls,
    Profile,
    Request,
    Row,
    SiteRecord,
    Stage,
    Step,
    TraceFile,
)
from fuseproof.harness.profiles.values import (
    amount,
    amounts,
    one_of,
    optional_amount,
    optional_whole,
    refusal,
    refuse_missing,
    refuse_not_finite,
    share,
    texts,
    truth,
    whole,
    wholes,
)

PROFILE_FILE = "profile.json"
NEXT_STEP = "Pass profile.json, or its folder, as `fuseproof profile --output-path FOLDER` writes it."
EARLIER_WEIGHTS = {"embedded": "random"}
"""What older profiles call the weights of an embedded model, and what those were."""
AGAIN = "Profile the request again with this version: `fuseproof profile`."
PARTS = (
    "request",
    "environment",
    "device",
    "timed",
    "note",
    "stages",
    "steps",
    "rows",
    "sites",
    "chains",
    "attribution",
    "trace",
    "warnings",
)


def read_profile(path: str | os.PathLike[str]) -> Profile:
    """Read a profile, or the one in a folder.

    Raises :class:`FuseproofError` naming the file and the cause: missing, cut off, not JSON, of another version, a
    field whose value cannot be, or sums that do not agree, as in a file that was edited.
    """
    source = Path(path)
    if is_folder(source):
        source = source / PROFILE_FILE
    return profile_of(read_json_object(source, next_step=NEXT_STEP), source)


def profile_of(raw: dict[str, Any], source: Path) -> Profile:
    """The same from JSON values; ``source`` is what errors name."""
    fields = Fields(raw, source, next_step=NEXT_STEP)
    _refuse_other_files(fields)
    refuse_missing(fields, PARTS)
    refuse_not_finite(fields)
    if truth(fields, "timed"):
        raise refusal(fields, "timed", "is true, but times under a profiler are no timed run's")
    stages = tuple(_stage(one) for one in fields.children("stages"))
    if not stages:
        raise refusal(fields, "stages", "is empty, expected at least one profiled stage")
    names = tuple(stage.name for stage in stages)
    if len(set(names)) < len(names):
        raise refusal(fields, "stages", "names a stage twice")
    profile = Profile(
        source=str(source),
        request=_request(fields.child("request")),
        environment=fields.mapping("environment"),
        device=_device(fields.child("device")),
        note=fields.text("note"),
        stages=stages,
        steps=tuple(_step(one, names) for one in fields.children("steps")),
        rows=tuple(_row(one, names) for one in fields.children("rows")),
        sites=tuple(_site(one) for one in fields.children("sites")),
        chains=tuple(_chain(one, names) for one in fields.children("chains")),
        attribution=_attribution(fields.child("attribution")),
        trace=None if raw["trace"] is None else _trace(fields.child("trace")),
        warnings=texts(fields, "warnings"),
        raw=raw,
    )
    refuse_wrong_sums(profile, NEXT_STEP)
    return profile


def _refuse_other_files(fields: Fields) -> None:
    schema = fields.optional_text("schema")
    if schema == SCHEMA:
        return
    if schema is not None and schema.startswith("fuseproof.profile/"):
        raise FuseproofError(
            f"{fields.path} has schema {schema[:60]!r}, and this version reads {SCHEMA!r}.", next_step=AGAIN
        )
    shown = "no schema" if schema is None else f"schema {schema[:60]!r}"
    raise FuseproofError(f"{fields.path} has {shown}, expected {SCHEMA!r}: it is no profile.", next_step=NEXT_STEP)


def _request(fields: Fields) -> Request:
    weights = one_of(fields, "weights", ("dummy", "random", "trained", "given", *EARLIER_WEIGHTS))
    return Request(
        model=fields.text("model"),
        family=fields.text("family"),
        backend=one_of(fields, "backend", ("native", "diffusers", "reference")),
        weights=EARLIER_WEIGHTS.get(weights, weights),
        width=whole(fields, "width", 1),
        height=whole(fields, "height", 1),
        frames=optional_whole(fields, "frames"),
        steps=whole(fields, "steps", 1),
        guidance=fields.number("guidance"),
        seed=_seed(fields),
        quality=fields.text("quality"),
        fastpaths=fields.text("fastpaths"),
        cuda_graph=truth(fields, "cuda_graph"),
        compile=truth(fields, "compile"),
        batch=whole(fields, "batch", 1),
        flags=texts(fields, "flags"),
        dtype=fields.optional_text("dtype"),
    )


def _seed(fields: Fields) -> int:
    """Seeds go up to 2**64 - 1, beyond every other number here."""
    fields.number("seed")
    value = fields.values["seed"]
    if not isinstance(value, int) or not 0 <= value < 2**64:
        raise refusal(fields, "seed", "is no whole number from 0 to 2**64-1")
    return value


def _device(fields: Fields) -> Device:
    bandwidth = optional_amount(fields, "copy_bandwidth_gb_s")
    if bandwidth == 0:
        raise refusal(fields, "copy_bandwidth_gb_s", "is 0, expected a measured bandwidth or null")
    return Device(
        kind=one_of(fields, "kind", ("cuda", "cpu")),
        name=fields.text("name"),
        copy_bandwidth_gb_s=bandwidth,
        kernel_word=one_of(fields, "kernel_word", ("kernel", "CPU operation")),
        no_saving_reason=fields.optional_text("no_saving_reason"),
    )


def _stage(fields: Fields) -> Stage:
    steps, of_request = whole(fields, "steps", 1), whole(fields, "steps_of_request", 1)
    if steps > of_request:
        raise refusal(fields, "steps", f"is {steps}, more than the {of_request} steps of the request")
    return Stage(
        name=fields.text("name"),
        steps=steps,
        steps_of_request=of_request,
        wall_us=amount(fields, "wall_us"),
        device_us=amount(fields, "device_us"),
        kernels=whole(fields, "kernels"),
    )


def _step(fields: Fields, stages: tuple[str, ...]) -> Step:
    return Step(
        stage=one_of(fields, "stage", stages),
        index=whole(fields, "index"),
        wall_us=amount(fields, "wall_us"),
        device_us=amount(fields, "device_us"),
        kernels=whole(fields, "kernels"),
        graph_launches=whole(fields, "graph_launches"),
    )


def _row(fields: Fields, stages: tuple[str, ...]) -> Row:
    state = None if fields.values.get("site_state") is None else one_of(fields, "site_state", ("fused", "eager"))
    return Row(
        stage=one_of(fields, "stage", stages),
        module=fields.text("module"),
        module_class=fields.optional_text("module_class"),
        component=one_of(fields, "component", COMPONENTS),
        site=fields.optional_text("site"),
        site_state=state,
        line=fields.optional_text("line"),
        operation=fields.text("operation"),
        kernel=fields.text("kernel"),
        kernel_class=one_of(fields, "class", CLASSES),
        key=fields.optional_text("key"),
        calls=whole(fields, "calls", 1),
        device_us=amount(fields, "device_us"),
        bytes=optional_whole(fields, "bytes"),
        from_graph=truth(fields, "from_graph"),
        calls_by_step=wholes(fields, "calls_by_step"),
        device_us_by_step=amounts(fields, "device_us_by_step"),
        typical_us=optional_amount(fields, "typical_us"),
    )


def _site(fields: Fields) -> SiteRecord:
    keys = tuple(
        KeyCalls(one.text("key"), whole(one, "calls"), one.optional_text("layout")) for one in fields.children("keys")
    )
    return SiteRecord(
        site=fields.text("site"),
        state=fields.text("state"),
        reason=fields.optional_text("reason"),
        calls_fused=whole(fields, "calls_fused"),
        calls_eager=whole(fields, "calls_eager"),
        keys=keys,
        first_sight_ms=optional_amount(fields, "first_sight_ms"),
        jit_ms=optional_amount(fields, "jit_ms"),
        device_us=optional_amount(fields, "device_us"),
        bytes=optional_whole(fields, "bytes"),
    )


def _chain(fields: Fields, stages: tuple[str, ...]) -> Chain:
    saving = fields.values.get("saving_us_per_step")
    return Chain(
        stage=one_of(fields, "stage", stages),
        module=fields.text("module"),
        operations=texts(fields, "operations"),
        classes=texts(fields, "classes"),
        line=fields.optional_text("line"),
        shape=fields.optional_text("shape"),
        calls_per_step=amount(fields, "calls_per_step"),
        device_us_per_step=amount(fields, "device_us_per_step"),
        bytes_per_step=optional_whole(fields, "bytes_per_step"),
        fused_floor_us_per_step=optional_amount(fields, "fused_floor_us_per_step"),
        saving_us_per_step=None if saving is None else fields.number("saving_us_per_step"),
        fast_path=fields.optional_text("fast_path"),
        fast_path_reason=fields.optional_text("fast_path_reason"),
        typical_us_per_step=optional_amount(fields, "typical_us_per_step"),
        component=fields.optional_text("component"),
        site=fields.optional_text("site"),
    )


def _attribution(fields: Fields) -> Attribution:
    return Attribution(
        device_us=amount(fields, "device_us"),
        to_module=share(fields, "to_module"),
        to_site_or_module=share(fields, "to_site_or_module"),
        to_line=share(fields, "to_line"),
        unattributed=tuple((one.text("kernel"), amount(one, "device_us")) for one in fields.children("unattributed")),
    )


def _trace(fields: Fields) -> TraceFile:
    return TraceFile(fields.text("file"), whole(fields, "bytes"), truth(fields, "truncated"))
