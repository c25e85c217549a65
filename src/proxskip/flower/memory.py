"""A client's memory, stored on the node's disk and in the Context that Flower keeps in the node's process."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context

from proxskip.protocol import ClientState
from proxskip.results import checkpoint

KEY = "proxskip"
STYPE = "proxskip.vector"


def folder_of(context: Context, given: str | Path | None) -> Path:
    """The folder of the memories: as given, the node's setting ``memory``, or a folder in Flower's home."""
    found = given or context.node_config.get("memory")
    if found:
        return Path(str(found))
    home = os.environ.get("FLWR_HOME")
    return (Path(home) if home else Path.home() / ".flwr") / "proxskip"


def load(context: Context, folder: Path | None, run: bytes, i: int) -> ClientState:
    """The newer of the states that the disk and the Context hold for this run; a fresh one if there is none."""
    states = [state for state in (_from_disk(folder, run, i), _from_context(context, run)) if state is not None]
    if not states:
        return ClientState.fresh(run)
    # either may be behind: the disk where only its older generation is whole, the Context where the node restarted;
    # on a tie the disk wins
    return max(states, key=lambda s: (s.seen, s.committed, s.pending is not None))


def save(context: Context, folder: Path | None, i: int, state: ClientState) -> None:
    """Save to the disk first, then to the Context; if saving fails, nothing is sent."""
    arrays, meta = state.arrays(), state.meta()
    if folder is not None:
        checkpoint.save(folder / state.run.hex(), arrays, meta, name=f"client-{i}")
    # the bytes that a codec made are whole numbers
    vectors = {k: Array(v.dtype.str, v.shape, STYPE, v.tobytes()) for k, v in arrays.items()}
    context.state[f"{KEY}.arrays"] = ArrayRecord(vectors)
    context.state[KEY] = ConfigRecord({"meta": json.dumps(meta)})


def _from_context(context: Context, run: bytes) -> ClientState | None:
    record, arrays = context.state.get(KEY), context.state.get(f"{KEY}.arrays")
    if not isinstance(record, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        return None
    meta: Any = json.loads(str(record["meta"]))
    if meta["run"] != run.hex():
        return None
    return ClientState.of({k: np.frombuffer(v.data, v.dtype).copy() for k, v in arrays.items()}, meta)


def _from_disk(folder: Path | None, run: bytes, i: int) -> ClientState | None:
    if folder is None or not (folder / run.hex() / f"client-{i}").exists():
        return None
    try:
        saved = checkpoint.load(folder / run.hex(), name=f"client-{i}")
    except checkpoint.CheckpointError:
        return None  # both generations are damaged: treat the memory as lost; the server will notice
    state = ClientState.of(saved.arrays, saved.meta)
    return state if state.run == run else None
