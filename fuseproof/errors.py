"""The one error a user may meet: a sentence, what to do next, and an exit code (design contract 9).

Every room raises these for a user's mistake or an arm's failure, and only :mod:`fuseproof.cli.main` turns them into
text on stderr. Anything else that escapes is a bug and keeps its traceback.
"""


class FuseproofError(Exception):
    """Something failed: unreadable input, a failed arm, a mismatch. Exit code 1.

    ``message`` is one sentence with the value seen and the values allowed; ``next_step`` is one line that says what to
    do about it.
    """

    exit_code = 1

    def __init__(self, message: str, *, next_step: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step


class UsageError(FuseproofError):
    """The request itself cannot be carried out as written. Exit code 2, before anything is loaded or written."""

    exit_code = 2


class InvalidMeasurementError(FuseproofError):
    """What was measured proves nothing: unequal work, a busy device, a fallback, a missing graph. Exit code 6."""

    exit_code = 6
