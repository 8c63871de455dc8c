"""``fuseproof models``: which families there are, what a checkpoint holds, and tiny checkpoints for anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from fuseproof.cli.options import json_option

SHOW_SCHEMA = "fuseproof.model/1"
LIST_SCHEMA = "fuseproof.models/1"
MAKE_SCHEMA = "fuseproof.make-tiny/1"
NO_EMBEDDED = {"model_path": None, "weights_kind": None, "state": "none", "folder": None, "content_sha256": None}


@click.group()
def models() -> None:
    """List and describe model families; write tiny checkpoints.

    Nothing here loads torch, except make-tiny when the checkpoint has to be built.
    """


@models.command("list")
@json_option()
def list_models(as_json: bool) -> None:
    """List the model families that fuseproof runs."""
    from fuseproof.pipelines.families import FAMILIES

    families = [_listed_family(name) for name in FAMILIES]
    if as_json:
        _echo_json({"schema": LIST_SCHEMA, "families": families})
        return
    for family in families:
        click.echo(f"{family['name']}  {family['title']}, {family['task']}")
        click.echo(f"  models    {', '.join(family['model_ids'])}")
        click.echo(f"  offline   {_embedded_words(family['embedded'])}")
        if family["dummy"]:
            click.echo(f"  dummy     {_dummy_flags(family['dummy'])}, {_gib(family['dummy'], 'bfloat16')}")


@models.command("show")
@click.argument("name")
@json_option()
def show_model(name: str, as_json: bool) -> None:
    """Describe NAME: a family, a model folder, or embedded:FAMILY."""
    description = {"schema": SHOW_SCHEMA, **_described(name)}
    if as_json:
        _echo_json(description)
        return
    for line in _show_lines(description):
        click.echo(line)


@models.command("make-tiny")
@click.argument("name")
@click.argument("directory", type=click.Path(path_type=Path))
@json_option()
def make_tiny(name: str, directory: Path, as_json: bool) -> None:
    """Write the small checkpoint of family NAME into DIRECTORY, which must be new or empty.

    It is the checkpoint that embedded:NAME stands for, in the real Diffusers layout: a copy of the
    packaged one, or built offline.
    """
    from fuseproof.pipelines.embedded import write_embedded

    content_sha256 = write_embedded(name, directory)
    if as_json:
        _echo_json(
            {"schema": MAKE_SCHEMA, "name": name, "folder": str(directory), "content_sha256": content_sha256},
        )
        return
    click.echo(f"{directory}  content sha256 {content_sha256}")


def _listed_family(name: str) -> dict[str, Any]:
    from fuseproof.pipelines.descriptions import describe_dummy
    from fuseproof.pipelines.families import FAMILIES

    family = FAMILIES[name]
    return {
        "name": family.name,
        "title": family.title,
        "task": _task(family.takes_image, family.accepts_image, family.makes_video),
        "model_ids": list(family.model_ids),
        "embedded": _embedded_state(name),
        "dummy": describe_dummy(family),
    }


def _task(takes_image: bool, accepts_image: bool, makes_video: bool) -> str:
    source = "image" if takes_image else "text or image" if accepts_image else "text"
    return f"{source} to {'video' if makes_video else 'image'}"


def _embedded_state(name: str) -> dict[str, str | None]:
    """:func:`_whole_embedded_state`, where damage is a state too."""
    from fuseproof.errors import FuseproofError
    from fuseproof.pipelines.embedded import PREFIX

    try:
        return _whole_embedded_state(name)
    except FuseproofError as error:
        return {**NO_EMBEDDED, "model_path": f"{PREFIX}{name}", "state": f"damaged: {error.message}"}


def _whole_embedded_state(name: str) -> dict[str, str | None]:
    """Where ``embedded:<name>`` is now, without building it, and what its weights are; a FuseproofError where packaged
    ones are damaged.
    """
    from fuseproof.pipelines.embedded import PREFIX, embedded_weights, find_embedded
    from fuseproof.pipelines.model_cache import RECIPES

    if name not in RECIPES:
        return {**NO_EMBEDDED}
    weights_kind, found = embedded_weights(name), find_embedded(name)
    absent = "not built yet" if weights_kind == "random" else "packaged, put together on first use"
    return {
        "model_path": f"{PREFIX}{name}",
        "weights_kind": weights_kind,
        "state": found.state if found else absent,
        "folder": str(found.folder) if found else None,
        "content_sha256": found.content_sha256 if found else None,
    }


def _embedded_words(embedded: Mapping[str, str | None]) -> str:
    kind = f", {embedded['weights_kind']} weights" if embedded["weights_kind"] else ""
    return f"{embedded['model_path']} ({embedded['state']}){kind}"


def _described(name: str) -> dict[str, Any]:
    from fuseproof.pipelines.descriptions import describe_dummy
    from fuseproof.pipelines.families import FAMILIES

    described = _described_model(name)
    return {**described, "dummy": describe_dummy(FAMILIES[described["family"]["name"]])}


def _described_model(name: str) -> dict[str, Any]:
    from fuseproof.errors import UsageError
    from fuseproof.pipelines.checkpoints import check_checkpoint
    from fuseproof.pipelines.descriptions import describe_checkpoint, describe_family
    from fuseproof.pipelines.embedded import PREFIX
    from fuseproof.pipelines.families import FAMILIES, closest_name, family_named

    if name in FAMILIES:
        return {"family": describe_family(FAMILIES[name]), "embedded": _embedded_state(name), "checkpoint": None}
    if name.startswith(PREFIX):
        family = family_named(name.removeprefix(PREFIX))
        embedded = _whole_embedded_state(family.name)
        folder = embedded["folder"]
        checkpoint = describe_checkpoint(check_checkpoint(Path(folder))) if folder else None
        return {"family": describe_family(family), "embedded": embedded, "checkpoint": checkpoint}
    folder_path = Path(name).expanduser()
    if not folder_path.exists():
        raise UsageError(
            f"{name!r} is neither a family ({', '.join(FAMILIES)}), nor {PREFIX}<family>, nor an existing folder.",
            next_step=f"{closest_name(name)}`fuseproof models list` shows the families.",
        )
    checked = check_checkpoint(folder_path)
    return {"family": describe_family(checked.family), "embedded": None, "checkpoint": describe_checkpoint(checked)}


def _show_lines(description: Mapping[str, Any]) -> Iterator[str]:
    family, embedded, checkpoint = description["family"], description["embedded"], description["checkpoint"]
    task = _task(family["takes_image"], family["accepts_image"], family["makes_video"])
    yield f"{family['name']}  {family['title']}, {task}"
    yield f"  pipeline      {family['pipeline_class']} ({', '.join(family['model_ids'])})"
    published = f"{family['published_transformer_parameters']} transformer parameters (published)"
    yield f"  released      {published}, {_pairs(family['geometry'])}"
    yield f"  defaults      {_defaults(family['defaults'])}"
    yield f"  sizes         {_sizes(family)}"
    if family["sizes"]["frame_rule"] is not None:
        yield f"  frames        {family['sizes']['frame_rule']}"
    yield f"  prompt        {_prompt_length(family['text_tokens'])}"
    yield "  components"
    for name, component in family["components"].items():
        optional = "" if component["required"] else ", optional"
        yield f"    {name:<15} {component['class']} ({component['purpose']}{optional})"
    for note in family["notes"]:
        yield f"  note          {note}"
    if embedded and embedded["model_path"]:
        yield f"  offline       {_embedded_words(embedded)}"
        yield f"                {_defaults(family['embedded_defaults'])}"
        if embedded["folder"]:
            yield f"                {embedded['folder']}"
            yield f"                content sha256 {embedded['content_sha256']}"
    if description["dummy"]:
        yield from _dummy_lines(description["dummy"])
    if checkpoint:
        yield from _checkpoint_lines(checkpoint)


def _dummy_lines(dummy: Mapping[str, Any]) -> Iterator[str]:
    yield f"  dummy         {_dummy_flags(dummy)}: seeded random weights of the released size, made on the device"
    needs = f"{_gib(dummy, 'bfloat16')} ({_gib(dummy, 'float32')})"
    yield f"                {dummy['parameters']:,} parameters, {needs}"
    for name, component in dummy["components"].items():
        yield f"    {name:<15} {component['parameters']:,} parameters, {_pairs(component['geometry'])}"


def _dummy_flags(dummy: Mapping[str, Any]) -> str:
    return f"--load-format dummy --model-path {dummy['model_path']}"


def _gib(dummy: Mapping[str, Any], dtype: str) -> str:
    return f"{dummy['weight_bytes'][dtype] / 2**30:.1f} GiB in {dtype}"


def _checkpoint_lines(checkpoint: Mapping[str, Any]) -> Iterator[str]:
    yield f"checkpoint {checkpoint['folder']}"
    yield f"  geometry      {_pairs(checkpoint['geometry'])}"
    kind = "" if checkpoint["weights_kind"] == "given" else f"{checkpoint['weights_kind']}, "
    yield f"  weights       {kind}{checkpoint['weight_bytes'] / 2**20:,.1f} MiB, checked: every file is whole"
    for name, component in checkpoint["components"].items():
        weights = ""
        if "parameters" in component:
            weights = f"  {component['parameters']:,} parameters, {'/'.join(component['dtypes'])}"
        yield f"    {name:<15} {component['class']}{weights}"
    if checkpoint["canvas_pixels"] is not None:
        yield f"  canvas        about {checkpoint['canvas_pixels']:,} pixels"
        return
    if checkpoint["prompt_enhancement"] is not None:
        yield f"  enhancing     {'possible' if checkpoint['prompt_enhancement'] else 'not possible: no enhancer'}"
        return
    if checkpoint["prompt_rewriting"] is None:
        return
    yield f"  rewriting     {'possible' if checkpoint['prompt_rewriting'] else 'not possible: no text_processor'}"


def _prompt_length(tokens: int | None) -> str:
    return "as many tokens as it has" if tokens is None else f"always {tokens} tokens"


def _defaults(defaults: Mapping[str, Any]) -> str:
    """Steps and guidance, and the size unless it comes from an input image."""
    canvas = defaults["canvas_pixels"]
    size = f"{defaults['width']}x{defaults['height']}" if canvas is None else f"a canvas of about {canvas:,} pixels"
    clip = f", {defaults['num_frames']} frames at {defaults['fps']} fps" if "num_frames" in defaults else ""
    return f"{size}{clip}, {defaults['num_inference_steps']} steps, guidance {defaults['guidance_scale']}"


def _sizes(family: Mapping[str, Any]) -> str:
    sizes = family["sizes"]
    return sizes["canvas_rule"] or (
        f"multiples of {sizes['multiple_of']} from {sizes['minimum_side']} to {sizes['maximum_side']}, "
        f"at most {sizes['maximum_pixels']:,} pixels"
    )


def _pairs(geometry: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in geometry.items() if value is not None)


def _echo_json(value: Mapping[str, Any]) -> None:
    click.echo(json.dumps(value, indent=2, allow_nan=False))
