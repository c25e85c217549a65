"""Joining the process group of a job under torchrun, also after a restart."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

from proxskip.types import InputError


def init_process_group(backend: str | None = None, **options: Any) -> None:
    """As ``torch.distributed.init_process_group`` under torchrun, with a fresh start after each of its restarts.

    With PyTorch 2.13 and gloo the workers of ``torchrun --max-restarts`` otherwise find the addresses of the processes
    that died in the launcher's store, and cannot connect.

    Args:
        backend: as in PyTorch.
        options: further arguments, such as ``timeout``.
    """
    try:
        address, port, rank, ranks = (os.environ[k] for k in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"))
    except KeyError as missing:
        raise InputError(f"{missing} is not set; start the program with torchrun.") from None
    launcher_has_it = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = dist.TCPStore(address, int(port), is_master=rank == "0" and not launcher_has_it)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    fresh = dist.PrefixStore(f"attempt {attempt}", store)
    dist.init_process_group(backend, store=fresh, rank=int(rank), world_size=int(ranks), **options)
