"""The content of a Flower message: the protocol's bytes, opaque to Flower, and a JSON object."""

from __future__ import annotations

import json
import logging
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from proxskip.types import InputError

log = logging.getLogger("flwr").log
"""Flower's own log."""
STYPE = "proxskip.message"
KEY = "proxskip"
MAX_JSON = 1 << 20
"""The most characters of JSON in a message."""
HELLO = "proxskip_hello"
"""The action that asks a node to identify itself."""


def wrap(raw: bytes | None, words: dict[str, Any]) -> RecordDict:
    """Bytes and a JSON object as a message's content; Flower splits large arrays itself."""
    text = json.dumps(words, sort_keys=True)
    if len(text) > MAX_JSON:
        raise InputError(
            f"the settings of a message have {len(text)} bytes, more than {MAX_JSON}; use fewer or shorter parameters."
        )
    content = RecordDict({KEY: ConfigRecord({"words": text})})
    if raw is not None:
        content[f"{KEY}.bytes"] = ArrayRecord({"message": Array("uint8", (len(raw),), STYPE, raw)})
    return content


def unwrap(content: RecordDict, limit: int) -> tuple[bytes | None, dict[str, Any]]:
    """The bytes (if any) and the JSON object of a message; InputError if it is not ours. numpy decodes nothing here."""
    record = content.get(KEY)
    words = record.get("words") if isinstance(record, ConfigRecord) else None
    if not isinstance(words, str) or len(words) > MAX_JSON:
        raise InputError("received a message that is not from proxskip; run the same app on both sides.")
    try:
        settings = json.loads(words)
    except (ValueError, RecursionError):
        raise InputError("the settings in a message are not JSON.") from None
    if not isinstance(settings, dict):
        raise InputError("the settings in a message are not a JSON object.")
    arrays = content.get(f"{KEY}.bytes")
    if not isinstance(arrays, ArrayRecord):
        return None, settings
    array = arrays.get("message")
    # our own type, so that Flower's converters leave the bytes alone
    if array is None or array.stype != STYPE or len(array.data) > limit:
        raise InputError("received an array that is not from proxskip or exceeds the limit; check the apps.")
    return bytes(array.data), settings
