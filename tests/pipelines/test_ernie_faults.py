"""Faulty files of ERNIE-Image, and the same faults in LongCat-Image's: one sentence each, the same on both backends."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fuseproof.errors import FuseproofError
from fuseproof.pipelines.checkpoints import check_checkpoint
from fuseproof.pipelines.config_numbers import number_faults
from fuseproof.pipelines.guards import refuse_unsupported, remarks
from fuseproof.pipelines.loading import load_pipeline
from fuseproof.pipelines.progress import SILENT
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.session import Session, SessionSettings
from fuseproof.pipelines.written_texts import text_written_by
from tests.pipelines.test_parity_ernie import BASE

CPU = torch.device("cpu")
BACKENDS = ("native", "diffusers")
SMALLEST = replace(BASE, width=16, height=16, num_inference_steps=1, guidance_scale=1.0)
ENHANCED = replace(SMALLEST, use_pe=True, pe_sampling="greedy")
REWRITTEN = replace(SMALLEST, width=64, height=64, enable_prompt_rewrite=True)


@pytest.fixture(scope="module")
def pipe(tiny_ernie_folder: Path) -> Any:
    return load_pipeline(
        check_checkpoint(tiny_ernie_folder), dtype=torch.float32, device=CPU, with_prompt_enhancer=True
    )


@pytest.fixture(scope="module")
def longcat_pipe(tiny_longcat_folder: Path) -> Any:
    return load_pipeline(
        check_checkpoint(tiny_longcat_folder), dtype=torch.float32, device=CPU, with_text_processor=False
    )


def run(pipe: Any, backend: str, request: GenerationRequest) -> None:
    with Session(pipe, SessionSettings(backend=backend, fastpaths="off"), CPU, torch.float32, SILENT) as session:
        session.run(request)


def folder_with(original: Path, folder: Path, file: str, changes: dict[str, object]) -> Path:
    """A model folder like ``original``, by links, with ``changes`` in one JSON ``file``."""
    for path in original.rglob("*"):
        if path.is_file():
            target = folder / path.relative_to(original)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path)
    changed = json.loads((folder / file).read_text()) | changes
    (folder / file).unlink()
    (folder / file).write_text(json.dumps(changed))
    return folder


# What an enhancer writes


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_enhancer_that_writes_nothing_is_refused(pipe: Any, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head = pipe.pe.lm_head
    monkeypatch.setitem(head._parameters, "weight", torch.nn.Parameter(torch.zeros_like(head.weight)))
    with pytest.raises(FuseproofError, match="prompt enhancer wrote '' for the prompt 'a red panda'") as caught:
        run(pipe, backend, ENHANCED)
    assert "leave --use-pe out" in str(caught.value.next_step)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_enhancer_of_nan_is_one_sentence_and_leaves_the_generator_alone(
    pipe: Any, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, state = pipe.pe.lm_head, torch.random.get_rng_state()
    monkeypatch.setitem(head._parameters, "weight", torch.nn.Parameter(torch.full_like(head.weight, float("nan"))))
    with pytest.raises(FuseproofError, match="prompt enhancer failed on the prompt 'a red panda': RuntimeError: prob"):
        run(pipe, backend, replace(ENHANCED, pe_sampling="seeded"))
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("expected", "written"), [("wrote ' ' for", " "), ("failed on .* KeyError: 'x'", KeyError("x"))], ids=["", "error"]
)
def test_a_rewriter_is_held_to_the_same(
    longcat_pipe: Any, backend: str, expected: str, written: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rewire_prompt(_prompt: str, _device: torch.device) -> list[str]:
        if isinstance(written, Exception):
            raise written
        return [written]

    monkeypatch.setattr(type(longcat_pipe), "rewire_prompt", staticmethod(rewire_prompt))
    monkeypatch.setattr(longcat_pipe, "text_processor", object())
    with pytest.raises(FuseproofError, match=f"prompt rewriter {expected}"):
        run(longcat_pipe, backend, REWRITTEN)


def test_a_lack_of_memory_is_told_elsewhere() -> None:
    def write() -> str:
        raise torch.OutOfMemoryError("full")

    with pytest.raises(torch.OutOfMemoryError):
        text_written_by("prompt enhancer", "--use-pe", "a", write)


@pytest.mark.parametrize(
    ("expected", "template"),
    [
        ("leaves the prompt out: it makes ''", ""),
        ("leaves the prompt out: it makes 'Output:'", "Output:"),
        ("cannot be used: TemplateSyntaxError", "{% for x in %}"),
        ("cannot be used: TemplateError: no such role", "{{ raise_exception('no such role.') }}"),
    ],
    ids=["empty", "constant", "syntax", "raises"],
)
def test_a_chat_template_that_cannot_put_the_prompt_is_refused_before_anything_runs(
    pipe: Any, expected: str, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe.pe_tokenizer, "chat_template", template)
    with pytest.raises(FuseproofError, match=expected) as caught:
        refuse_unsupported(pipe, ENHANCED)
    assert "chat_template.jinja" in str(caught.value.next_step)


def test_a_tokenizer_that_cuts_nothing_is_not_said_to(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe.tokenizer, "model_max_length", 0)
    assert [] == list(remarks(pipe, SMALLEST, None, is_native=True))
    monkeypatch.setattr(pipe.tokenizer, "model_max_length", 5)
    assert ["a prompt has 12 tokens and only its first 5 were used"] == list(
        remarks(pipe, SMALLEST, None, is_native=True)
    )


# Schedules


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("expected", "steps", "changes"),
    [
        ("shift 1000000000.0, 2 of 2 steps share the timestep 1000", 2, {"shift": 1e9}),
        ("shift 3.0, shift_terminal 1.0, 3 of 3 steps share the timestep 1000", 3, {"shift_terminal": 1.0}),
        ("shift_terminal 0.1, 1 steps have a timestep that is NaN", 1, {"shift_terminal": 0.1}),
    ],
    ids=["shift", "terminal", "terminal-in-one-step"],
)
def test_timesteps_that_repeat_are_refused(
    pipe: Any, backend: str, expected: str, steps: int, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe, "scheduler", type(pipe.scheduler).from_config(pipe.scheduler.config, **changes))
    with pytest.raises(FuseproofError, match=expected):
        run(pipe, backend, replace(SMALLEST, num_inference_steps=steps))


def test_diffusers_itself_fails_on_them(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe, "scheduler", type(pipe.scheduler).from_config(pipe.scheduler.config, shift=1e9))
    with pytest.raises(IndexError):
        pipe("a", width=16, height=16, num_inference_steps=2, guidance_scale=1.0, use_pe=False, output_type="np")


@pytest.mark.parametrize(
    ("expected", "shift"), [("cannot be computed", 1e9), ("2 of 2 steps share the timestep 1000", 60.0)]
)
def test_longcats_shift_by_tokens_is_held_to_the_same(
    longcat_pipe: Any, expected: str, shift: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = longcat_pipe.scheduler
    changed = type(scheduler).from_config(scheduler.config, base_shift=shift, max_shift=shift)
    monkeypatch.setattr(longcat_pipe, "scheduler", changed)
    with pytest.raises(FuseproofError, match=expected):
        refuse_unsupported(longcat_pipe, replace(SMALLEST, num_inference_steps=2))


@pytest.mark.parametrize("changes", [{}, {"shift_terminal": 0.1}, {"invert_sigmas": True}, {"use_karras_sigmas": True}])
def test_other_schedules_pass_and_leave_the_scheduler_as_it_was(
    pipe: Any, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = type(pipe.scheduler).from_config(pipe.scheduler.config, **changes)
    monkeypatch.setattr(pipe, "scheduler", scheduler)
    before = dict(vars(scheduler))
    refuse_unsupported(pipe, replace(SMALLEST, num_inference_steps=50))
    assert before.keys() == vars(scheduler).keys()
    assert all(value is vars(scheduler)[name] for name, value in before.items())


# Configs


@pytest.mark.parametrize(
    ("expected", "file", "changes"),
    [
        ("three even", "transformer/config.json", {"rope_axes_dim": [64, 64]}),
        ("192 in all; a head's 128", "transformer/config.json", {"rope_axes_dim": [64, 64, 64]}),
        ("three even", "transformer/config.json", {"rope_axes_dim": [33, 47, 48]}),
        ("three even", "transformer/config.json", {"rope_axes_dim": [126, 1, 1]}),
        ('rope_axes_dim "abc"; three even', "transformer/config.json", {"rope_axes_dim": "abc"}),
        ("a head's 85 channels", "transformer/config.json", {"num_attention_heads": 3}),
        ("num_attention_heads 0; a positive", "transformer/config.json", {"num_attention_heads": 0}),
        ("rope_theta 0; a positive", "transformer/config.json", {"rope_theta": 0}),
        ('eps "x"; a positive number', "transformer/config.json", {"eps": "x"}),
        ("eps null; a positive number", "transformer/config.json", {"eps": None}),
        ("rms_norm_eps null; a positive", "pe/config.json", {"rms_norm_eps": None}),
        ('rms_norm_eps "x"; a positive', "text_encoder/config.json", {"text_config": {"rms_norm_eps": "x"}}),
        ("num_train_timesteps 0; a whole", "scheduler/scheduler_config.json", {"num_train_timesteps": 0}),
        ("num_train_timesteps null; a whole", "scheduler/scheduler_config.json", {"num_train_timesteps": None}),
        ("shift_terminal 1.0; null or", "scheduler/scheduler_config.json", {"shift_terminal": 1.0}),
        ("model_max_length 0; a positive", "pe_tokenizer/tokenizer_config.json", {"model_max_length": 0}),
        ("model_max_length -5; a positive", "pe_tokenizer/tokenizer_config.json", {"model_max_length": -5}),
        ('model_max_length "x"; a positive', "tokenizer/tokenizer_config.json", {"model_max_length": "x"}),
    ],
)
def test_a_config_that_cannot_be_computed_with_is_named_before_a_weight_is_read(
    tiny_ernie_folder: Path, tmp_path: Path, expected: str, file: str, changes: dict[str, object]
) -> None:
    folder = folder_with(tiny_ernie_folder, tmp_path / "model", file, changes)
    with pytest.raises(FuseproofError, match=expected) as caught:
        check_checkpoint(folder)
    assert caught.value.message.startswith(f"{file} in {folder} has ")


def longcat(**changes: object) -> list[str]:
    return list(number_faults({"eps": 1e-6, **changes}, "LongCatImageTransformer2DModel", "model"))


def test_the_rotary_axes_of_longcat_fill_a_head_too() -> None:
    assert [] == longcat() == longcat(axes_dims_rope=[16, 56, 56], attention_head_dim=128)
    assert ["has axes_dims_rope [16, 56, 56], 128 in all; a head's 64 channels were expected"] == longcat(
        attention_head_dim=64
    )


@pytest.mark.parametrize(
    ("expected", "class_name", "kind", "config"),
    [
        (["has num_train_timesteps 0; a whole number from 1 to 1,000,000 was expected"], "UniPCMultistepScheduler",
         "scheduler", {"num_train_timesteps": 0}),
        (["has eps 0; a positive number was expected"], "WanTransformer3DModel", "model", {"eps": 0}),
        (["has rope_max_seq_len 0; a whole number from 1 to 65,536 was expected"], "LongLive2Transformer3DModel",
         "model", {"rope_max_seq_len": 0}),
        (["has num_attention_heads 0; a positive whole number was expected"], "LongLive2Transformer3DModel",
         "model", {"num_attention_heads": 0}),
        (["has out_channels 4; 3, for red, green and blue, was expected"], "AutoencoderKLFlux2", "model",
         {"out_channels": 4}),
        (["has layer_norm_epsilon NaN; a positive number was expected"], "UMT5EncoderModel", "model",
         {"layer_norm_epsilon": float("nan")}),
        ([], "T5TokenizerFast", "tokenizer", {"model_max_length": int(1e30)}),
        (["has stochastic_sampling true; false was expected: it draws unseeded"], "FlowMatchEulerDiscreteScheduler",
         "scheduler", {"stochastic_sampling": True}),
        ([], "FlowMatchEulerDiscreteScheduler", "scheduler", {"shift_terminal": None, "num_train_timesteps": 1000}),
    ],
    ids=["wan-scheduler", "wan-model", "rope", "heads", "colours", "text", "no-limit", "drawn", "plain"],
)  # fmt: skip
def test_the_rules_of_other_families(
    expected: list[str], class_name: str, kind: str, config: dict[str, object]
) -> None:
    assert expected == list(number_faults(config, class_name, kind))


def fail_on_an_index(*_arguments: Any, **_options: Any) -> Callable[..., Any]:
    raise IndexError("index -1 is out of bounds")


def test_an_index_error_of_a_library_is_one_sentence(tiny_ernie_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import diffusers

    monkeypatch.setattr(diffusers.FlowMatchEulerDiscreteScheduler, "from_pretrained", fail_on_an_index)
    with pytest.raises(FuseproofError, match=r"The scheduler of .* cannot be loaded: index -1 is out of bounds"):
        load_pipeline(check_checkpoint(tiny_ernie_folder), dtype=torch.float32, device=CPU)
