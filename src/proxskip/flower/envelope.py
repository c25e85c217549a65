"""What a Flower message holds: the protocol's bytes as an array that Flower only carries, and a few words."""

from __future__ import annotations

import json
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from proxskip.types import InputError

STYPE = "proxskip.message"
KEY = "proxskip"
WORDS = 1 << 20
"""Bytes of words that a message holds at most."""
HELLO = "proxskip_hello"
"""The action of the message with which the server asks a node who it is."""


def wrap(raw: bytes | None, words: dict[str, Any]) -> RecordDict:
    """Bytes and words as a message's content; Flower sends arrays in pieces, so large ones go as one."""
    text = json.dumps(words, sort_keys=True)
    if len(text) > WORDS:
        raise InputError(
            f"the words of a message take {len(text)} bytes of {WORDS}; the method has too many parameters."
        )
    content = RecordDict({KEY: ConfigRecord({"words": text})})
    if raw is not None:
        content[f"{KEY}.bytes"] = ArrayRecord({"message": Array("uint8", (len(raw),), STYPE, raw)})
    return content


def unwrap(content: RecordDict, limit: int) -> tuple[bytes | None, dict[str, Any]]:
    """The bytes and the words; InputError where there are none. The array is never decoded by numpy."""
    record = content.get(KEY)
    words = record.get("words") if isinstance(record, ConfigRecord) else None
    if not isinstance(words, str) or len(words) > WORDS:
        raise InputError("a message without the words of proxskip came; run the same app on both sides.")
    try:
        found = json.loads(words)
    except (ValueError, RecursionError):
        raise InputError("the words of a message are not JSON.") from None
    if not isinstance(found, dict):
        raise InputError("the words of a message are not a JSON object.")
    arrays = content.get(f"{KEY}.bytes")
    if not isinstance(arrays, ArrayRecord):
        return None, found
    array = arrays.get("message")
    if array is None or array.stype != STYPE or len(array.data) > limit:
        raise InputError("a message holds an array that is not one of proxskip, or is over the limit.")
    return bytes(array.data), found
