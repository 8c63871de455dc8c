"""Following a request from the outside: where its loop begins, where each step ends, what the latents are there.

A native loop, and diffusers' own, tell a progress observer that a step was issued; the latents are the variable of that
name in the frame of the loop that told it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import torch

from fuseproof.errors import FuseproofError

LATENTS = ("latents", "noise")
"""What loops call what they work on; the second where a loop is handed its noise and has no latents yet."""
DENOISING = "DenoisingStage"


class StopHere(BaseException):
    """Ends a replay where what it was made for has been seen. No ``except Exception`` of a pipeline holds it."""


Reached = Callable[[int, torch.Tensor], None]


class RequestFollower:
    """A progress observer that counts a request's steps and hands on the latents between them.

    ``reached(number, latents)`` is called with 0 where the loop begins and with n behind step n, while a pass is
    :meth:`begin` to :meth:`end`; outside of it (a warm-up) nothing is told.
    """

    def __init__(self) -> None:
        self._reached: Reached | None = None
        self._number = -1

    def begin(self, reached: Reached) -> None:
        """The next request is one to follow."""
        self._reached, self._number = reached, -1

    def end(self) -> None:
        """That request has ended, by itself or not."""
        self._reached = None

    def stage_started(self, name: str, total_steps: int | None) -> None:
        """The first denoising stage is where the loop begins; a clip has one for every chunk."""
        if name == DENOISING and self._number < 0:
            self._tell(latents_of_the_loop)

    def step_finished(self, step: int) -> None:
        """The loop tells; steps are counted here, since a clip counts them anew in every chunk."""
        self._tell(latents_of_the_loop)

    def stage_finished(self, name: str, milliseconds: float) -> None:
        """Nothing depends on it."""

    def told(self, latents: torch.Tensor) -> None:
        """As the other two, by a caller that has the latents at hand."""
        self._tell(lambda: latents)

    def _tell(self, latents: Callable[[], torch.Tensor]) -> None:
        if self._reached is not None:
            self._number += 1
            self._reached(self._number, latents())


def latents_of_the_loop() -> torch.Tensor:
    """The latents of the innermost loop that is running; raises :class:`FuseproofError` where none calls them so."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        for name in LATENTS:
            value = frame.f_locals.get(name)
            if isinstance(value, torch.Tensor):
                return value
        frame = frame.f_back
    raise FuseproofError(
        f"the loop of this pipeline has no variable named {' or '.join(LATENTS)}, so its steps cannot be compared.",
        next_step="Compare the pictures with `fuseproof compare-media`.",
    )
