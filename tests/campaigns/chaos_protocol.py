"""The protocol under faults and hostile messages, at length: `make chaos` prints what happened.

    python tests/campaigns/chaos_protocol.py schedules [100000] [--first 0]
    python tests/campaigns/chaos_protocol.py messages [100000] [--first 0]

They are counted from ``--first`` on, so that a long campaign can be made in parts.
"""

import argparse
import hashlib
import random
import sys
import time
import tracemalloc
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for campaigns and support

import proxskip as ps
from campaigns.chaos import tell
from proxskip.flower import ClientNode, ClientState, Server, Worker
from proxskip.flower.messages import encode
from proxskip.results import sealed
from support.lockstep import forked
from support.simulated_federation import Violation, simulate

LIMIT = 1 << 16
WRONG = (None, True, -1, 1.5, 2**70, "", "00", "local", [], [9], {}, {"a": 1}, float("nan"))
"""What a hostile client may write into a field of a message that is then sealed again."""
OTHER: dict[str, Any] = {"run": "ab" * 16, "client": 0, "ticket": 2**40, "exchange": 1, "base": 1, "round": 1}
"""Right values of a field, for another message than the one that is waited for."""


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


def waiting(d: int = 8) -> tuple[Server, bytes]:
    """A server that waits for client 1, and the answer it waits for."""
    problem = ps.Problem([ps.Quadratic(np.linspace(0.1, 1.0, d), np.full(d, 1.0 + i)) for i in range(3)])
    server = Server(ps.Scaffnew(0.5, 0.5), problem, 5, limit=LIMIT)
    asks = server.begin(bytes(range(16)))
    client = ClientNode(server.method, Worker(problem.clients[1], 1))
    _, (raw,) = client.step(ClientState(bytes(range(16))), encode(asks[1]))
    return server, raw


def mutated(rng: random.Random, raw: bytes, kinds: int = 8) -> bytes:
    """A message that no honest client sends: bytes changed, or fields and vectors forged and sealed again."""
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
        return rng.randbytes(rng.randrange(512))
    arrays, meta, _ = sealed.unseal(raw)
    if what == 4:
        arrays["0"][rng.randrange(len(arrays["0"]))] = rng.choice((np.nan, np.inf, -np.inf))
    elif what == 5:  # another kind, length or number of vectors
        (v,) = arrays.values()
        bits = v.view(np.uint8)
        arrays = rng.choice(
            ({}, {"0": v, "1": v}, {"1": v}, {"0": v[:-1]}, {"0": v[None]}, {"0": v.astype(np.float32)}, {"0": bits},
             {str(k): half for k, half in enumerate(np.array_split(bits, 2))}, {str(k): v[:1] for k in range(9)})
        )  # fmt: skip
    elif what == 6:  # a header of one's own, with a right seal
        length = int.from_bytes(raw[12:16], "little")
        body = bytearray(raw[:-32])
        body[12:16] = rng.choice((0, length - 1, length + 1, 2**32 - 1)).to_bytes(4, "little")
        return bytes(body) + hashlib.sha256(body).digest()
    elif rng.random() < 0.3 and OTHER.keys() <= meta.keys():
        name = rng.choice([*OTHER])
        meta[name] = OTHER[name]
    else:
        name = rng.choice([*meta, "another"])
        # a finite value is one that the server cannot know to be wrong
        wrong = [w for w in WRONG if repr(w) != repr(meta.get(name)) and (name, w) != ("value", 1.5)]
        meta[name] = rng.choice(wrong)
        if name != "another" and rng.random() < 0.1:
            del meta[name]
    return b"".join(sealed.seal(arrays, meta))


@dataclass
class Hostile:
    """What came of mutated messages."""

    accepted: int = 0
    crashes: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    most: int = 0
    """Bytes that one message made the server allocate, at most."""

    def one(self, waiting: Server, message: bytes) -> None:
        """One message to a server that waits, with every allocation traced."""
        server = forked(waiting)
        tracemalloc.reset_peak()
        held, begin = tracemalloc.get_traced_memory()[0], time.perf_counter()
        try:
            server.arrived(message, 1)
        except Exception as error:
            self.crashes.append(f"{type(error).__name__}: {error}")
            return
        self.slowest = max(self.slowest, time.perf_counter() - begin)
        self.most = max(self.most, tracemalloc.get_traced_memory()[1] - held)
        after = server.under_way
        self.accepted += after is None or 1 in after.answers or server.state.ticket != waiting.state.ticket
        self.refused.update({k: n for k, n in vars(server.state.counts).items() if n})


def hostile(count: int, seed: int = 0) -> Hostile:
    """So many messages to waiting servers, every fourth made from an answer that is as large as the cap allows."""
    small = waiting()
    overhead = len(small[1]) - 8 * 8
    large = waiting((LIMIT - overhead) // 8 - 8)  # its length takes more digits than that of the small one
    assert LIMIT - 128 < len(large[1]) <= LIMIT
    rng, found = random.Random(seed), Hostile()
    tracemalloc.start()
    try:
        for k in range(count):
            server, raw = small if k % 4 else large
            found.one(server, mutated(rng, raw))
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
    return tell(o.count, wrong + (most > 2.0), **refused, **{"most memory in size limits": round(most, 2)})


if __name__ == "__main__":
    sys.exit(main())
