"""``--config FILE``: any flag of a command in TOML, YAML or JSON. The command line wins.

Keys are the flags' names with ``-`` or ``_``. Values are converted exactly as if they had been typed on the command
line, so ``seed: 42.5`` is refused here as it is there, and a YAML ``gate: off`` is the word, not a boolean.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import yaml
from click.core import ParameterSource

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines.regular_files import open_regular

LARGEST_FILE_BYTES = 1024 * 1024
FORMATS = ".toml, .yaml, .yml and .json"


class DuplicateKeyError(ValueError):
    """A key stands twice in one table."""


class _WordLoader(yaml.BaseLoader):
    """Reads every scalar as the text that stands in the file, and refuses a key that stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        pairs = [
            (self.construct_object(key, deep=True), self.construct_object(value, deep=True))
            for key, value in node.value
        ]
        return _mapping_without_duplicates(pairs)


def merge_config(
    context: click.Context, flags: Mapping[str, Any], path: str | None, exclusive: Iterable[Collection[str]] = ()
) -> dict[str, Any]:
    """``flags`` as click parsed them, with the config file's values where the command line is silent.

    ``exclusive`` holds groups of parameters that speak about one thing: when one of a group is on the command line, the
    file's values for the whole group give way. Raises :class:`UsageError` naming file and key.
    """
    merged = dict(flags)
    if path is None:
        return merged
    if not path.strip():
        raise UsageError(f"--config is {path!r}; it must name a file.", next_step="Name a file of flags, or drop it.")
    parameters = {
        spelling.lstrip("-").replace("-", "_"): parameter
        for parameter in context.command.params
        for spelling in parameter.opts
    }
    typed = {name for name in flags if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    silenced = typed.union(*(group for group in exclusive if not typed.isdisjoint(group)))
    for key, value in read_config(Path(path)).items():
        parameter = parameters.get(key.replace("-", "_"))
        if parameter is None or parameter.name == "config":
            raise UsageError(
                f"{path}: {key!r} is not a flag of {context.info_name}.",
                next_step=f"`{context.command_path} --help` lists the flags; write them with - or _.",
            )
        if parameter.name not in silenced:
            merged[str(parameter.name)] = _convert(context, parameter, value, path, key)
    return merged


def read_config(path: Path) -> dict[str, Any]:
    """The table in a config file: keys as written, values as in the file (YAML scalars as text).

    Raises :class:`UsageError` for another ending or a key that stands twice, :class:`FuseproofError` for a file that
    cannot be read.
    """
    parse = PARSERS.get(path.suffix.lower())
    if parse is None:
        raise UsageError(
            f"--config {path} ends in {path.suffix!r}; {FORMATS} can be read.", next_step="Give a file in one of these."
        )
    text = _read_text(path)
    try:
        table = parse(text)
    except DuplicateKeyError as error:
        raise UsageError(f"{path}: {error}.", next_step="Write each key once, as a plain word.") from error
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise FuseproofError(
            f"{path} is not valid {path.suffix[1:].upper()}: {_one_line(error)}.", next_step="Correct the file."
        ) from error
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise FuseproofError(
            f"{path} holds no table of flags at its top level.", next_step="Write `flag: value` lines."
        )
    spelled = [str(key).replace("-", "_") for key in table]
    for name in spelled:
        if spelled.count(name) > 1:
            raise UsageError(
                f"{path}: {name!r} stands twice, once with - and once with _.", next_step="Keep one of them."
            )
    return {str(key): value for key, value in table.items()}


def _convert(context: click.Context, parameter: click.Parameter, value: Any, path: str, key: str) -> Any:
    takes_many = bool(getattr(parameter, "multiple", False))
    values = value if isinstance(value, list) else [value]
    if isinstance(value, list) and not takes_many:
        raise UsageError(f"{path}: {key!r} is a list; it takes one value.", next_step="Keep one value.")
    texts = [_as_typed(item, path, key) for item in values]
    try:
        return parameter.type_cast_value(context, texts if takes_many else texts[0])
    except click.BadParameter as error:
        raise UsageError(
            f"{path}: {key!r}: {error.message.rstrip('.')}.",
            next_step=f"Correct it; `{context.command_path} --help` says what {key} takes.",
        ) from error


def _as_typed(value: Any, path: str, key: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        kind = "empty" if value is None else "not a plain value"
        raise UsageError(
            f"{path}: {key!r} is {kind}.", next_step="Write text, a number, true or false; or drop the key."
        )
    try:
        return str(value)
    except ValueError as error:  # Python prints no integer of more than 4,300 digits
        raise UsageError(
            f"{path}: {key!r} is a number of too many digits.", next_step="Write a number in the flag's range."
        ) from error


def _read_text(path: Path) -> str:
    try:
        with open_regular(path.expanduser()) as stream:
            content = stream.read(LARGEST_FILE_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FuseproofError(
            f"--config {path} cannot be read: {reason}.",
            next_step="Check the path; it must be a file with flags in it.",
        ) from error
    if len(content) > LARGEST_FILE_BYTES:
        raise FuseproofError(
            f"--config {path} is larger than {LARGEST_FILE_BYTES // 1024} KiB.", next_step="Check that it is the one."
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FuseproofError(
            f"--config {path} is not UTF-8: byte {error.start} cannot be decoded.", next_step="Save the file as UTF-8."
        ) from error


def _parse_yaml(text: str) -> Any:
    return yaml.load(text, Loader=_WordLoader)


def _parse_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_mapping_without_duplicates)


def _mapping_without_duplicates(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    mapping: dict[Any, Any] = {}
    for key, value in pairs:
        if not isinstance(key, str):
            raise DuplicateKeyError(f"key {key!r} is not a plain word")
        if key in mapping:
            raise DuplicateKeyError(f"{key!r} stands twice")
        mapping[key] = value
    return mapping


def _one_line(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return " ".join(str(error).split(";")[0].split()).rstrip(".")


PARSERS: dict[str, Callable[[str], Any]] = {
    ".toml": tomllib.loads,
    ".yaml": _parse_yaml,
    ".yml": _parse_yaml,
    ".json": _parse_json,
}
