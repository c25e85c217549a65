"""Trainings of a small network for the clients of ``torch_ranks``, and a callback that ends one."""

import os
import signal
from typing import Any

import torch

from proxskip.torch import train
from support import torch_ranks
from support.torch_ranks import RANKS


def accuracy(outputs: Any, targets: Any) -> Any:
    return (outputs.argmax(-1) == targets).float().mean()


def trained(setting, n=RANKS, rounds=20, dtype=torch.float64, **more):
    given = {"seed": 7, "rounds": rounds, "every": rounds, "device": "cpu", **setting, **more}
    return train(
        torch_ranks.virtual_module(dtype),
        torch.nn.functional.cross_entropy,
        torch_ranks.virtual_data(n, dtype),
        **given,
    )


def plain(q):
    return torch.optim.SGD(q, 0.1)


class Stopping:
    """Sends a signal to this process after a round."""

    def __init__(self, after, number=signal.SIGINT):
        self.after, self.number = after, number

    def on_record(self, step, metrics):
        if step == self.after:
            os.kill(os.getpid(), self.number)
