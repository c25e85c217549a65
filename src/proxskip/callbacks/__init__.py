"""Ready-made callbacks: TensorBoard, MLflow, Weights & Biases, and a stopping rule of your own.

Pass them to ``run`` as ``callbacks=[...]``. Each needs its package only when it is made. A callback of your own is a
class with any of ``on_run_start(config)``, ``on_record(step, metrics)``, ``on_run_end(result)`` and
``on_run_error(error)``; ``Callback`` has all four, doing nothing.
"""

from collections.abc import Callable
from typing import Any

from proxskip.callbacks.trackers import MLflow, TensorBoard, WandB
from proxskip.loop.listen import Callback, Record
from proxskip.types import InputError

__all__ = ["Callback", "MLflow", "Record", "StopWhen", "TensorBoard", "WandB"]


class StopWhen(Callback):
    """Stop the run (status STOPPED) at the first record that meets the condition.

    Args:
        condition: of a record, such as ``lambda r: r["gap"] < 1e-3`` or one that looks at ``r.x``.
        reason: for the result's message.

    >>> import proxskip as ps
    >>> problem = ps.Problem(ps.random_quadratics(4, 3))
    >>> soon = ps.callbacks.StopWhen(lambda r: r["local_steps"] > 100, "enough steps")
    >>> result = ps.run("gd", problem, rounds=1000, callbacks=[soon])
    >>> result.status.name, result.message
    ('STOPPED', 'stopped by a callback after 26 rounds: enough steps.')
    """

    def __init__(self, condition: Callable[[Record], Any], reason: str = "") -> None:
        if not callable(condition):
            raise InputError("StopWhen needs a function of a record, such as lambda r: r['gap'] < 1e-3.")
        self.condition, self.reason = condition, reason

    def on_record(self, step: int, metrics: Record) -> None:
        if self.condition(metrics):
            raise StopIteration(self.reason)
