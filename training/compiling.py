"""Compiles the transformer's blocks, shape by shape; where that fails, says so loudly and goes on without."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch

Rehearsal = Callable[[bool], torch.Tensor]
"""A step's loss, of all text tokens or some: what is run, forward and backward, to compile; it changes no weight."""


class Compiled:
    """The transformer's blocks under torch.compile; called before the first step of each number of text tokens.

    What the compiler raises is printed, and every block runs eagerly from then on. Too little memory is an error.
    """

    def __init__(self, transformer: Any, state: Any, rehearse: Rehearsal) -> None:
        self._transformer, self._state, self._rehearse = transformer, state, rehearse
        self.is_on = True
        transformer.compile_repeated_blocks(dynamic=False)

    def __call__(self, full_text: bool) -> None:
        """Compile for all text tokens, or some of them; nothing where compiling has failed before."""
        if not self.is_on:
            return
        started = time.monotonic()
        try:
            self._rehearse(full_text).backward()
            sys.stderr.write(f"compiled in {time.monotonic() - started:.1f} s\n")
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a compiler raises, the stage can go on without it
            self._run_eagerly()
            sys.stderr.write(f"NOT COMPILED, SLOWER: {type(error).__name__}: {' '.join(str(error).split())[:300]}\n")
        finally:
            self._state.optimizer.drop_gradients()

    def _run_eagerly(self) -> None:
        self.is_on = False
        torch._dynamo.reset()
        for block in [*self._transformer.transformer_blocks, *self._transformer.single_transformer_blocks]:
            block._compiled_call_impl = None
