"""Where two runs of a request first differ by a bit: what an arm's process watches, and how two arms are compared.

Nothing here is imported by a run that is not watched. The arm's process may load these files into another commit's
``fuseproof`` (``fuseproof.cli.diverge_arm``), so they ask little of the code around them: what they need of gates and
loops they look up by name, and leave out where it is not there.
"""
