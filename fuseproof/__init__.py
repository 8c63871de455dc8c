"""fuseproof: the same bits, sooner, with proof.

The rooms: :mod:`fuseproof.schedules` (what to run), :mod:`fuseproof.harness` (running and judging it, torch-free),
:mod:`fuseproof.fastpaths` (exact replacements of eager chains), :mod:`fuseproof.pipelines` (requests and models)
and :mod:`fuseproof.cli`. ``docs/architecture.md`` shows which may import which.
"""

__version__ = "0.1.0"
