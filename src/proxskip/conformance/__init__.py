"""Is this Scaffold, is this Scaffnew, does this optimizer have its fixed point at the solution? Laws, checked.

``check`` takes a round function, ``check_optimizer`` an optimizer or averager of PyTorch (also torchft's), and
``check_strategy`` a strategy of Flower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proxskip.conformance.laws import ConformanceReport, Law
from proxskip.conformance.rounds import check, scaffold
from proxskip.types import InputError

__all__ = ["ConformanceReport", "Law", "check", "check_optimizer", "check_strategy", "scaffold", "simulated_manager"]


def check_optimizer(
    make: Callable[[Any, float, int], Any],
    *,
    ranks: int = 3,
    period: int = 4,
    lr: float = 0.2,
    steps: int = 800,
    plain: bool = True,
    tol: float = 1e-6,
    timeout: float = 600.0,
) -> ConformanceReport:
    """Check an optimizer or averager of PyTorch on quadratics, on ranks that are forked processes joined by gloo.

    Args:
        make: ``make(model, lr, period)`` for one rank: an optimizer that communicates in its ``step``; or a pair of an
            optimizer and an averager with ``average_parameters(params)``, as in ``torch.distributed``; or a pair of an
            optimizer and a context manager that hooks into its steps, as in torchft.
            It is called on every rank, so it may be a lambda or a closure, and what it changes stays on that rank.
        ranks: the number of ranks. They are joined by ``torch.distributed``, as usual.
        period: local steps between two communications, for ``make``. The points at which all ranks agree are found
            by looking, so that drawn periods may be checked too.
        steps: local steps of a run.
        plain: False if the inner optimizer is not SGD without momentum, so that corrections cannot be read off a step;
            the laws about them are then left out.
        tol: the relative error at which a run counts as having reached the solution.
        timeout: seconds after which ranks that have not finished are ended. An error of one rank ends all at once.
    """
    report: ConformanceReport = _optimizers().check_optimizer(make, ranks, period, lr, steps, plain, tol, timeout)
    return report


def simulated_manager() -> Any:
    """What torchft's classes ask of their ``Manager``, on the ranks of ``check_optimizer``."""
    return _optimizers().SimulatedManager()


def check_strategy(
    strategy: Any,
    client: Callable[[Callable[[Any], Any], float, int], Callable[..., Any]] | None = None,
    *,
    clients: int = 4,
    period: int = 4,
    lr: float = 0.2,
    rounds: int = 400,
    tol: float = 1e-6,
) -> ConformanceReport:
    """Check a strategy of Flower by its ``configure_train`` and ``aggregate_train``, on quadratics in this process.

    Args:
        strategy: a function without arguments that makes the strategy; called once for every run.
        client: ``client(gradient, lr, period)`` makes one client, a function of (message, context) that returns the
            reply, such as a ``ClientApp``. If not given, it takes ``period`` steps of gradient descent and returns its
            point.
    """
    try:
        from proxskip.conformance import strategies
    except ImportError:
        raise InputError('check_strategy needs Flower; install it with: pip install "proxskip[flower]"') from None
    return strategies.check_strategy(strategy, client, clients, period, lr, rounds, tol)


def _optimizers() -> Any:
    try:
        from proxskip.conformance import optimizers
    except ImportError:
        raise InputError('check_optimizer needs PyTorch; install it with: pip install "proxskip[torch]"') from None
    return optimizers
