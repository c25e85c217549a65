"""The ClientApp: load the memory, take one step of the protocol, save the memory, reply."""

from __future__ import annotations

import json
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from proxskip import theory
from proxskip.flower import messages, schema
from proxskip.flower.client import ClientNode, ClientState
from proxskip.flower.envelope import HELLO, KEY, unwrap, wrap
from proxskip.flower.noise import Noise
from proxskip.flower.worker import Worker
from proxskip.problems import gradient_check
from proxskip.problems.oracles import attribute, has_hessian, knows_L, row_smoothness_of, rows_of
from proxskip.results import checkpoint, description
from proxskip.types import InputError, Oracle

MODS_THAT_CHANGE_UPDATES = (
    "fixedclipping_mod", "adaptiveclipping_mod", "LocalDpMod", "secagg_mod", "secaggplus_mod",
)  # fmt: skip
"""Flower mods that change updates after h is computed from them."""
STYPE = "proxskip.vector"
"""The serialization type of memory arrays in Flower."""
FEWEST_ROWS = 10
"""A site with fewer rows sends no Hessian unless its administrator says otherwise."""
MAX_ORACLES = 64
"""Oracles that a process keeps in memory."""


def client_app(
    make_oracle: Callable[[Context], Oracle],
    memory_folder: str | Path | None = None,
    on_disk: bool = True,
    mods: Sequence[Any] = (),
    limit: int = messages.LIMIT,
    noise: Noise | None = None,
    least_rows: int | None = None,
) -> ClientApp:
    """A Flower ClientApp for every method of this library.

    Args:
        make_oracle: makes the client's function from the Context of its node (``node_config["partition-id"]``), by
            ``from_arrays``, ``from_svmlight`` or ``from_torch``.
        memory_folder: where h is stored; default: the node's setting ``memory``, or a folder in Flower's home.
        on_disk: if False, h is kept in the node's process only; a restart then loses it, and the server repairs it.
        mods: Flower mods that do not change what is sent.
        limit: the largest message in bytes.
        noise: clip what is sent and add noise to it, for differential privacy.
        least_rows: with fewer rows this site answers nothing. By default it answers, but sends no Hessian unless it has
            more rows than unknowns, and at least 10.
    """
    _check_mods(mods)
    app = ClientApp(mods=list(mods))
    ready: OrderedDict[tuple[int, int], Oracle] = OrderedDict()

    def oracle_of(context: Context) -> Oracle:
        key = (context.run_id, context.node_id)
        if key not in ready:
            oracle = make_oracle(context)
            if least_rows is not None and rows_of(oracle) < least_rows:
                raise InputError(
                    f"this site has {rows_of(oracle)} rows, and answers nothing with fewer than {least_rows}."
                )
            ready[key] = oracle
            if len(ready) > MAX_ORACLES:
                ready.popitem(last=False)
        return ready[key]

    @app.query(HELLO)
    def hello(message: Message, context: Context) -> Message:
        _, words = unwrap(message.content, limit)
        oracle, batch = oracle_of(context), words.get("batch")
        worker = Worker(oracle, 0, 0, batch)  # refuses an unsuitable oracle
        worker.least_rows = _fewest_rows(worker, least_rows)
        return Message(wrap(None, _about(worker, context, batch, noise)), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        raw, words = unwrap(message.content, limit)
        if raw is None:
            raise InputError("a train message has no content; run the same app on both sides.")
        i, run = int(words["client"]), bytes.fromhex(words["run"])
        method, _ = description.revive({**words, "cohort": {"everyone": None}})
        # a new worker for every message: everything to remember is in the memory on disk
        worker = Worker(oracle_of(context), i, int(words["seed"]), words["batch"])
        worker.least_rows = _fewest_rows(worker, least_rows)
        client = ClientNode(method, worker, int(words["itemsize"]), limit, noise)
        folder = _folder_of(context, memory_folder) if on_disk else None
        before = _load(context, folder, run, i)
        after, answers = client.step(before, raw)
        if after is not before:
            _save(context, folder, i, after)
        info = {"client": i, "gradients": worker.gradients}
        return Message(wrap(answers[0] if answers else None, info), reply_to=message)

    return app


def _fewest_rows(worker: Worker, least_rows: int | None) -> int:
    """With fewer rows, this site sends no Hessian."""
    return max(FEWEST_ROWS, worker.d + 1) if least_rows is None else least_rows


def _about(worker: Worker, context: Context, batch: int | None, noise: Noise | None) -> dict[str, Any]:
    """What the server must know about a client before the first round."""
    oracle, node = worker.oracle, context.node_config
    loss = getattr(oracle, "loss", None)
    return {
        "name": node.get("name"),
        "partition": node.get("partition-id"),
        "d": worker.d,
        "N": worker.rows,
        "L": _smoothness(oracle, batch),
        "mu": None if oracle.mu is None else float(oracle.mu),
        "kind": loss if isinstance(loss, str) else type(oracle).__name__,
        "l2": float(getattr(oracle, "l2", 0.0) or 0.0),
        "has_hessian": has_hessian(oracle),
        "columns": attribute(oracle, "columns"),
        "classes": attribute(oracle, "classes"),
        # it quotes two slopes of f, which a client that adds noise keeps to itself
        "contradiction": None if noise is not None else gradient_check.of_client(oracle, np.zeros(worker.d), 0),
        "least_rows": worker.least_rows,
        "noise": None if noise is None else [noise.clip, noise.std],
    }


def _smoothness(oracle: Oracle, batch: int | None) -> float | None:
    """The L that limits step sizes (with minibatches, the A of expected smoothness); None if unknown."""
    if not knows_L(oracle):
        return None
    rows = None if batch is None else row_smoothness_of(oracle)
    if batch is None or rows is None:
        return float(oracle.L)
    A, _ = theory.expected_smoothness(rows_of(oracle), batch, float(oracle.L), rows, math.nan)
    return float(A)


def _check_mods(mods: Sequence[Any]) -> None:
    """Refuse Flower mods that change what is sent."""
    for mod in mods:
        name = getattr(mod, "__name__", type(mod).__name__)
        if name in MODS_THAT_CHANGE_UPDATES:
            raise InputError(
                f"{name} changes updates after h is computed, so sum_i w_i h_i would not stay zero; leave it out, or "
                "use client_app(..., noise=Noise(clip, std)), which adds noise before h is computed."
            )


# -- memory: on the node's disk, or in Flower's Context ----------------------------------------------------------------
def _folder_of(context: Context, folder: str | Path | None) -> Path:
    """The memory folder: the argument, the node's setting ``memory``, or a folder in Flower's home."""
    if named := folder or context.node_config.get("memory"):
        return Path(str(named))
    return Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr") / "proxskip"


def _load(context: Context, folder: Path | None, run: bytes, i: int) -> ClientState:
    """The client's state in this run; a fresh one if it is missing or damaged, which the server will notice."""
    kept, arrays = context.state.get(KEY), context.state.get(f"{KEY}.arrays")
    state = fresh = ClientState(run)
    if folder is not None and (folder / run.hex() / f"client-{i}").exists():
        with suppress(checkpoint.CheckpointError):
            saved = checkpoint.load(folder / run.hex(), name=f"client-{i}")
            state = schema.joined(ClientState, saved.arrays, saved.meta)
    elif folder is None and isinstance(kept, ConfigRecord) and isinstance(arrays, ArrayRecord):
        vectors = {k: np.frombuffer(v.data, v.dtype).copy() for k, v in arrays.items()}
        state = schema.joined(ClientState, vectors, json.loads(str(kept["meta"])))
    return state if state.run == run else fresh


def _save(context: Context, folder: Path | None, i: int, state: ClientState) -> None:
    """Save the state before anything is sent."""
    arrays, meta = schema.split(state)
    if folder is not None:
        checkpoint.save(folder / state.run.hex(), arrays, meta, name=f"client-{i}")
        return
    vectors = {k: Array(v.dtype.str, v.shape, STYPE, v.tobytes()) for k, v in arrays.items()}
    context.state[f"{KEY}.arrays"] = ArrayRecord(vectors)
    context.state[KEY] = ConfigRecord({"meta": json.dumps(meta)})
