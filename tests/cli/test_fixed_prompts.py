"""``--use-pe``, ``--pe-sampling``, ``--fixed-prompt`` and ``--fixed-prompt-path``: one text for each prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fuseproof.cli.generate_options import GenerateOptions
from fuseproof.cli.generate_summary import written_lines
from fuseproof.errors import UsageError
from fuseproof.harness.perf.dump import read_perf_dump
from fuseproof.harness.perf.work import check_equal_work
from tests.cli.desk import Desk

ERNIE = ("--load-format=dummy", "--model-path=ernie-image", "--width=64", "--height=48", "--num-inference-steps=2")


def written_dump(folder: Path, *texts: tuple[str, str | None]) -> str:
    """A perf dump of a run that wrote the second of each pair for the first."""
    requests = [{"prompt": prompt, **({} if text is None else {"rewritten_prompt": text})} for prompt, text in texts]
    path = folder / "enhanced.json"
    path.write_text(json.dumps({"total_duration_ms": 1.0, "steps": [], "requests": requests}))
    return str(path)


def test_texts_are_drawn_in_their_prompts_place_and_recorded(real_models: Desk) -> None:
    arguments = ("--prompt=a", "--prompt=b", "--fixed-prompt=a long text", "--fixed-prompt=b, at length")
    assert 0 == real_models.run(*ERNIE, *arguments, "--perf-dump-path=p.json")
    asked = [(request.prompt, request.fixed_prompt, request.use_pe) for request in real_models.session.requests]
    assert [("a", "a long text", False), ("b", "b, at length", False)] == asked
    config = real_models.dump()["config"]
    assert (["a long text", "b, at length"], False, None) == (
        config["fixed_prompt"], config["use_pe"], config["pe_sampling"]
    )  # fmt: skip


def test_texts_are_found_in_the_dump_of_an_earlier_run(real_models: Desk) -> None:
    path = written_dump(real_models.folder, ("a", "a long text\nof two lines"))
    assert 0 == real_models.run(*ERNIE, "--prompt=a", f"--fixed-prompt-path={path}", "--perf-dump-path=p.json")
    assert "a long text\nof two lines" == real_models.session.requests[0].fixed_prompt
    assert ["a long text\nof two lines"] == real_models.dump()["config"]["fixed_prompt"]


@pytest.mark.parametrize(
    ("expected", "texts"),
    [
        ("holds the texts of other prompts than these: 'b'", [("b", "b, at length")]),
        ("holds the texts of other prompts than these: 'a', 'b'", [("a", "A"), ("b", "B")]),
        ("holds the texts of other prompts than these: no requests", []),
        ("holds no text that was written for the prompt 'a'", [("a", None)]),
        ("holds no text that was written for the prompt 'a'", [("a", " ")]),
    ],
    ids=["another", "more", "none", "not-enhanced", "blank"],
)
def test_a_dump_of_something_else_is_refused(expected: str, texts: list[tuple[str, str]], real_models: Desk) -> None:
    path = written_dump(real_models.folder, *texts)
    assert 0 != real_models.run(*ERNIE, "--prompt=a", f"--fixed-prompt-path={path}")
    assert expected in real_models.err
    assert real_models.session.opened_with is None


def test_the_dump_that_is_read_is_not_written_over(real_models: Desk) -> None:
    path = written_dump(real_models.folder, ("a", "A"))
    assert 2 == real_models.run(*ERNIE, "--prompt=a", f"--fixed-prompt-path={path}", f"--perf-dump-path={path}")
    assert "--fixed-prompt-path" in real_models.err


@pytest.mark.parametrize(
    ("expected", "flags"),
    [
        ("--fixed-prompt draws a text that was written before", {"fixed_prompt": ("b",), "use_pe": True}),
        ("so --fixed-prompt-path cannot be added", {"fixed_prompt": ("b",), "fixed_prompt_path": "p.json"}),
        ("so --enable-prompt-rewrite cannot", {"fixed_prompt_path": "p.json", "enable_prompt_rewrite": True}),
        ("--pe-sampling greedy has no effect without --use-pe", {"pe_sampling": "greedy"}),
        ("--pe-sampling seeded has no effect without --use-pe", {"pe_sampling": "seeded"}),
        ("--fixed-prompt is ' ', which holds no text", {"fixed_prompt": (" ",)}),
        ("--fixed-prompt-path is ''; it must name a perf dump", {"fixed_prompt_path": ""}),
        ("a fixed prompt is not valid UTF-8", {"fixed_prompt": ("\ud800",)}),
        (
            "--use-pe cannot be used with --load-format dummy",
            {"use_pe": True, "load_format": "dummy", "model_path": "ernie-image"},
        ),
    ],
)
def test_rules_between_the_flags(expected: str, flags: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        GenerateOptions(prompt=("a",), **flags)
    assert expected in caught.value.message


def test_one_text_for_each_prompt(real_models: Desk) -> None:
    assert 2 == real_models.run(*ERNIE, "--prompt=a", "--prompt=b", "--fixed-prompt=a long text")
    assert "1 --fixed-prompt were given for 2 prompts" in real_models.err


@pytest.mark.parametrize(
    ("expected", "next_step", "arguments"),
    [
        (
            "LongCat-Image has no prompt enhancer",
            "Leave --use-pe out, or use --enable-prompt-rewrite.",
            ["--model-path=embedded:longcat-image", "--use-pe"],
        ),
        (
            "ERNIE-Image-Turbo does not rewrite prompts",
            "Leave --enable-prompt-rewrite out, or use --use-pe, its prompt enhancer.",
            ["--model-path=baidu/ERNIE-Image-Turbo", "--enable-prompt-rewrite"],
        ),
        (
            "--enable-cfg-renorm was given, but ERNIE-Image does not renormalise its guidance",
            "Drop --enable-cfg-renorm.",
            ["--model-path=baidu/ERNIE-Image", "--enable-cfg-renorm"],
        ),
        (
            "ERNIE-Image cannot make width 1000 (the nearest are 992 and 1008): each side must be a multiple of 16 "
            "from 16 to 4096, and both together at most 4,194,304 pixels (2048x2048).",
            "Use --width 992.",
            ["--model-path=baidu/ERNIE-Image", "--width=1000"],
        ),
    ],
    ids=["enhancer", "rewriting", "renormalisation", "size"],
)
def test_what_a_family_cannot_do_is_said_before_anything_is_loaded(
    expected: str, next_step: str, arguments: list[str], real_models: Desk
) -> None:
    assert 2 == real_models.run("--prompt=a", *arguments)
    assert expected in real_models.err
    assert f"next: {next_step}" in real_models.err
    assert real_models.session.opened_with is None


# What is said of a text that was drawn


@pytest.mark.parametrize(
    ("expected", "text", "stages"),
    [
        ([], None, []),
        (['fixed prompt: "a b"'], "a\n b", []),
        (['enhanced prompt (PromptEnhancementStage 1.250 s): "x"'], "x", [("PromptEnhancementStage", 1250.0)]),
        (['rewritten prompt (LongCatPromptRewriteStage 0.002 s): "x"'], "x", [("LongCatPromptRewriteStage", 2.0)]),
        ([r'fixed prompt: "\u001b[2J"'], "\x1b[2J", []),
        ([f'fixed prompt: "{"x" * 100}… (4,000 characters)"'], "x" * 4000, []),
    ],
    ids=["as-it-was", "fixed", "enhanced", "rewritten", "escaped", "shortened"],
)
def test_a_text_drawn_in_the_prompts_place_is_shown_with_its_time(
    expected: list[str], text: str | None, stages: list[tuple[str, float]]
) -> None:
    steps = [{"name": name, "duration_ms": milliseconds} for name, milliseconds in stages]
    assert expected == list(written_lines([{"rewritten_prompt": text, "steps": steps}]))


@pytest.mark.parametrize(
    ("is_said", "arguments"),
    [
        (True, ["--model-path=embedded:ernie-image", "--use-pe"]),
        (False, ["--model-path=embedded:ernie-image"]),
        (False, ["--model-path=ernie-image", "--load-format=dummy", "--fixed-prompt=b"]),
    ],
    ids=["written", "not-written", "fixed"],
)
def test_a_text_of_random_weights_is_called_noise(is_said: bool, arguments: list[str], real_models: Desk) -> None:
    assert 0 == real_models.run(
        "--prompt=a", "--width=64", "--height=48", "--num-inference-steps=2", *arguments, "--perf-dump-path=p.json"
    )
    assert is_said is any("random weights write noise" in text for text in real_models.dump()["warnings"])
    assert is_said is ("random weights write noise" in real_models.err)


# Warm-ups: another length of text means other kernels and graphs


@pytest.mark.parametrize(
    ("expected", "arguments"),
    [
        ([("a", None), ("b", None)], ["--prompt=a", "--prompt=b", "--prompt=a"]),
        ([("a", "A"), ("b", "B")], ["--prompt=a", "--prompt=b", "--fixed-prompt=A", "--fixed-prompt=B"]),
        ([("warmup", None)], ["--prompt=a", "--prompt=b", "--warmup-mode=server"]),
    ],
    ids=["each-prompt-once", "each-fixed-text", "server"],
)
def test_every_prompt_is_warmed_where_each_keeps_its_length(
    expected: list[tuple[str, str | None]], arguments: list[str], real_models: Desk
) -> None:
    assert 0 == real_models.run(*ERNIE, "--warmup-steps=1", *arguments)
    assert expected == [(request.prompt, request.fixed_prompt) for request, _ in real_models.session.warmups]


def test_graphs_of_another_prompts_length_are_refused(real_models: Desk) -> None:
    arguments = ("--enable-breakable-cuda-graph", "--warmup-mode=server")
    assert 2 == real_models.run(*ERNIE, "--prompt=a", *arguments)
    assert "captures graphs for the length of the prompt 'warmup', and ERNIE-Image keeps" in real_models.err


# Two runs that drew two texts did unequal work


@pytest.mark.parametrize(
    ("expected", "texts", "configs"),
    [
        ([], ("A", "A"), ({}, {})),
        (["rewritten prompts"], ("A", "B"), ({}, {})),
        (["use_pe"], ("A", "A"), ({"use_pe": True}, {"use_pe": False})),
        (["fixed_prompt"], ("A", "A"), ({"fixed_prompt": ["A"]}, {"fixed_prompt": []})),
    ],
    ids=["equal", "texts", "flag", "fixed"],
)
def test_another_text_is_other_work(
    expected: list[str], texts: tuple[str, str], configs: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path
) -> None:
    dumps = []
    for index, (text, config) in enumerate(zip(texts, configs, strict=True)):
        path = tmp_path / f"{index}.json"
        requests = [{"prompt": "a", "rewritten_prompt": text}]
        path.write_text(json.dumps({"total_duration_ms": 1.0, "steps": [], "requests": requests, "config": config}))
        dumps.append(read_perf_dump(path))
    assert expected == [difference.field for difference in check_equal_work(*dumps).blocking]
