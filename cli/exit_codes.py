"""What the program's exit status says (docs/cli/README.md lists the codes for users)."""

DONE = 0
FAILED = 1
USAGE = 2
SLOWER = 3
CONTRACT = 4
NOT_REACHED = 5
INVALID = 6
INTERRUPTED = 130
TERMINATED = 143

ORDER = (INTERRUPTED, USAGE, FAILED, INVALID, CONTRACT, SLOWER, NOT_REACHED)
"""Where several codes apply, the first of these counts."""


def first_of(*codes: int) -> int:
    """The exit code that counts where several apply; 0 when none does."""
    return next((code for code in ORDER if code in codes), DONE)
