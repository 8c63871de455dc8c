"""What of torch's process-wide state changes results, so that a site of one's own can be held to leaving it alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from fuseproof.fastpaths.numerics import float32_precision

Setting = tuple[str, Callable[[], Any], Callable[[Any], None]]


def _of_backend(words: str, backend: Any, attribute: str) -> Setting:
    return words, lambda: getattr(backend, attribute), lambda value: setattr(backend, attribute, value)


def _set_float32_precision(value: Any) -> None:
    """Put back what torch's older switch said; where a newer one was used, torch no longer lets the older one speak."""
    if value[0] is not None:
        torch.set_float32_matmul_precision(value[0])


SETTINGS: tuple[Setting, ...] = (
    ("default dtype", torch.get_default_dtype, torch.set_default_dtype),
    ("float32 matmul precision", float32_precision, _set_float32_precision),
    ("number of threads", torch.get_num_threads, torch.set_num_threads),
    (
        "deterministic algorithms",
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    ),
    ("gradient mode", torch.is_grad_enabled, torch.set_grad_enabled),
    _of_backend("cudnn.benchmark", torch.backends.cudnn, "benchmark"),
    _of_backend("cudnn.deterministic", torch.backends.cudnn, "deterministic"),
)


class TorchSettings:
    """The settings of this moment, and the state of the random generators of the CPU and of ``devices``."""

    def __init__(self, devices: Iterable[torch.device] = ()) -> None:
        self._values = [get() for _, get, _ in SETTINGS]
        self._cpu_random = torch.get_rng_state()
        self._cuda_random = {d: torch.cuda.get_rng_state(d) for d in set(devices) if d.type == "cuda"}

    def put_back(self, *, random: bool = True) -> str | None:
        """Undo what was changed since, and name the first such setting; None where nothing was."""
        changed = []
        for (words, get, put), before in zip(SETTINGS, self._values, strict=True):
            if get() != before:
                put(before)
                changed.append(f"torch's {words}")
        if random and self._put_random_back():
            changed.append("the state of torch's random generator")
        return changed[0] if changed else None

    def _put_random_back(self) -> bool:
        moved = not torch.equal(torch.get_rng_state(), self._cpu_random)
        if moved:
            torch.set_rng_state(self._cpu_random)
        for device, before in self._cuda_random.items():
            if not torch.equal(torch.cuda.get_rng_state(device), before):
                torch.cuda.set_rng_state(before, device)
                moved = True
        return moved
