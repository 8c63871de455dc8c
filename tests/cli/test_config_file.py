"""``--config``: three formats, flag names with - or _, the command line wins, errors name file and key."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fuseproof.cli.config_file import read_config
from fuseproof.cli.generate import generate, options_of
from fuseproof.cli.generate_options import GenerateOptions
from fuseproof.errors import FuseproofError, UsageError

TOML = 'prompt = ["a", "b"]\nwidth = 64\n"guidance-scale" = 4.5\nenable_cfg_renorm = false\ngate = "off"\n'
YAML = "prompt: [a, b]\nwidth: 64\nguidance-scale: 4.5\nenable_cfg_renorm: false\ngate: off\n"
JSON = json.dumps({"prompt": ["a", "b"], "width": 64, "guidance-scale": 4.5, "enable_cfg_renorm": False, "gate": "off"})


def parse(path: Path | str, *arguments: str) -> GenerateOptions:
    context = generate.make_context("generate", ["--config", str(path), *arguments])
    return options_of(context, context.params)


def written(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.toml", TOML),
        ("c.yaml", YAML),
        ("c.yml", YAML),
        ("c.JSON", JSON),
        ("bom.yaml", b"\xef\xbb\xbf" + YAML.encode()),
    ],
)
def test_every_format_gives_the_same_options(tmp_path: Path, name: str, text: str) -> None:
    options = parse(written(tmp_path, name, text))
    found = (options.prompt, options.width, options.guidance_scale, options.enable_cfg_renorm, options.gate)
    assert (("a", "b"), 64, 4.5, False, "off") == found
    assert 42 == options.seed


@pytest.mark.parametrize(
    ("text", "arguments", "field", "expected"),
    [
        ("prompt: a\nseed: 1\n", ["--seed=2"], "seed", 2),
        ("prompt: a\nseed: 1\n", [], "seed", 1),
        ("prompt: a\n", ["--prompt=b"], "prompt", ("b",)),
        ("prompt_path: p.txt\n", ["--prompt=b"], "prompt_path", None),
        ("prompt: a\nno-save-output: true\n", ["--save-output"], "saves_output", True),
        ("prompt: a\nwarmup-mode: off\n", ["--warmup"], "warmup_plan.mode", "request"),
        ("prompt: a\noutput-path: x\n", ["--output-file-path=y/z.png"], "output_folder", Path("y")),
        ("prompt: a\nnum-gpus: 1\nbackend: sglang\n", [], "backend", "native"),
        ("prompt: a\nimage-paths: [x.png]\n", [], "image_path", ("x.png",)),
        ("prompt: a\njson: true\n", [], "as_json", True),
        ("prompt: 12\n", [], "prompt", ("12",)),
        ("prompt: a\nnegative_prompt:\n", [], "negative_prompt", ""),
        ("prompt: no\n", [], "prompt", ("no",)),
    ],
)
def test_precedence_and_words(tmp_path: Path, text: str, arguments: list[str], field: str, expected: Any) -> None:
    value: Any = parse(written(tmp_path, "c.yaml", text), *arguments)
    for name in field.split("."):
        value = getattr(value, name)
    assert expected == value


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("c.toml", "widht = 64\n", "'widht' is not a flag of generate"),
        ("c.yaml", "config: other.yaml\n", "'config' is not a flag"),
        ("c.json", '{"save-output": ""}', "'' is not a valid boolean; write true or false"),
        ("c.yaml", "warmup:\n", "'' is not a valid boolean"),
        pytest.param(
            "c.toml", "seed = 0x" + "f" * 5000 + "\n", "'seed' is a number of too many digits", id="hex-giant"
        ),
        ("c.json", '{"seed": 42.5}', "'seed': '42.5' is not a whole number"),
        ("c.json", '{"seed": true}', "'seed': 'true' is not a whole number"),
        ("c.json", '{"seed": null}', "'seed' is empty"),
        ("c.json", '{"seed": [1, 2]}', "'seed' is a list"),
        ("c.toml", "[seed]\na = 1\n", "'seed' is not a plain value"),
        ("c.toml", "seed = 1979-05-27\n", "'seed' is not a plain value"),
        ("c.yaml", "backend: vllm\n", "'backend': 'vllm' is not one of"),
        ("c.yaml", "num-gpus: 1\nnum_gpus: 1\n", "'num_gpus' stands twice"),
        ("c.yaml", "seed: 1\nseed: 2\n", "'seed' stands twice"),
        ("c.json", '{"seed": 1, "seed": 2}', "'seed' stands twice"),
        ("c.yaml", "? [a, b]\n: 1\n", "is not a plain word"),
        ("c.ini", "", "ends in '.ini'"),
    ],
)
def test_usage_errors_name_file_and_key(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = written(tmp_path, name, text)
    with pytest.raises(UsageError) as caught:
        parse(path, "--prompt=a")
    assert said in caught.value.message
    assert str(path) in caught.value.message
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("c.toml", "width = \n", "is not valid TOML"),
        ("c.toml", "a = 1\na = 2\n", "is not valid TOML"),
        ("c.yaml", "a: [1\n", "is not valid YAML"),
        ("c.json", '{"a": ', "is not valid JSON"),
        ("c.json", "", "is not valid JSON"),
        pytest.param("c.json", '{"seed": ' + "9" * 5000 + "}", "Exceeds the limit", id="giant-json"),
        pytest.param("c.toml", "seed = " + "9" * 5000 + "\n", "Exceeds the limit", id="giant-toml"),
        ("c.json", "[" * 100_000, "nested too deeply"),
        ("c.json", "[1]", "holds no table"),
        ("c.yaml", "just text\n", "holds no table"),
        ("c.yaml", b"\xff\xfe\xfa", "is not UTF-8"),
        ("c.yaml", "!!python/object/apply:os.system ['true']\n", "holds no table"),
    ],
)
def test_bad_files_are_one_sentence(tmp_path: Path, name: str, text: str | bytes, said: str) -> None:
    with pytest.raises(FuseproofError) as caught:
        read_config(written(tmp_path, name, text))
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.next_step


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(FuseproofError, match="is a pipe or a device"):
        read_config(tmp_path / "pipe.toml")


def test_a_blank_name_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="--config is ''; it must name a file"):
        parse("", "--prompt=a")


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(FuseproofError, match="No such file") as caught:
        read_config(tmp_path / "none.toml")
    assert ".toml" not in str(caught.value.next_step)
    folder = tmp_path / "folder.toml"
    folder.mkdir()
    with pytest.raises(FuseproofError, match="Is a directory"):
        read_config(folder)


def test_an_empty_yaml_file_says_nothing(tmp_path: Path) -> None:
    assert {} == read_config(written(tmp_path, "c.yaml", "# nothing\n"))
