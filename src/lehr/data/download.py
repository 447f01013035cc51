"""Download built-in data sets from their official addresses. A file gets its name only after its content is verified.

- ``get``: a verified copy on this machine, or else a download from the first source that works
- ``download_file``: one address, resumed where an earlier attempt was interrupted
- ``extract_files``: files of a data set out of a tar archive
"""

from __future__ import annotations

import hashlib
import http.client
import lzma
import os
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, TypeAlias

from lehr.data import catalogue, file_content
from lehr.data.catalogue import DataFile, DataSetInfo, Layout, PathLike, Source
from lehr.errors import StoreError

# Called with the name of a file, the bytes received, and the total where the server has stated it.
Progress: TypeAlias = Callable[[str, int, int | None], None]

_LARGEST_ARCHIVE = 512 * 1024**2
_GZIP_OVERHEAD = 1024**2  # the most that compression can add to a file it does not shrink
_TIMEOUT = 30.0
_CHUNK = 256 * 1024
_ATTEMPTS = 3
_RANGE_NOT_SATISFIABLE = 416


@dataclass(frozen=True, kw_only=True)
class FetchResult:
    """Where a data set is now (None if no source worked), where it came from, and the sources that failed."""

    folder: Path | None
    source: str | None
    failures: tuple[str, ...] = ()


def no_progress(name: str, received: int, total: int | None) -> None:
    """Report nothing."""


def get(
    info: DataSetInfo, data_dir: PathLike | None = None, *, offline: bool = False, progress: Progress = no_progress
) -> FetchResult:
    """Find a verified copy of the data set, or else download it from the first source that has it."""
    copy = catalogue.find_copy(info, data_dir)
    if copy is not None:
        return FetchResult(folder=copy.folder, source="this machine")
    if offline or info.layout is None:
        return FetchResult(folder=None, source=None)
    folder, failures = catalogue.target_folder(info, data_dir), []
    for source in info.sources:
        try:
            fetch_from(source, info.layout, folder, progress=progress)
        except StoreError as error:
            failures.append(str(error))
        else:
            return FetchResult(folder=folder, source=source.address, failures=tuple(failures))
    return FetchResult(folder=None, source=None, failures=tuple(failures))


def fetch_from(source: Source, layout: Layout, folder: Path, *, progress: Progress = no_progress) -> None:
    """Download the files of a data set into a folder. Raises ``StoreError`` if this source does not have them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if source.md5 is not None:
            part = folder / f"{PurePosixPath(source.address).name}.part"
            use = partial(_extract_verified, part, source, layout, folder)
            _fetch(source.address, part, use, at_most=_LARGEST_ARCHIVE, progress=progress)
            return
        for file in layout.files:
            target = folder / f"{file.name}.gz"
            try:
                catalogue.read_verified(file, target)
            except StoreError:
                part = target.with_name(f"{target.name}.part")
                use, at_most = partial(verify_and_rename, part, file, target), file.num_bytes + _GZIP_OVERHEAD
                _fetch(f"{source.address}{target.name}", part, use, at_most=at_most, progress=progress)
    except OSError as error:
        raise StoreError(f"cannot write to {folder}: {error.strerror or error}") from error


def _fetch(address: str, part: Path, use: Callable[[], None], *, at_most: int, progress: Progress) -> None:
    """Download and use a file. If a resumed download fails verification, download it once more from the start."""
    resumed = part.exists()
    download_file(address, part, at_most=at_most, progress=progress)
    try:
        use()
    except StoreError:
        if not resumed:
            raise
        download_file(address, part, at_most=at_most, progress=progress)
        use()


def verify_and_rename(part: Path, file: DataFile, target: Path) -> None:
    """Give a file its final name if its content is verified; remove it otherwise."""
    try:
        catalogue.read_verified(file, part)
    except StoreError:
        part.unlink(missing_ok=True)
        raise
    os.replace(part, target)


def _extract_verified(part: Path, archive: Source, layout: Layout, folder: Path) -> None:
    with open(part, "rb") as file:
        given = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if given == archive.md5:
            file.seek(0)
            extract_files(file, layout, folder, name=archive.address)
    part.unlink()
    if given != archive.md5:
        raise StoreError(f"cannot use {archive.address}: its content has the MD5 {given}, not {archive.md5}")


def extract_files(archive: IO[bytes], layout: Layout, folder: Path, *, name: str) -> None:
    """Extract the files of the layout, by base name, into the folder. Nothing else of the archive is written."""
    wanted = {name: file for file in layout.files for name in (file.name, f"{file.name}.gz")}
    missing = {file.name for file in layout.files}
    try:
        with tarfile.open(fileobj=archive, mode="r|*") as members:
            for member in members:
                base_name = PurePosixPath(member.name).name
                file = wanted.get(base_name)
                if file is None or file.name not in missing or not member.isreg():
                    continue
                if (stream := members.extractfile(member)) is not None:
                    part = folder / f"{base_name}.part"
                    with open(part, "wb") as copy:
                        for chunk in file_content.chunks(stream, at_most=file.num_bytes + _GZIP_OVERHEAD):
                            copy.write(chunk)
                        copy.flush()
                        os.fsync(copy.fileno())
                    verify_and_rename(part, file, folder / base_name)
                    missing.remove(file.name)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, TypeError, ValueError) as error:
        raise StoreError(f"cannot use {name}: it is truncated, damaged or not a tar archive ({error})") from error
    if missing:
        raise StoreError(f"cannot use {name}: it does not contain {', '.join(sorted(missing))}")


def download_file(
    address: str, part: Path, *, at_most: int, progress: Progress = no_progress, timeout: float = _TIMEOUT
) -> None:
    """Complete ``part`` to the content of an http(s) address. On failure raises ``StoreError`` and keeps what came."""
    try:
        for _ in range(_ATTEMPTS):
            if _resume(address, part, at_most=at_most, progress=progress, timeout=timeout):
                return
    except ValueError as error:  # not an address, or too many bytes: nothing worth keeping
        part.unlink(missing_ok=True)
        raise StoreError(f"cannot download {address}: {error}") from error
    except urllib.error.HTTPError as error:
        raise StoreError(f"cannot download {address}: the server answered {error.code} {error.reason}") from error
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        reason = str(getattr(error, "reason", error)) or type(error).__name__
        raise StoreError(f"cannot download {address}: {reason}") from error
    except OSError as error:
        raise StoreError(f"cannot write {part}: {error.strerror or error}") from error
    raise StoreError(f"cannot download {address}: the connection was cut off {_ATTEMPTS} times; what came is kept")


def _resume(address: str, part: Path, *, at_most: int, progress: Progress, timeout: float) -> bool:
    """Send one request for the missing bytes; return whether the file is complete."""
    held = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={held}-"} if held else {})
    try:
        with _opener().open(request, timeout=timeout) as response:
            content_range = response.headers.get("Content-Range", "")
            continues = response.status == 206 and content_range.startswith(f"bytes {held}-")
            received = held if continues else 0  # a server without ranges sends everything again
            total = None if response.length is None else received + response.length
            with open(part, "r+b" if received else "wb") as file:
                file.seek(received)
                while chunk := response.read(_CHUNK):
                    received += len(chunk)
                    if received > at_most:
                        raise ValueError(f"it has more than {at_most:,} bytes")
                    file.write(chunk)
                    progress(part.name.removesuffix(".part"), received, total)
                file.flush()
                os.fsync(file.fileno())
    except urllib.error.HTTPError as error:
        error.close()
        if held and error.code == _RANGE_NOT_SATISFIABLE:  # asked for bytes after the end: it is complete
            return True
        raise
    return total is None or received >= total


class _NoDowngrade(urllib.request.HTTPRedirectHandler):
    """Follows no redirection from https to anything else."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        if req.type == "https" and not newurl.lower().startswith("https://"):
            raise urllib.error.URLError(f"it redirects from https to {newurl}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener for http and https only; the default one also opens file:, ftp: and data: addresses."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _NoDowngrade(),
    ):
        opener.add_handler(handler)
    return opener
