"""One file from one address, taken up again where an earlier attempt was cut off.

What has arrived stays in a ``.part`` file; the next attempt asks the server for the rest, and begins anew where the
server does not offer that. Whether the content is genuine is not decided here. Only http and https are spoken, and a
redirection never leads from https to anything else.
"""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import IO, Any, TypeAlias

from lehr.errors import StoreError

# Called with the name of a file, the bytes that are there, and the bytes in all where the server has said.
Progress: TypeAlias = Callable[[str, int, int | None], None]

_TIMEOUT = 30.0
_CHUNK = 256 * 1024
_ATTEMPTS = 3
_SURPLUS = 416  # asked for bytes after the end: the file is complete


def quiet(name: str, received: int, total: int | None) -> None:
    """Progress that nobody watches."""


def fetch(address: str, part: Path, *, at_most: int, progress: Progress = quiet, timeout: float = _TIMEOUT) -> None:
    """Bring ``part`` to the whole content of the address. Raises ``StoreError``, and keeps what came, if it cannot."""
    try:
        for _ in range(_ATTEMPTS):
            if _took_the_rest(address, part, at_most=at_most, progress=progress, timeout=timeout):
                return
    except ValueError as error:  # no address at all, or more than there should be, of which nothing is worth keeping
        part.unlink(missing_ok=True)
        raise StoreError(f"cannot download {address}: {error}") from error
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise StoreError(f"cannot download {address}: {_reason(error)}") from error
    except OSError as error:
        raise StoreError(f"cannot write {part}: {error.strerror or error}") from error
    raise StoreError(f"cannot download {address}: the connection was cut off {_ATTEMPTS} times; what came is kept")


def _took_the_rest(address: str, part: Path, *, at_most: int, progress: Progress, timeout: float) -> bool:
    """Whether the file is complete after one more request."""
    held = part.stat().st_size if part.exists() else 0
    asked = urllib.request.Request(address, headers={"Range": f"bytes={held}-"} if held else {})
    try:
        with _opener().open(asked, timeout=timeout) as response:
            start = held if _continues(response, held) else 0
            total = None if response.length is None else start + response.length
            with open(part, "r+b" if start else "wb") as file:
                file.seek(start)
                received = _copied(
                    response, file, start=start, at_most=at_most, report=_reporting(progress, part, total)
                )
    except urllib.error.HTTPError as error:
        error.close()
        if held and error.code == _SURPLUS:
            return True
        raise
    return total is None or received >= total


def _continues(response: http.client.HTTPResponse, held: int) -> bool:
    return response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {held}-")


def _copied(
    response: http.client.HTTPResponse, file: IO[bytes], *, start: int, at_most: int, report: Callable[[int], None]
) -> int:
    received = start
    while chunk := response.read(_CHUNK):
        received += len(chunk)
        if received > at_most:
            raise ValueError(f"it goes on after {at_most:,} bytes")
        file.write(chunk)
        report(received)
    file.flush()
    os.fsync(file.fileno())
    return received


def _reporting(progress: Progress, part: Path, total: int | None) -> Callable[[int], None]:
    return lambda received: progress(part.name.removesuffix(".part"), received, total)


class _Redirection(urllib.request.HTTPRedirectHandler):
    """Follows no redirection that leaves encryption behind."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        if req.type == "https" and not newurl.lower().startswith("https://"):
            raise urllib.error.URLError(f"it redirects from https to {newurl}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def _opener() -> urllib.request.OpenerDirector:
    """An opener that knows no file:, ftp: or data: addresses, which the usual one does."""
    opener = urllib.request.OpenerDirector()
    handlers: list[Any] = [
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirection(),
    ]
    for handler in handlers:
        opener.add_handler(handler)
    return opener


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code} {error.reason}"
    return str(getattr(error, "reason", error)) or type(error).__name__
