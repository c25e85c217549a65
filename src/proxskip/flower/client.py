"""The ClientApp: read the memory, take one step of the protocol, write the memory, answer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from proxskip.flower import memory
from proxskip.flower.envelope import HELLO, unwrap, wrap
from proxskip.flower.noise import Noise
from proxskip.flower.oracles import smoothness
from proxskip.protocol import Client, Worker, wire
from proxskip.results import description
from proxskip.types import InputError, Oracle

CHANGES_WHAT_IS_SENT = (
    "fixedclipping_mod", "adaptiveclipping_mod", "LocalDpMod", "secagg_mod", "secaggplus_mod",
)  # fmt: skip
"""Mods of Flower that alter updates on their way: h would then be learnt from vectors that were not averaged."""
KEPT = 64
"""Oracles that a process keeps ready."""


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
        make_oracle: from the Context of a node (its ``node_config["partition-id"]``, say) to the function that this
            client minimises; ``from_arrays``, ``from_svmlight`` and ``from_torch`` make one.
        memory_folder: where h is kept on disk; otherwise the node's setting ``memory``, or below Flower's home.
        on_disk: False keeps it in the node's process only: a restart then counts as lost memory, and is repaired.
        mods: mods of Flower that do not touch what is sent.
        noise: clip and disturb what is sent, for differential privacy.
    """
    for mod in mods:
        name = getattr(mod, "__name__", type(mod).__name__)
        if name in CHANGES_WHAT_IS_SENT:
            raise InputError(
                f"{name} changes updates after h was computed from them, so sum_i w_i h_i would not stay zero; "
                "leave it out; client_app(..., noise=Noise(clip, std)) disturbs what is sent and h with it."
            )
    app = ClientApp(mods=list(mods))
    ready: OrderedDict[tuple[int, int], Oracle] = OrderedDict()

    def oracle_of(context: Context) -> Oracle:
        key = (context.run_id, context.node_id)
        if key not in ready:
            ready[key] = make_oracle(context)
            if len(ready) > KEPT:
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
            raise InputError("a message to train came without its bytes.")
        i, run = int(words["client"]), bytes.fromhex(words["run"])
        method, _ = description.revive({**words, "cohort": {"everyone": None}})
        worker = Worker(oracle_of(context), i, int(words["seed"]), words["batch"])
        client = Client(method, worker, int(words["itemsize"]), limit, noise)
        folder = memory.folder_of(context, memory_folder) if on_disk else None
        before = memory.load(context, folder, run, i)
        after, answers = client.step(before, raw)
        if after is not before:
            memory.save(context, folder, i, after)
        told = {"client": i, "gradients": worker.gradients}
        return Message(wrap(answers[0] if answers else None, told), reply_to=message)

    return app


def _about(oracle: Any, context: Context, batch: int | None, noise: Noise | None) -> dict[str, Any]:
    """What the server must know of a client before the first round."""
    worker = Worker(oracle, 0, 0, batch)  # refuses what cannot run
    node, loss = context.node_config, getattr(oracle, "loss", None)
    return {
        "d": worker.d,
        "N": worker.rows,
        "L": smoothness(oracle, batch),
        "mu": None if oracle.mu is None else float(oracle.mu),
        "partition": node.get("partition-id"),
        "name": node.get("name"),
        "kind": loss if isinstance(loss, str) else type(oracle).__name__,
        "lambda": float(getattr(oracle, "l2", 0.0) or 0.0),
        "noise": None if noise is None else [noise.clip, noise.std],
    }
