"""Optimizers and averagers of PyTorch on simulated ranks: the threads of one process.

PyTorch's own threaded process group (from its tests) joins the threads, so that what is checked calls
``torch.distributed`` as it does in a job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _set_thread_isolation_mode
from torch.testing._internal.distributed import multi_threaded_pg as threaded

from proxskip.conformance import laws
from proxskip.conformance.laws import ConformanceReport, Law, ObservedRun
from proxskip.problems.federated import Problem
from proxskip.types import Array, InputError

Make = Callable[[Any, float, int], Any]
_LOCK = threading.Lock()
"""One group of simulated ranks at a time."""


@runtime_checkable
class Averager(Protocol):
    """As ``torch.distributed.algorithms.model_averaging.averagers.ModelAverager``."""

    def average_parameters(self, params: Any) -> Any:
        """Average the parameters over the ranks, if it is time."""
        ...


class QuadraticModule(torch.nn.Module):  # type: ignore[misc]
    """x in two tensors, so that fragments and parameter groups have something to cut."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (torch.nn.Parameter(torch.zeros(k, dtype=torch.float64)) for k in (2, 3))

    def flat(self) -> Array:
        """A copy of x."""
        return np.concatenate([q.detach().numpy() for q in (self.a, self.b)])

    def put_gradient(self, g: Array) -> None:
        """What ``backward`` would leave."""
        for q, part in zip((self.a, self.b), np.split(g, [2]), strict=True):
            q.grad = torch.from_numpy(part.copy())


class SimulatedManager:
    """What ``torchft.local_sgd`` asks of ``torchft.Manager``: every quorum is everybody, every commit succeeds."""

    def __init__(self) -> None:
        self._use_async_quorum, self._step = False, 0

    def allreduce(self, tensor: torch.Tensor, should_quantize: bool = False, **options: Any) -> Any:
        """The mean over the ranks, in place; what comes back has ``wait`` and ``get_future``."""
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()
        return _Done(tensor)

    def start_quorum(self, *args: Any, **options: Any) -> None:
        """Everybody is there."""

    def wait_quorum(self) -> None:
        """Nobody has to be waited for."""

    def should_commit(self, timeout: Any = None) -> bool:
        """Always, and the step is counted."""
        self._step += 1
        return True

    def current_step(self) -> int:
        """Commits so far."""
        return self._step

    def num_participants(self) -> int:
        """All ranks."""
        return int(dist.get_world_size())

    def report_error(self, error: Exception) -> None:
        """It ends the check."""
        raise error

    def allow_state_dict_read(self) -> None:
        """Nobody reads."""

    def disallow_state_dict_read(self) -> None:
        """Nobody reads."""

    def register_state_dict_fn(self, key: str, load: Any, save: Any) -> None:
        """Nobody recovers."""


class _Done:
    """A work that is over."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._future.set_result(tensor)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def get_future(self) -> Any:
        return self._future


def check_optimizer(
    make: Make, ranks: int, period: int, lr: float, steps: int, plain: bool, tol: float
) -> ConformanceReport:
    """See ``proxskip.conformance.check_optimizer``."""
    if ranks < 2 or period < 2:
        raise InputError(f"ranks = {ranks} and period = {period} must be at least 2, or there is nothing to check.")
    if dist.is_available() and dist.is_initialized():
        raise InputError("this process is a rank of a real group already; check the optimizer in a separate process.")
    unlike, alike = laws.unlike_clients(ranks), laws.like_clients(ranks)
    seen = trajectories(make, unlike, period, lr, steps)
    run = observed(unlike, seen, lr)
    same = trajectories(make, alike, period, lr, steps)
    found: list[Law] = [together(seen, period), laws.sign(run)]
    found.append(laws.like(ObservedRun(alike, same[0]), tol))
    found += [laws.total(run), laws.controls(run, tol)] if plain else []
    return ConformanceReport((*found, laws.fixed_point(run, tol)))


def together(seen: Array, period: int) -> Law:
    """All ranks have the same parameters after a communication."""
    agreed = np.flatnonzero(agreement(seen))
    # many periods, since drawn ones vary, and warm-ups are allowed
    longest = int(np.diff([*agreed, seen.shape[1] - 1]).max())
    return laws.law("together", longest, 16 * period, "the ranks agree on x again and again (longest time without)")


def agreement(seen: Array) -> npt.NDArray[np.bool_]:
    """After which steps all ranks had the same parameters."""
    scale = 1.0 + np.abs(seen).max(axis=(0, 2))
    same: npt.NDArray[np.bool_] = np.abs(seen - seen[:1]).max(axis=(0, 2)) <= 1e-12 * scale
    return same


def observed(problem: Problem, seen: Array, lr: float) -> ObservedRun:
    """Common points and corrections, from the parameters of all ranks after every step."""
    agreed = agreement(seen)
    corrections = []
    # a step from a common point to different ones is local:  y_i = x - lr (grad f_i(x) - h_i)  gives h_i
    for s in np.flatnonzero(agreed[:-1] & ~agreed[1:]):
        g = problem.client_gradients(seen[0, s])
        corrections.append(g + (seen[:, s + 1] - seen[:, s]) / lr)
    return ObservedRun(problem, list(seen[0, agreed]), corrections)


def trajectories(make: Make, problem: Problem, period: int, lr: float, steps: int) -> Array:
    """The parameters of every rank after every step, (ranks, 1 + steps, d); nan after a rank that failed."""
    seen = np.full((problem.n, 1 + steps, problem.d), np.nan)

    def rank(r: int) -> None:
        model = QuadraticModule()
        step, around = _step_of(make(model, lr, period), model)
        seen[r, 0] = model.flat()
        with around:
            for s in range(1, 1 + steps):
                model.put_gradient(problem.clients[r].gradient(seen[r, s - 1]))
                step()
                seen[r, s] = model.flat()

    with np.errstate(all="ignore"):
        _on_ranks(problem.n, rank)
    return seen


def _step_of(made: Any, model: QuadraticModule) -> tuple[Callable[[], Any], AbstractContextManager[Any]]:
    """One training step of what ``make`` returned, and what to enter around all of them."""
    if not isinstance(made, tuple):
        return made.step, nullcontext()
    optimizer, other = made
    if isinstance(other, Averager):
        averager = other

        def both() -> None:
            optimizer.step()
            averager.average_parameters(model.parameters())

        return both, nullcontext()
    if isinstance(other, AbstractContextManager):
        return optimizer.step, other
    raise InputError(
        f"{type(other).__name__} has no average_parameters and is no context manager; make must return an optimizer, "
        "or an optimizer and one of these."
    )


def _on_ranks(n: int, body: Callable[[int], None]) -> None:
    """Run it on n threads that are the ranks of one process group; the first error of a rank is raised."""
    errors: list[BaseException] = []
    store = dist.HashStore()

    def thread(r: int) -> None:
        try:
            dist.init_process_group(backend="threaded", rank=r, world_size=n, store=store)
            body(r)
        except BaseException as error:  # what one rank raises must end the others, which wait for it
            errors.append(error)
            threaded.ProcessLocalGroup.exception_handle(error)
        finally:
            dist.destroy_process_group()

    with _LOCK:
        # threads get process groups of their own, as if they were processes
        _set_thread_isolation_mode(True)
        threaded._install_threaded_pg()
        threaded.ProcessLocalGroup.reset()
        try:
            threads = [threading.Thread(target=thread, args=(r,), daemon=True) for r in range(n)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        finally:
            threaded.ProcessLocalGroup.reset()
            threaded._uninstall_threaded_pg()
            _set_thread_isolation_mode(False)
    if errors:
        # a rank that was ended for another's error raises SystemExit
        raise next((e for e in errors if isinstance(e, Exception)), errors[0])
