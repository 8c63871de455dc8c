"""One image over http(s): the whole answer before a deadline, or one sentence that says what went wrong.

The request runs in a thread of its own, because the deadline covers everything: looking the name up, connecting, each
redirect, headers that trickle in, the body. httpx2's own timeouts only limit the silence between two pieces.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from http import HTTPStatus
from typing import TYPE_CHECKING, NoReturn

from fuseproof.errors import FuseproofError, UsageError

if TYPE_CHECKING:
    import httpx2

SILENCE_LIMIT_S = 15.0
FETCH_LIMIT_S = 60.0
MOST_REDIRECTS = 5
DOWNLOAD_STEP = "Download it and pass the file."
ADDRESS_STEP = "Check the address."


def fetch(url: str, shown: str, largest_bytes: int) -> bytes:
    """The body that ``url`` answers with, at most ``largest_bytes + 1`` bytes of it; redirects within http(s) followed.

    A user and a password in the URL are sent as HTTP basic authentication. ``shown`` is the URL without them, for
    messages. Raises :class:`UsageError` for what is no URL, else :class:`FuseproofError`.
    """
    answer: Future[bytes] = Future()
    threading.Thread(target=_fetch_into, args=(answer, url, shown, largest_bytes), daemon=True).start()
    try:
        return answer.result(FETCH_LIMIT_S)
    except TimeoutError as error:
        raise FuseproofError(
            f"--image-path {shown} was not there after {FETCH_LIMIT_S:g} s.", next_step=DOWNLOAD_STEP
        ) from error


def _fetch_into(answer: Future[bytes], url: str, shown: str, largest_bytes: int) -> None:
    try:
        answer.set_result(_fetch(url, shown, largest_bytes))
    except BaseException as error:  # noqa: BLE001 (the waiting thread raises it)
        answer.set_exception(error)


def _fetch(url: str, shown: str, largest_bytes: int) -> bytes:
    import httpx2

    try:
        if not httpx2.URL(url).host:
            raise UsageError(f"--image-path {shown} names no host.", next_step=ADDRESS_STEP)
        with (
            httpx2.Client(follow_redirects=True, max_redirects=MOST_REDIRECTS, timeout=SILENCE_LIMIT_S) as client,
            client.stream("GET", url, headers={"User-Agent": "fuseproof", "Accept-Encoding": "identity"}) as response,
        ):
            if not response.is_success:
                raise FuseproofError(
                    f"--image-path {shown} answered {_status_text(response.status_code)}.", next_step=ADDRESS_STEP
                )
            return _body(response, shown, largest_bytes)
    except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError, ValueError, ImportError) as error:
        _refuse(error, shown)


def _body(response: httpx2.Response, shown: str, largest_bytes: int) -> bytes:
    import httpx2

    chunks: list[bytes] = []
    size = 0
    try:
        for chunk in response.iter_bytes():
            chunks.append(chunk)
            size += len(chunk)
            if size > largest_bytes:
                break
    except httpx2.ProtocolError as error:
        raise FuseproofError(
            f"--image-path {shown} was cut short after {size:,} bytes: {_reason(error)}.",
            next_step="Try again, or download it and pass the file.",
        ) from error
    return b"".join(chunks)


def _refuse(error: Exception, shown: str) -> NoReturn:
    import httpx2

    if isinstance(error, httpx2.InvalidURL):
        raise UsageError(f"--image-path {shown} is no URL: {_reason(error)}.", next_step=ADDRESS_STEP) from error
    if isinstance(error, httpx2.UnsupportedProtocol):
        reason = "it redirects to another scheme than http and https"
    elif isinstance(error, httpx2.TooManyRedirects):
        reason = f"it redirects more than {MOST_REDIRECTS} times"
    elif isinstance(error, httpx2.TimeoutException):
        reason = f"the server was silent for {SILENCE_LIMIT_S:g} s"
    elif isinstance(error, httpx2.ProtocolError):
        reason = f"the answer is not HTTP ({_reason(error)})"
    else:
        reason = _reason(error)
    raise FuseproofError(f"--image-path {shown} cannot be fetched: {reason}.", next_step=DOWNLOAD_STEP) from error


def _status_text(status: int) -> str:
    """Code and the standard's own words, not the server's, which may hold anything."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
