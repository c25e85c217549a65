"""Optimizers and averagers of PyTorch on ranks that are forked processes, joined by gloo as in a job."""

from __future__ import annotations

import multiprocessing as mp
import pickle
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from proxskip.conformance import laws
from proxskip.conformance.laws import ConformanceReport, Law, ObservedRun
from proxskip.problems.federated import Problem
from proxskip.theory import positive
from proxskip.types import Array, InputError

Make = Callable[[Any, float, int], Any]


@runtime_checkable
class Averager(Protocol):
    """As ``torch.distributed.algorithms.model_averaging.averagers.ModelAverager``."""

    def average_parameters(self, params: Any) -> Any:
        """Average the parameters over the ranks, if it is time."""
        ...


class QuadraticModule(torch.nn.Module):  # type: ignore[misc]
    """x in two tensors, so that parameter groups have something to cut."""

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
    make: Make, ranks: int, period: int, lr: float, steps: int, plain: bool, tol: float, timeout: float
) -> ConformanceReport:
    """See ``proxskip.conformance.check_optimizer``."""
    if ranks < 2 or period < 2:
        raise InputError(f"ranks = {ranks} and period = {period} must be at least 2, or there is nothing to check.")
    positive("timeout", timeout)
    if "fork" not in mp.get_all_start_methods():
        raise InputError("the ranks are forked, which this system cannot do; check the optimizer on Linux or macOS.")
    if not (dist.is_available() and dist.is_gloo_available()):
        raise InputError("this PyTorch was built without gloo, which joins the ranks; install another build.")
    if torch.cuda.is_initialized():
        raise InputError("this process has used CUDA, which its forks cannot; check the optimizer in another process.")
    if dist.is_initialized():
        raise InputError("this process is a rank of a real group already; check the optimizer in a separate process.")
    unlike, alike = laws.unlike_clients(ranks), laws.like_clients(ranks)
    seen, same = trajectories(make, (unlike, alike), period, lr, steps, timeout)
    run = observed(unlike, seen, lr)
    checked = [together(seen, period), laws.sign(run), laws.like(ObservedRun(alike, same[0]), tol)]
    checked += [laws.total(run), laws.controls(run, tol)] if plain else []
    return ConformanceReport((*checked, laws.fixed_point(run, tol)))


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


def trajectories(
    make: Make, problems: Sequence[Problem], period: int, lr: float, steps: int, timeout: float
) -> list[Array]:
    """For each problem, the parameters of every rank after every step, (ranks, 1 + steps, d)."""

    def walk(problem: Problem, r: int) -> Array:
        model = QuadraticModule()
        step, around = _step_of(make(model, lr, period), model)
        seen = [model.flat()]
        with around, np.errstate(all="ignore"):
            for _ in range(steps):
                model.put_gradient(problem.clients[r].gradient(seen[-1]))
                step()
                seen.append(model.flat())
        return np.stack(seen)

    by_rank = _on_ranks(problems[0].n, lambda r: [walk(problem, r) for problem in problems], timeout)
    return [np.stack(seen) for seen in zip(*by_rank, strict=True)]


def _step_of(trained: Any, model: QuadraticModule) -> tuple[Callable[[], Any], AbstractContextManager[Any]]:
    """One training step of what ``make`` returned, and what to enter around all of them."""
    if not isinstance(trained, tuple):
        return trained.step, nullcontext()
    optimizer, other = trained
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


def _on_ranks(n: int, body: Callable[[int], Any], timeout: float) -> list[Any]:
    """What it returns on each of n forked processes that form a group; the first error of a rank is raised."""
    # PyTorch imports many modules for its first optimizer: here, or every rank would do it
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or the ranks would print it again
    _BODY[:] = [body]
    others = set(mp.active_children())
    pool = ProcessPoolExecutor(n, mp.get_context("fork"))
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            # a rank uses no thread of this process, of which the warning speaks
            warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
            ranks = [pool.submit(_rank, r, n, folder, timeout) for r in range(n)]
            done, late = wait(ranks, timeout, FIRST_EXCEPTION)
            answers = [rank.result() for rank in ranks if rank in done]
        if late:
            raise TimeoutError(f"the ranks did not finish within {timeout:g} seconds; give a longer timeout.")
        return answers
    except BrokenProcessPool:
        raise InputError("a rank died before its last step.") from None
    finally:
        for process in set(mp.active_children()) - others:
            process.kill()
        pool.shutdown()


_BODY: list[Callable[[int], Any]] = []
"""What the ranks run: a fork inherits it, and it may be a closure, which could not be sent."""


def _rank(r: int, n: int, folder: str, timeout: float) -> Any:
    """One rank; its process stays until the caller has heard of all, so that no other loses its connection."""
    torch.set_num_threads(1)  # the threads of the caller are not in this process
    try:
        store = dist.FileStore(f"{folder}/meet", n)
        # longer than the caller waits, so that a hang is told in one sentence
        patience = timedelta(seconds=2 * timeout)
        dist.init_process_group("gloo", store=store, rank=r, world_size=n, timeout=patience)
        return _BODY[0](r)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise RuntimeError(f"{type(error).__name__}: {error}") from None  # it could not be sent
        raise
