"""Compiles the transformer's blocks, shape by shape; where that fails, says so loudly and goes on without.

What is compiled must have eager's gradients: torch 2.10 and 2.11 can leave parts of them unwritten, the gradients of a
modulation's slices above all, when a sum over rows and one over columns share a kernel (pytorch/pytorch#193061). So
that is turned off, and every compiled shape is held against eager before the first step on it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from training.gradients import relative_error
from training.state import DivergedError

Rehearsal = Callable[[bool], torch.Tensor]
"""A step's loss, of all text tokens or some: what is run, forward and backward, to compile; it changes no weight."""
Prepare = Callable[[bool], None]
"""What is to be called before the first step with all text tokens, or with some."""

WITHOUT_MIXED_SUMS = {"triton.mix_order_reduction": False}
DISTURBANCE = 0.02
LARGEST_ERROR = 0.2
"""Of a weight's gradient, as a share of its norm: bf16 is a few percent off, one unwritten slice of twelve 29 %."""
MOST_SHAPES = 32
"""Variants of a block that may be compiled; beyond torch's own 8 it would run eagerly without a word."""


class GradientError(RuntimeError):
    """A compiled gradient is not eager's."""


class Compiled:
    """The transformer's blocks under torch.compile; called before the first step of each number of text tokens.

    What the compiler raises is printed, and so is a gradient that is not eager's; every block runs eagerly from then
    on. Too little memory is an error.
    """

    def __init__(self, transformer: Any, state: Any, rehearse: Rehearsal) -> None:
        self._transformer, self._state, self._rehearse = transformer, state, rehearse
        self.is_on = True
        torch._dynamo.config.recompile_limit = MOST_SHAPES
        transformer.compile_repeated_blocks(dynamic=False, options=WITHOUT_MIXED_SUMS)

    def __call__(self, full_text: bool) -> None:
        """Compile for all text tokens, or some of them; nothing where compiling has failed before."""
        if not self.is_on:
            return
        started = time.monotonic()
        try:
            error = self._gradient_error(full_text)
            sys.stderr.write(f"compiled in {time.monotonic() - started:.1f} s; {error}\n")
        except (torch.OutOfMemoryError, DivergedError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever a compiler raises, the stage can go on without it
            self._run_eagerly()
            sys.stderr.write(f"NOT COMPILED, SLOWER: {type(error).__name__}: {' '.join(str(error).split())[:300]}\n")
        finally:
            self._state.optimizer.drop_gradients()

    def _gradient_error(self, full_text: bool) -> str:
        """A sentence on the worst gradient; GradientError where it is not eager's, DivergedError where eager's is none.

        The text encoder is not compiled, and is left out: the biases of its keys hardly change its attention, and
        their gradient is rounding for a large part (21 % off in bf16).
        """
        named = [
            (f"{part}.{name}", weight)
            for part, module in self._state.modules.items()
            for name, weight in module.named_parameters()
            if weight.requires_grad and part != "text_encoder"
        ]
        weights = [weight for _, weight in named]
        with disturbed(weights):  # weights that begin at zero hide what lies behind them
            compiled = self._gradients(full_text, weights)
            with self._eager_blocks():
                eager = self._gradients(full_text, weights)
                wrong = [name for (name, _), one in zip(named, eager, strict=True) if not torch.isfinite(one).all()]
        if wrong:
            raise DivergedError(f"eager's own gradient of {wrong[0]} and {len(wrong) - 1} more are no numbers")
        errors = [relative_error(mine, true) for mine, true in zip(compiled, eager, strict=True)]
        worst = max(range(len(errors)), key=errors.__getitem__)
        sentence = f"the gradient of {named[worst][0]} is {100 * errors[worst]:.2g} % off eager's, no other is more"
        if errors[worst] > LARGEST_ERROR:
            raise GradientError(sentence)
        return sentence

    def _gradients(self, full_text: bool, weights: list[torch.Tensor]) -> list[torch.Tensor]:
        self._state.optimizer.drop_gradients()
        self._rehearse(full_text).backward()
        found = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights]
        self._state.optimizer.drop_gradients()
        return found

    @contextmanager
    def _eager_blocks(self) -> Iterator[None]:
        blocks = self._blocks()
        calls = [block._compiled_call_impl for block in blocks]
        for block in blocks:
            block._compiled_call_impl = None
        try:
            yield
        finally:
            for block, call in zip(blocks, calls, strict=True):
                block._compiled_call_impl = call

    def _run_eagerly(self) -> None:
        self.is_on = False
        torch._dynamo.reset()
        for block in self._blocks():
            block._compiled_call_impl = None

    def _blocks(self) -> list[Any]:
        return [*self._transformer.transformer_blocks, *self._transformer.single_transformer_blocks]


@contextmanager
def disturbed(weights: list[torch.Tensor]) -> Iterator[None]:
    """``weights`` with a little noise on them, always the same; as they were afterwards, bit for bit."""
    kept = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        for place, weight in enumerate(weights):
            generator = torch.Generator(weight.device).manual_seed(place)
            weight.add_(torch.randn(weight.shape, generator=generator, device=weight.device), alpha=DISTURBANCE)
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, before in zip(weights, kept, strict=True):
                weight.copy_(before)
