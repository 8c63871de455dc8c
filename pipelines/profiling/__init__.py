"""Where a request's time went: launches joined to module, line and site (``fuseproof.profile/1``).

:mod:`request` runs it under torch's profiler, :mod:`recording` makes plain events of what that saw, :mod:`joining` and
everything behind it are pure functions of those.
"""

from fuseproof.pipelines.profiling.request import profile_and_run

__all__ = ["profile_and_run"]
