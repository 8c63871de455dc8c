"""Which fast path an exception came out of: found in the traceback, so that no call pays for being asked."""

from __future__ import annotations

from types import FrameType

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.trials import is_device_error

EAGER_METHODS = frozenset({"run_eager", "decline"})
"""Methods of a gate that call the reference: what fails in there is eager's own failure."""


def site_at_fault(error: BaseException) -> str | None:
    """The site whose fused form was running when ``error`` was raised; None where eager's own arithmetic failed.

    At a first sight a gate keeps every exception of the fused form but a device's own, so any other is eager's.
    """
    site, trace = None, error.__traceback__
    while trace is not None:
        gate = trace.tb_frame.f_locals.get("self")
        if isinstance(gate, Gate):
            site = None if _runs_eager(gate, trace.tb_frame, error) else gate.site
        trace = trace.tb_next
    return site


def _runs_eager(gate: Gate, frame: FrameType, error: BaseException) -> bool:
    method = frame.f_code.co_name
    is_rejected = frame.f_locals.get("key") in gate.rejections
    return method in EAGER_METHODS or is_rejected or ("first_sight" in method and not is_device_error(error))
