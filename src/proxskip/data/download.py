"""Downloads over https into a temporary file, resumed after interruptions and renamed only after verification."""

from __future__ import annotations

import ipaddress
import os
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from proxskip.data.svmlight import MAX_BYTES
from proxskip.types import InputError, printable

Progress = Callable[[int, int | None], None]
"""Called with the bytes received and, if the server tells it, the total."""
TIMEOUT = 30.0
"""Seconds without an answer after which an attempt is given up."""
RETRY_WAITS = (0.5, 1.0, 2.0, 4.0)
"""Seconds to wait before each new attempt."""
DEADLINE = 3600.0
"""Seconds after which a download is given up, however it goes."""
LEAST_SPEED, SLOW_SECONDS = 1000.0, 30.0
"""Bytes per second below which a download is given up, measured from its beginning after this many seconds."""
MAX_PART_AGE = 86_400.0
"""Seconds after which a temporary file of a killed process is removed."""


def download(
    url: str, target: Path, fault: Callable[[Path], str | None], progress: Progress | None, size: int | None = None
) -> None:
    """Download ``url`` to ``target``; ``fault(path)`` says what is wrong with the file, or None.

    Args:
        size: bytes that the file has at most, where that is known.
    """
    opener = _opener(url)
    with _part(target.parent, target.name) as part:
        _try(_Transfer(url, part, opener, progress, size or MAX_BYTES), target)
        part.close()
        if wrong := fault(Path(part.name)):
            raise InputError(f"what {url} sent is not {target.name} and was thrown away: {wrong}.")
        # temporary files are private, data sets are not
        os.chmod(part.name, 0o644)
        os.replace(part.name, target)


@contextmanager
def _part(folder: Path, name: str) -> Iterator[IO[bytes]]:
    """A temporary file in the folder, removed afterwards unless it has been renamed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f".{name}-*.part"):  # left by a process that was killed
            if time.time() - old.stat().st_mtime > MAX_PART_AGE:
                old.unlink()
        file = tempfile.NamedTemporaryFile(dir=folder, prefix=f".{name}-", suffix=".part", delete=False)  # noqa: SIM115
    except OSError as error:
        raise InputError(f"{folder} cannot be written to ({error.strerror}); give another data_dir.") from None
    try:
        with file:
            yield file
    finally:
        Path(file.name).unlink(missing_ok=True)


def _opener(url: str) -> urllib.request.OpenerDirector:
    """An opener for https, or for http to this machine; other addresses are refused."""
    parts = urlsplit(url)
    local = parts.scheme == "http" and _is_loopback(parts.hostname or "")
    if parts.scheme != "https" and not local:
        raise InputError(f"{url} is not an https address; data are only fetched over https.")
    # a proxy would not find a server on this machine
    proxies = urllib.request.ProxyHandler({} if local else None)
    return urllib.request.build_opener(proxies, _SameHost)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows redirects only within the same host and scheme."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if (new.scheme, new.netloc) != (old.scheme, old.netloc):
            fp.close()
            raise InputError(f"{req.full_url} redirects to {newurl}, which is refused; fetch the file by hand.")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@dataclass
class _Transfer:
    """A download that resumes after an interruption, if the server supports it and its file is unchanged."""

    url: str
    file: IO[bytes]
    opener: urllib.request.OpenerDirector
    progress: Progress | None
    most: int = MAX_BYTES
    began: float = field(default_factory=time.monotonic)
    received: int = 0
    have: int = 0
    total: int | None = None
    version: str | None = None

    def attempt(self) -> bool:
        """Request the missing bytes and write them; True if the file is complete."""
        headers = {"User-Agent": "proxskip", "Accept-Encoding": "identity"}
        if self.have and self.version:
            headers |= {"Range": f"bytes={self.have}-", "If-Range": self.version}
        request = urllib.request.Request(self.url, headers=headers)
        with self.opener.open(request, timeout=TIMEOUT) as reply:
            # Without the range that was requested, the server sends the file from its beginning.
            if not reply.headers.get("Content-Range", "").startswith(f"bytes {self.have}-"):
                self._restart(reply.headers)
            self.file.seek(self.have)
            self.file.truncate()
            while block := reply.read1(2**16):  # what has arrived: a slow server must not hold us in one read
                self._write(block)
        self.file.flush()
        return self.total is None or self.have == self.total

    def _restart(self, headers: Any) -> None:
        length, tag = headers.get("Content-Length"), headers.get("ETag") or ""
        self.have, self.total = 0, int(length) if length and length.isdigit() else None
        # A weak tag (W/"...") does not promise the same bytes, so it cannot be used to resume.
        self.version = tag if tag.startswith('"') else headers.get("Last-Modified")

    def _write(self, block: bytes) -> None:
        self.file.write(block)
        self.have += len(block)
        self.received += len(block)
        if self.have > self.most:
            raise InputError(f"{self.url} sends more than {self.most} bytes; fetch the file by hand.")
        self._check_speed()
        if self.progress is not None:
            self.progress(self.have, self.total)

    def _check_speed(self) -> None:
        seconds = time.monotonic() - self.began
        if seconds > DEADLINE:
            raise InputError(f"{self.url} had not arrived after {DEADLINE:.0f} seconds; fetch the file by hand.")
        if seconds > SLOW_SECONDS and self.received < LEAST_SPEED * seconds:
            speed = f"{self.received / seconds:.0f} bytes per second, less than {LEAST_SPEED:.0f}"
            raise InputError(f"{self.url} sends {speed}; try again later, or fetch the file by hand.")


def _try(transfer: _Transfer, target: Path) -> None:
    """Attempt the transfer several times, and raise InputError if it never completes."""
    for wait in (*RETRY_WAITS, 0.0):
        try:
            if transfer.attempt():
                # on disk before it gets its name
                os.fsync(transfer.file.fileno())
                return
            why = "the connection was cut"
        except urllib.error.HTTPError as error:
            error.close()
            why = f"the server answered {error.code} {printable(str(error.reason))}"
            if error.code == 416:  # the range is outside the file: start again
                transfer.have = 0
            elif error.code < 500 and error.code != 429:  # no use in trying again
                break
        except (OSError, HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            why = printable(str(reason)) or type(error).__name__
        time.sleep(wait)
    raise InputError(
        f"{target.name} could not be fetched from {transfer.url} ({why}); try again with a network connection, "
        f"or copy the file {target.name.removesuffix('.bz2')}, plain or as .gz or .bz2, into {target.parent} "
        "or a folder named by PROXSKIP_DATA."
    )
