"""Kernel tasks: references taken out of their files keep their bits, and the copied judge sees what it must."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fuseproof.cli.fastpaths_guide import read_guide
from fuseproof.fastpaths.check_values import filler
from fuseproof.fastpaths.families import kernel_module
from fuseproof.fastpaths.tasks.checking import fault
from fuseproof.fastpaths.tasks.comparing import difference
from fuseproof.fastpaths.tasks.folder import argument_rows
from fuseproof.fastpaths.tasks.inputs import Call, make
from fuseproof.fastpaths.tasks.references import reference_source
from fuseproof.fastpaths.tasks.texts import candidate_text
from fuseproof.fastpaths.tasks.timing import rows
from fuseproof.fastpaths.tracing import SiteCall
from fuseproof.pipelines.fastpath_vae_workloads import small_vae_calls
from fuseproof.pipelines.fastpath_wan_vae_workloads import small_wan_vae_calls
from fuseproof.pipelines.fastpath_workloads import SMALL, meta_model, site_calls
from tests.fastpaths.test_verification import residual_call

CPU = torch.device("cpu")


def taken_out(kernel: str, function: str = "reference"):
    """The ``reference``, or ``settle``, of a file of its own, which finds no module but torch's."""
    source = reference_source(kernel)
    assert "triton" not in source
    assert "import fuseproof" not in source
    assert "from fuseproof." not in source
    names: dict[str, object] = {}
    exec(compile(source, f"{kernel}.py", "exec"), names)
    return names[function]


def test_every_kernels_reference_can_be_taken_out() -> None:
    kernels = [name for name, contract in read_guide().contracts.items() if contract.has_bits_of_its_own]
    assert 20 < len(kernels)
    for kernel in kernels:
        assert callable(taken_out(kernel))


def small_calls() -> list[SiteCall]:
    model = meta_model("embedded:longcat-image")
    return [
        *site_calls(model.transformer, SMALL[0], model.family),
        *small_vae_calls(model.vae),
        *small_wan_vae_calls(),
        residual_call(),
    ]


def test_a_reference_that_was_taken_out_has_the_same_bits() -> None:
    judged = set()
    for call in small_calls():
        kernel = call.layout.operation
        arguments, _ = call.layout.make(CPU, filler("random", 3, CPU))
        expected = kernel_module(kernel).reference(*arguments)
        assert difference(taken_out(kernel)(*arguments), expected, same_strides=True) is None
        judged.add(kernel)
    assert {"layernorm_modulate", "qk_norm_rope", "causal_conv_input", "guidance_step"} <= judged


def test_what_a_model_would_compute_is_computed_in_random_calls() -> None:
    settled = set()
    for call in small_wan_vae_calls():
        kernel = call.layout.operation
        found, _ = call.layout.make(CPU, filler("random", 3, CPU))
        expected, _ = call.layout.make(CPU, filler("random", 3, CPU))
        taken_out(kernel, "settle")(found)
        own = getattr(kernel_module(kernel), "settle", None)
        if own is not None:
            own(expected)
            settled.add(kernel)
        assert difference(found, expected, same_strides=True) is None
    assert "wan_norm_silu" in settled


@pytest.mark.parametrize(("kind", "is_settled"), [("random", True), ("ties", False)])
def test_only_random_calls_are_settled(tmp_path: Path, kind: str, is_settled: bool) -> None:
    call = dataclasses.replace(call_of_four(), settle=lambda arguments: arguments[0].fill_(123.25))
    assert (make(call, kind, CPU, tmp_path).arguments[0] == 123.25).all().item() is is_settled


NAN = torch.tensor([float("nan"), 1.0])


@pytest.mark.parametrize(
    ("words", "found", "expected"),
    [
        pytest.param(None, NAN, NAN.clone(), id="the same NaN"),
        pytest.param("50.0000% of the values", torch.tensor([0.0, 1]), torch.tensor([-0.0, 1]), id="a sign of zero"),
        pytest.param("NaN".lower(), -NAN, NAN, id="another NaN"),
        pytest.param("float64, and", NAN.double(), NAN, id="dtype"),
        pytest.param("is [2] torch.float32, and [1, 2]", NAN, NAN[None], id="shape"),
        pytest.param("has strides [1, 2]", torch.ones(2, 2).t(), torch.ones(2, 2), id="strides"),
        pytest.param("the result 1", (NAN, NAN + 1), (NAN, NAN + 1.5), id="the second of two"),
        pytest.param("2 results were expected", NAN, (NAN, NAN), id="too few"),
        pytest.param("first at [1, 0]", torch.tensor([[1], [2]]), torch.tensor([[1], [3]]), id="integers"),
        pytest.param(None, torch.ones(2, dtype=torch.bool), torch.ones(2, dtype=torch.bool), id="booleans"),
        pytest.param(None, torch.ones(2, 1).t(), torch.ones(1, 2), id="strides of one element"),
    ],
)
def test_the_judge(words: str | None, found: object, expected: object) -> None:
    said = difference(found, expected, same_strides=True)
    assert (words is None and said is None) or (words is not None and said is not None and words in said)


class Liar(torch.Tensor):
    """Equal to everything."""

    def __ne__(self, other: object) -> object:
        return torch.zeros(self.shape, dtype=torch.bool)


class Yes(int):
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        return True


class Longer(tuple):
    def __len__(self) -> int:
        return 2


@pytest.mark.parametrize(
    ("words", "found", "expected"),
    [
        pytest.param("is a Liar, and a plain tensor", torch.zeros(2).as_subclass(Liar), torch.ones(2), id="tensor"),
        pytest.param("is a Parameter, and a plain", torch.nn.Parameter(torch.ones(2)), torch.ones(2), id="parameter"),
        pytest.param("is a Longer; 2 results", Longer([NAN]), (NAN, NAN), id="tuple"),
        pytest.param("was expected", Yes(1), 2, id="number"),
        pytest.param("was expected", True, 1, id="truth"),
    ],
)
def test_what_answers_for_itself_is_not_believed(words: str, found: object, expected: object) -> None:
    said = difference(found, expected, same_strides=True)
    assert said is not None
    assert words in said


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Static:
    """One buffer for every call, as a kernel with a workspace has that hands it out."""

    def __init__(self) -> None:
        self.buffer = torch.empty(4)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mul(x, 2, out=self.buffer)


class Views(Static):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return super().__call__(x)[:]


class Memory:
    """Right for the values that it has seen first, and for nothing else."""

    def __init__(self) -> None:
        self.result: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.result = doubled(x) if self.result is None else self.result
        return self.result.clone()


class Tired:
    """Right until it is timed."""

    calls = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return doubled(x) if self.calls < 10 else torch.zeros(4)


def call_of_four() -> Call:
    place = {"memory": 0, "dtype": "float32", "shape": [4], "strides": [1], "offset": 0}
    return Call("four", True, ("random",), ({"tensor": place},), {}, (16,), 32, None, lambda _: None)


@pytest.mark.parametrize(
    ("words", "candidate"),
    [
        pytest.param(None, doubled, id="right"),
        pytest.param("two calls gave the same memory", Static(), id="one buffer"),
        pytest.param("two calls gave the same memory", Views(), id="views of it"),
        pytest.param("of the values of the result differ", Memory(), id="the first values for all"),
        pytest.param("of the values of the result differ", Tired(), id="wrong once it is timed"),
    ],
)
def test_no_time_for_a_candidate_that_is_right_only_where_it_is_looked_at(
    words: str | None, candidate: Callable[..., object], tmp_path: Path
) -> None:
    (row,) = rows(candidate, doubled, [call_of_four()], CPU, tmp_path)
    assert (words is None) is (row.candidate is not None)
    assert words is None or words in str(row.wrong)


def test_the_test_sees_a_result_that_the_next_call_overwrites(tmp_path: Path) -> None:
    assert fault(doubled, doubled, call_of_four(), "random", CPU, tmp_path) is None
    assert "same memory" in str(fault(Static(), doubled, call_of_four(), "random", CPU, tmp_path))


def test_a_captures_texts_are_no_markup() -> None:
    layout = dataclasses.replace(residual_call().layout, arguments=("<script>|# `x`\n", None))
    text = "".join(dict(argument_rows("gated_residual", (), layout)).values())
    assert not {*"<>|#`\n"} & {*text.replace("&#", "")}
    assert "&#60;script&#62;" in text


def test_a_skeleton_takes_what_the_kernel_takes() -> None:
    text = candidate_text(("x: Tensor", "bias: Tensor | None = None", "eps: float = 1e-06"), ("out: Tensor",))
    assert "def candidate(x: torch.Tensor, bias: torch.Tensor | None = None, eps: float = 1e-06, out=None):" in text
    assert "return reference(x, bias, eps)" in text
    compile(text, "candidate.py", "exec")


def test_arguments_are_named_with_their_place_in_memory() -> None:
    rows = dict(argument_rows("gated_residual", ("residual: Tensor", "update", "gate"), residual_call().layout))
    assert "1x64 bfloat16, strides [384, 1], block 2, from element 128" == rows["gate"]
    assert "None" == rows["argument 3"]
    assert "1x40x64 bfloat16, strides [2560, 64, 1], block 0" == rows["out= (output)"]
