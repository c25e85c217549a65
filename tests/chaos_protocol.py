"""The protocol under faults and hostile messages, at length: `make chaos` prints what happened.

    python tests/chaos_protocol.py schedules [100000] [--first 0]
    python tests/chaos_protocol.py messages [100000] [--first 0]

They are counted from ``--first`` on, so that a long campaign can be made in parts.
"""

import argparse
import random
import struct
import sys
import time
import tracemalloc
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

import proxskip as ps
from chaos import tell
from proxskip.protocol import Arrived, Begin, Client, ClientState, Server, ServerState, Worker
from proxskip.protocol.wire import HEAD, HEADER, _seal, encode
from simulated_federation import Violation, simulate

LIMIT = 1 << 16
FIELDS = {  # offset and kind of what a hostile client may write into a header that is then sealed again
    "magic": (0, "4s"), "version": (4, "B"), "kind": (5, "B"), "coded": (6, "B"), "status": (7, "B"),
    "run": (8, "16s"), "ticket": (24, "Q"), "round": (32, "Q"), "base": (40, "Q"), "value": (48, "d"),
    "exchange": (56, "I"), "client": (60, "I"), "K": (64, "I"), "d": (68, "I"), "vectors": (72, "B"),
    "own": (73, "B"), "zero": (74, "6s"), "attempt": (176, "I"), "place": (180, "I"), "asked": (184, "I"),
    "length": (188, "I"), "next length": (192, "I"), "end": (220, "4s"),
}  # fmt: skip


def campaign(lo: int, hi: int, first: bool = False) -> tuple[list[str], Counter[str], Counter[str]]:
    """These seeds (up to the first violation): violations, faults and what the servers counted."""
    bad, faults, counts = [], Counter[str](), Counter[str]()
    for seed in range(lo, hi):
        try:
            out = simulate(seed)
        except Violation as violation:
            bad.append(str(violation))
            if first:
                break
            continue
        faults.update(out.faults)
        counts.update(out.counts)
    return bad, faults, counts


def waiting(d: int = 8) -> tuple[Server, ServerState, bytes]:
    """A server that waits for client 1, and the answer it waits for."""
    problem = ps.Problem([ps.Quadratic(np.linspace(0.1, 1.0, d), np.full(d, 1.0 + i)) for i in range(3)])
    server = Server(ps.Scaffnew(0.5, 0.5), problem, 5, limit=LIMIT)
    state, asks = server.step(server.start(bytes(range(16))), Begin())
    client = Client(server.method, Worker(problem.clients[1], 1))
    _, (raw,) = client.step(ClientState.fresh(bytes(range(16))), encode(asks[1]))
    return server, state, raw


def mutated(rng: random.Random, raw: bytes, kinds: int = 7) -> bytes:
    """A message that no honest client sends: bytes changed, or fields and numbers forged and sealed again."""
    what = rng.randrange(kinds)
    if what == 0:  # bits
        out = bytearray(raw)
        for at in {rng.randrange(8 * len(raw)) for _ in range(rng.randrange(1, 4))}:
            out[at // 8] ^= 1 << at % 8
        return bytes(out)
    if what == 1:  # cut
        return raw[: rng.randrange(len(raw))]
    if what == 2:  # longer, up to beyond the limit
        return raw + rng.randbytes(rng.choice((1, 8, 64, LIMIT)))
    if what == 3:  # noise
        return rng.randbytes(rng.randrange(2 * HEADER))
    out = bytearray(raw)
    if what == 4:
        at = HEADER + 8 * rng.randrange((len(raw) - HEADER) // 8)
        out[at : at + 8] = struct.pack("<d", rng.choice((np.nan, np.inf, -np.inf)))
    elif what == 6:  # the same bytes as twice as many vectors through a codec, which unpack to twice the bytes
        n, (length,) = 2 * raw[72], struct.unpack_from("<I", raw, 188)
        out[6], out[72] = (1 << n) - 1, n
        out[188:220] = struct.pack("<8I", *([length // 2] * n + [0] * (8 - n)))
    else:
        at, kind = FIELDS[rng.choice(list(FIELDS))]
        size = struct.calcsize("<" + kind)
        old = bytes(out[at : at + size])
        forged = struct.pack("<d", rng.choice((np.nan, np.inf))) if kind == "d" else _other(rng, old, size)
        out[at : at + size] = forged
    head = bytes(out[: HEAD.size])
    return head + _seal(head, bytes(out[HEADER:])) + bytes(out[HEADER:])


def _other(rng: random.Random, old: bytes, size: int) -> bytes:
    while True:
        new = rng.choice((b"\xff" * size, bytes(size), rng.randbytes(size), bytes([rng.randrange(9)]) + old[1:]))
        if new != old:
            return new


@dataclass
class Hostile:
    """What came of mutated messages."""

    accepted: int = 0
    crashes: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    most: int = 0
    """Bytes that one message made the server allocate, at most."""

    def one(self, server: Server, state: ServerState, message: bytes) -> None:
        """One message to a server that waits, with every allocation traced."""
        tracemalloc.reset_peak()
        held, begin = tracemalloc.get_traced_memory()[0], time.perf_counter()
        try:
            after, _ = server.step(state, Arrived(message, 1))
        except Exception as error:
            self.crashes.append(f"{type(error).__name__}: {error}")
            return
        self.slowest = max(self.slowest, time.perf_counter() - begin)
        self.most = max(self.most, tracemalloc.get_traced_memory()[1] - held)
        changed = 1 in after.answers or after.vectors is not state.vectors or bool(after.failed)
        self.accepted += changed
        self.refused.update({k: n - getattr(state.counts, k) for k, n in vars(after.counts).items() if n})


def hostile(count: int, seed: int = 0) -> Hostile:
    """So many messages to waiting servers, every fourth made from an answer that is as large as the cap allows."""
    small, large = waiting(), waiting((LIMIT - HEADER) // 8)
    assert LIMIT - 8 < len(large[2]) <= LIMIT
    rng, found = random.Random(seed), Hostile()
    tracemalloc.start()
    try:
        for k in range(count):
            server, state, raw = small if k % 4 else large
            found.one(server, state, mutated(rng, raw))
    finally:
        tracemalloc.stop()
    return found


def main() -> int:
    """Print the counts; the exit code says whether all laws held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["schedules", "messages"])
    parser.add_argument("count", type=int, nargs="?", default=100_000)
    parser.add_argument("--first", type=int, default=0)
    o = parser.parse_args()
    if o.what == "schedules":
        bad, faults, counts = campaign(o.first, o.first + o.count)
        print("server:", ", ".join(f"{k} {v}" for k, v in counts.items()))
        print("\n".join(bad[:20]))
        return tell(o.count, len(bad), **faults, lost=counts["lost"], repaired=counts["repaired"])
    h = hostile(o.count, o.first)
    print("\n".join(h.crashes[:20]))
    print(f"slowest {1e3 * h.slowest:.1f} ms")
    wrong, most = len(h.crashes) + h.accepted, h.most / LIMIT
    refused = {f"refused as {k}": v for k, v in h.refused.items()}
    return tell(o.count, wrong + (most > 2), **refused, **{"most memory in size limits": round(most, 2)})


if __name__ == "__main__":
    sys.exit(main())
