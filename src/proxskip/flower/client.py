"""The ClientApp: load the memory, take one step of the protocol, save the memory, reply."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from proxskip.flower import TASK, memory
from proxskip.flower.envelope import HELLO, unwrap, wrap
from proxskip.flower.noise import Noise
from proxskip.flower.oracles import kind, l2, smoothness
from proxskip.on_demand.kernels import without_numba
from proxskip.protocol import wire
from proxskip.protocol.client import ClientNode
from proxskip.protocol.worker import Worker
from proxskip.results import description
from proxskip.types import InputError, Oracle

MODS_THAT_CHANGE_UPDATES = (
    "fixedclipping_mod", "adaptiveclipping_mod", "LocalDpMod", "secagg_mod", "secaggplus_mod",
)  # fmt: skip
"""Flower's mods that change updates on the way: h would then be computed from vectors that were not averaged."""
MAX_ORACLES = 64
"""Oracles that a process keeps in memory."""


def client_app(
    make_oracle: Callable[[Context], Oracle],
    memory_folder: str | Path | None = None,
    on_disk: bool = True,
    mods: Sequence[Any] = (),
    limit: int = wire.LIMIT,
    noise: Noise | None = None,
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
    """
    _check_mods(mods)
    if TASK in sys.modules:
        without_numba()
    app = ClientApp(mods=list(mods))
    ready: OrderedDict[tuple[int, int], Oracle] = OrderedDict()

    def oracle_of(context: Context) -> Oracle:
        key = (context.run_id, context.node_id)
        if key not in ready:
            ready[key] = make_oracle(context)
            if len(ready) > MAX_ORACLES:
                ready.popitem(last=False)
        return ready[key]

    @app.query(HELLO)
    def hello(message: Message, context: Context) -> Message:
        _, words = unwrap(message.content, limit)
        about = _about(oracle_of(context), context, words.get("batch"), noise)
        return Message(wrap(None, about), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        raw, words = unwrap(message.content, limit)
        if raw is None:
            raise InputError("a train message came without its bytes.")
        i, run = int(words["client"]), bytes.fromhex(words["run"])
        description.check_sampling(words)
        method, _ = description.revive({**words, "cohort": {"everyone": None}})
        # a worker is made for every message: all that it must not forget is in the memory on disk
        worker = Worker(oracle_of(context), i, int(words["seed"]), words["batch"])
        client = ClientNode(method, worker, int(words["itemsize"]), limit, noise)
        folder = memory.folder_of(context, memory_folder) if on_disk else None
        before = memory.load(context, folder, run, i)
        after, answers = client.step(before, raw)
        if after is not before:
            memory.save(context, folder, i, after)
        info = {"client": i, "gradients": worker.gradients}
        return Message(wrap(answers[0] if answers else None, info), reply_to=message)

    return app


def _about(oracle: Oracle, context: Context, batch: int | None, noise: Noise | None) -> dict[str, Any]:
    """What the server must know about a client before the first round."""
    worker = Worker(oracle, 0, 0, batch)  # refuses an oracle that cannot run
    node = context.node_config
    return {
        "d": worker.d,
        "N": worker.rows,
        "L": smoothness(oracle, batch),
        "mu": None if oracle.mu is None else float(oracle.mu),
        "partition": node.get("partition-id"),
        "name": node.get("name"),
        "kind": kind(oracle),
        "lambda": l2(oracle),
        "noise": None if noise is None else [noise.clip, noise.std],
    }


def _check_mods(mods: Sequence[Any]) -> None:
    """Refuse mods of Flower that change what is sent."""
    for mod in mods:
        name = getattr(mod, "__name__", type(mod).__name__)
        if name in MODS_THAT_CHANGE_UPDATES:
            raise InputError(
                f"{name} changes updates after h was computed from them, so sum_i w_i h_i would not stay zero; "
                "leave it out, or use client_app(..., noise=Noise(clip, std)), which adds noise before h is computed."
            )
