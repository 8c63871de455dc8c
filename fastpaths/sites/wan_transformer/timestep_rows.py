"""Each token's timestep, known as one of few: embedded and projected once for each that differs, not for each token.

diffusers tells Wan 2.2 TI2V a timestep for every token, [B, S], although a clip from text has one, and a clip from an
image two: 0 in the image's frame, and the step's. Which tokens agree is read from the device once a request, before the
loop, where the loop announces its timesteps (``Mount.announce_steps``); for a timestep that nobody announced it is read
at the call that brings it.

A product over few rows may have other bits than one over all of them. So the first sight looks for the smallest of a
few row counts that gives eager's bits in fp32, before any rounding, and else computes all rows and takes what is
needed. Guidance branches share a step's rows.

Site: timestep_rows
Formula: ``time_proj(silu(time_embedder(sinusoids(timestep))))`` of the unique timesteps; each token takes its own.
Shapes: timestep [B, S] -> temb [B, R, D], projection [B, R, 6, D] and row_of_token [S] int32 (None where R is 1).
Rounds: where eager does.
Replaces: ``condition_embedder`` over B S rows in ``WanTransformer3DModel.forward``, diffusers 0.42.1, in every forward
    of every branch.
Exact: tokens of one timestep are compared with each other in eager's own result, bit by bit, and the rows computed with
    eager's; where either differs, every token keeps a row of its own.
Declines: hooks inside ``condition_embedder``, more than half as many timesteps as tokens, eager results that differ
    between tokens of one timestep. Then all tokens' rows are computed, as in eager. Where samples are told one timestep
    each (Wan 2.1) it has nothing to do.
Bytes: 12 B S D not written, and not read again in each block (230 MB at S 6240, D 3072).
Check first: if the trace shows ``time_proj`` over as many rows as there are tokens in every forward, read the site's
    reason: a loop that makes a new timestep tensor for each branch computes each anew.
Source: diffusers transformer_wan.py, pipeline_wan.py, pipeline_wan_i2v.py, 0.42.1.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from fuseproof.fastpaths.bits import bits_equal
from fuseproof.fastpaths.gates import Gate, GateMode, undecidable_because
from fuseproof.fastpaths.hoisting import HeldResults, are_countable, state_of
from fuseproof.fastpaths.operations import signature

ROW_COUNTS = (2, 16, 128, 1024)
"""Tried in this order, as far as they hold the unique rows and are fewer than the tokens."""
MANY_TIMESTEPS = "more than half as many timesteps as tokens"
UNEQUAL_TOKENS = "in eager, tokens of one timestep have different bits"
INTEGERS = {4: torch.int32, 8: torch.int64, 2: torch.int16}


class Rows(NamedTuple):
    """``temb`` [B, R, D] and ``projection`` [B, R, 6, D]; which of the R a token has, [S] int32, None: there is one."""

    temb: torch.Tensor
    projection: torch.Tensor
    row_of_token: torch.Tensor | None


@dataclass(frozen=True)
class Tokens:
    """Which tokens share a timestep. ``first`` [R] is a token of each row; ``row_of_token`` as in :class:`Rows`."""

    first: torch.Tensor
    row_of_token: torch.Tensor | None

    def __len__(self) -> int:
        return len(self.first)


class _Embedded(NamedTuple):
    """``embedding`` [B, N, D] in the embedder's dtype; ``temb`` [B, N, D], ``projection`` [B, N, 6 D] in the text's."""

    embedding: torch.Tensor
    temb: torch.Tensor
    projection: torch.Tensor


@dataclass(frozen=True)
class _Announced:
    timesteps: tuple[torch.Tensor, ...]
    state: Hashable
    tokens: Tokens | None

    def holds(self, timestep: torch.Tensor) -> bool:
        """Whether it is one of these very tensors, and nobody has written to any since."""
        return any(one is timestep for one in self.timesteps) and self.state == state_of(self.timesteps, ())


class TimestepRows(threading.local):
    """The rows of one mounted transformer's steps."""

    def __init__(self, transformer: Any, gate: Gate | None) -> None:
        self._transformer = transformer
        self._gate = gate
        self._counts: dict[Hashable, int | None] = {}
        self._held, self._known = HeldResults(), HeldResults()
        self._announced: _Announced | None = None

    def announce(self, timesteps: Sequence[torch.Tensor]) -> None:
        """The very tensors that the calls of this request will be given as ``timestep``, one a step. Waits once."""
        self._announced = None
        known = tuple(timesteps)
        is_alike = len({(one.shape, one.dtype, one.device) for one in known}) == 1 and known[0].ndim == 2
        if self._gate is not None and is_alike and are_countable(known) and not undecidable_because():
            self._announced = _Announced(known, state_of(known, ()), tokens_of(torch.cat(known)))

    def clear(self) -> None:
        """Drop all that this thread holds of a request."""
        self._announced = None
        self._held.clear()
        self._known.clear()

    def number(self, timestep: torch.Tensor) -> int | None:
        """How many rows the tokens of ``timestep`` share, which makes another kind of call; None where none do."""
        if self._gate is None or timestep.ndim == 1 or undecidable_because():
            return None
        tokens = self._tokens(timestep)
        return None if tokens is None else len(tokens)

    def of(self, timestep: torch.Tensor, dtype: torch.dtype, numerics: Hashable) -> Rows:
        """The rows of ``timestep`` [B] or [B, S] for a text of ``dtype``."""
        if timestep.ndim == 1:
            return self._of_samples(timestep, dtype)
        gate = self._gate
        if timestep.is_meta:  # where calls are only noted: as for an image, the larger case
            return self._rows(self._embedded(timestep[:, :2], dtype), _empty_tokens(timestep))
        if gate is None:
            return self._of_every_token(timestep, dtype)
        cause = undecidable_because()
        if cause is not None:
            rows: Rows = gate.run_eager(lambda: self._of_every_token(timestep, dtype), cause)
            return rows
        tokens = self._tokens(timestep)
        if tokens is None:
            return self._declined(MANY_TIMESTEPS, lambda: self._of_every_token(timestep, dtype))
        key = ("timestep_rows", signature(timestep), len(tokens), dtype, numerics)
        count = self._count(key, timestep, tokens, dtype)
        if count is None:
            return self._declined(UNEQUAL_TOKENS, lambda: self._of_every_token(timestep, dtype))
        return self._rows(self._through_gate(gate, (*key, count), timestep, tokens, dtype, count), tokens)

    def _through_gate(
        self, gate: Gate, key: Hashable, timestep: torch.Tensor, tokens: Tokens, dtype: torch.dtype, count: int
    ) -> _Embedded:
        """The unique rows: those that another branch of the step left, or computed now."""

        def fused() -> tuple[torch.Tensor, ...]:
            return tuple(self._of_count(timestep, tokens, dtype, count))

        sources = (timestep, *self._weights())
        entry = self._held.find(key, sources)

        def eager() -> tuple[torch.Tensor, ...]:
            return tuple(_picked(self._embedded(timestep, dtype), tokens.first))

        result: tuple[torch.Tensor, ...] = gate.run(key, fused if entry is None else lambda: entry.result, eager)
        if entry is None and key not in gate.rejections:
            self._held.hold(key, sources, result)
        return _Embedded(*result)

    def _count(self, key: Hashable, timestep: torch.Tensor, tokens: Tokens, dtype: torch.dtype) -> int | None:
        """Over how many rows the products are taken; None: tokens of one timestep differ in eager.

        Found at the first sight of ``key``, which waits for the device. A gate that is off compares nothing, so all
        rows are computed there.
        """
        assert self._gate is not None
        length = timestep.shape[1]
        if self._gate.mode is GateMode.OFF:
            return length
        if key not in self._counts:
            every = self._embedded(timestep, dtype)
            picked = _picked(every, tokens.first)
            if not bits_equal(tuple(every), tuple(_spread(picked, tokens, length))):
                self._counts[key] = None
            else:
                tried = (count for count in ROW_COUNTS if len(tokens) <= count < length)
                found = (one for one in tried if self._agrees(picked, timestep, tokens, dtype, one))
                self._counts[key] = next(found, length)
        return self._counts[key]

    def _agrees(
        self, picked: _Embedded, timestep: torch.Tensor, tokens: Tokens, dtype: torch.dtype, count: int
    ) -> bool:
        return bits_equal(tuple(picked), tuple(self._of_count(timestep, tokens, dtype, count)))

    def _of_count(self, timestep: torch.Tensor, tokens: Tokens, dtype: torch.dtype, count: int) -> _Embedded:
        """The unique rows out of products over ``count``: the last one stands for all that are missing."""
        if count >= timestep.shape[1]:
            return _picked(self._embedded(timestep, dtype), tokens.first)
        unique = timestep.index_select(1, tokens.first)
        padded = torch.cat([unique, unique[:, -1:].expand(-1, count - len(tokens))], dim=1)
        return _Embedded(*(_alone(part[:, : len(tokens)]) for part in self._embedded(padded, dtype)))

    def _of_every_token(self, timestep: torch.Tensor, dtype: torch.dtype) -> Rows:
        """A row for each token, as eager has them."""
        length = timestep.shape[1]
        every = torch.arange(length, dtype=torch.int32, device=timestep.device)
        embedded = self._embedded(timestep, dtype)
        return Rows(embedded.temb, embedded.projection.unflatten(2, (6, -1)), every if length > 1 else None)

    def _of_samples(self, timestep: torch.Tensor, dtype: torch.dtype) -> Rows:
        """One timestep a sample, [B]; the product is diffusers' own, over B rows."""
        model = self._transformer.condition_embedder
        temb, projection = self._projected(model.timesteps_proj(timestep), dtype)[1:]
        return Rows(temb.unsqueeze(1), projection.unflatten(1, (6, -1)).unsqueeze(1), None)

    def _rows(self, embedded: _Embedded, tokens: Tokens) -> Rows:
        return Rows(embedded.temb, embedded.projection.unflatten(2, (6, -1)), tokens.row_of_token)

    def _embedded(self, timestep: torch.Tensor, dtype: torch.dtype) -> _Embedded:
        """Of timesteps [B, N], in the order and dtypes of diffusers' ``condition_embedder``."""
        sinusoids = self._transformer.condition_embedder.timesteps_proj(timestep.flatten())
        return self._projected(sinusoids.unflatten(0, (-1, timestep.shape[1])), dtype)

    def _projected(self, sinusoids: torch.Tensor, dtype: torch.dtype) -> _Embedded:
        model = self._transformer.condition_embedder
        embedder_dtype = next(iter(model.time_embedder.parameters())).dtype
        embedding = model.time_embedder(sinusoids.to(embedder_dtype))
        temb = embedding.to(dtype)
        return _Embedded(embedding, temb, model.time_proj(model.act_fn(temb)))

    def _weights(self) -> tuple[torch.Tensor, ...]:
        model = self._transformer.condition_embedder
        return (*model.time_embedder.parameters(), *model.time_proj.parameters())

    def _tokens(self, timestep: torch.Tensor) -> Tokens | None:
        """Which tokens of ``timestep`` agree: announced, known from another branch, or read from the device now."""
        announced = self._announced
        if announced is not None and announced.holds(timestep):
            return announced.tokens
        entry = self._known.find("tokens", (timestep,)) if are_countable((timestep,)) else None
        if entry is not None:
            found: Tokens | None = None if entry.result is None else Tokens(*entry.result)
            return found
        tokens = tokens_of(timestep)
        self._known.hold("tokens", (timestep,), None if tokens is None else (tokens.first, tokens.row_of_token))
        return tokens

    def _declined(self, reason: str, eager: Any) -> Rows:
        rows: Rows = eager() if self._gate is None else self._gate.decline(reason, eager)
        return rows


def tokens_of(timesteps: torch.Tensor) -> Tokens | None:
    """Which of the S tokens agree in every row of ``timesteps`` [N, S]; None for more timesteps than half the tokens.

    Waits for the device.
    """
    codes = timesteps.view(INTEGERS[timesteps.element_size()]) if timesteps.is_floating_point() else timesteps
    length = codes.shape[1]
    as_first, as_last = ((codes == codes[:, at : at + 1]).all(dim=0) for at in (0, length - 1))
    is_one, are_two = torch.stack([as_first.all(), (as_first | as_last).all()]).tolist()
    if is_one:
        return Tokens(torch.zeros(1, dtype=torch.long, device=codes.device), None)
    if are_two:
        first = torch.tensor([0, length - 1], device=codes.device)
        return Tokens(first, as_first.logical_not().to(torch.int32))
    _, row_of_token = torch.unique(codes, dim=1, return_inverse=True)
    count = int(row_of_token.max()) + 1
    if 2 * count > length:
        return None
    places = torch.arange(length, device=codes.device)
    first = places.new_full((count,), length).scatter_reduce(0, row_of_token, places, "amin")
    return Tokens(first, row_of_token.to(torch.int32))


def _alone(part: torch.Tensor) -> torch.Tensor:
    """In memory of its own, with the strides of a fresh tensor even where the batch is 1."""
    return part.clone(memory_format=torch.contiguous_format)


def _picked(embedded: _Embedded, first: torch.Tensor) -> _Embedded:
    return _Embedded(*(part.index_select(1, first) for part in embedded))


def _spread(embedded: _Embedded, tokens: Tokens, length: int) -> _Embedded:
    """Each token's row, [B, S, ...]."""
    rows = tokens.row_of_token
    if rows is None:
        return _Embedded(*(part.expand(-1, length, -1) for part in embedded))
    return _Embedded(*(part.index_select(1, rows) for part in embedded))


def _empty_tokens(timestep: torch.Tensor) -> Tokens:
    length = timestep.shape[1]
    rows = torch.empty(length, dtype=torch.int32, device=timestep.device) if length > 1 else None
    return Tokens(torch.empty(min(length, 2), dtype=torch.long, device=timestep.device), rows)
