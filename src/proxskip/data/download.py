"""Downloads over https, by pooch; a file gets its name only after it has been verified."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urljoin, urlsplit

import pooch
import requests

from proxskip.data.svmlight import MAX_BYTES
from proxskip.types import InputError, printable

Progress = Callable[[int, int | None], None]
"""Called with the bytes received and, if the server tells it, the total."""
TIMEOUT = 30.0
"""Seconds without an answer after which an attempt is given up."""
RETRIES = 4
"""Further attempts, after waits of 1, 2, ... seconds."""


class _Refused(Exception):
    """A refusal that no retry would change."""


def download(
    url: str, target: Path, fault: Callable[[Path], str | None], progress: Progress | None, size: int | None = None
) -> None:
    """Download ``url`` to ``target``; ``fault(path)`` says what is wrong with the file, or None.

    Args:
        size: bytes that the file has at most, where that is known.
    """
    _check_address(url)
    # a name that no other file has, since pooch fetches nothing that is there already
    part = target.with_name(f".{target.name}-{os.getpid()}.part")
    cache = pooch.create(
        target.parent, base_url="", registry={part.name: None}, urls={part.name: url}, retry_if_failed=RETRIES
    )
    pooch.get_logger().setLevel(logging.WARNING)

    def downloader(url: str, file: str, _: pooch.Pooch) -> None:
        with open(file, "wb") as raw:
            sink = _Sink(raw, size or MAX_BYTES, progress)
            headers = {"User-Agent": "proxskip", "Accept-Encoding": "identity"}
            # http is of this machine, on which a proxy would not find a server
            proxies = {"http": ""} if url.startswith("http:") else None
            fetch = pooch.HTTPDownloader(
                progressbar=sink, chunk_size=2**16, timeout=TIMEOUT, headers=headers, proxies=proxies,
                hooks={"response": _check_answer},
            )  # fmt: skip
            fetch(url, sink, None)
        if wrong := fault(Path(file)):
            raise _Refused(f"what {url} sent is not {target.name} and was thrown away: {wrong}.")
        os.chmod(file, 0o644)  # temporary files are private, data sets are not

    try:
        cache.fetch(part.name, downloader=downloader)
        os.replace(part, target)
    except _Refused as refusal:
        raise InputError(printable(str(refusal))) from None
    except requests.RequestException as error:
        reason = printable(str(error)).split(": ")[-1]
        raise InputError(
            f"{target.name} could not be fetched from {url} ({reason}); try again with a network connection, "
            f"or copy the file {target.name.removesuffix('.bz2')}, plain or as .gz or .bz2, into {target.parent} "
            "or a folder named by PROXSKIP_DATA."
        ) from None
    except OSError as error:
        reason = error.strerror or "no permission"
        raise InputError(f"{target.parent} cannot be written to ({reason}); give another data_dir.") from None


def _check_address(url: str) -> None:
    """Refuse every address but those of https, and of http on this machine."""
    parts = urlsplit(url)
    local = parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme != "https" and not local:
        raise InputError(f"{url} is not an https address; data are only fetched over https.")


def _check_answer(answer: requests.Response, **_: object) -> None:
    """Refuse a redirect to another host or scheme, and an error for which no other attempt helps."""
    if answer.is_redirect:
        new = urljoin(answer.url, answer.headers["location"])
        if urlsplit(new)[:2] != urlsplit(answer.url)[:2]:
            raise _Refused(f"{answer.url} redirects to {new}, which is refused; fetch the file by hand.")
    elif 400 <= answer.status_code < 500 and answer.status_code != 429:
        raise _Refused(f"{answer.url} answered {answer.status_code} {answer.reason}; fetch the file by hand.")


@dataclass
class _Sink:
    """What pooch writes the bytes to, and what it takes for its progress bar."""

    file: IO[bytes]
    most: int
    progress: Progress | None
    total: int = 0
    received: int = 0

    def write(self, block: bytes) -> None:
        self.file.write(block)
        self.received += len(block)
        if self.received > self.most:
            raise _Refused(f"the server sends more than {self.most} bytes; fetch the file by hand.")
        if self.progress is not None:
            self.progress(self.received, self.total or None)

    def flush(self, _: int = 0) -> None:
        """Nothing to do."""

    update = reset = close = flush
