"""Callbacks that are ready to use: TensorBoard, MLflow, Weights & Biases, and an end of your own.

Pass them to ``run`` as ``callbacks=[...]``. Each needs its package only when it is made. A callback of your own is a
class with any of ``on_run_start(config)``, ``on_record(step, metrics)`` and ``on_run_end(result)``; ``Callback`` has
all three, doing nothing.
"""

from proxskip.callbacks.stop_when import StopWhen
from proxskip.callbacks.trackers import MLflow, TensorBoard, WandB
from proxskip.loop.listen import Callback, Record

__all__ = ["Callback", "MLflow", "Record", "StopWhen", "TensorBoard", "WandB"]
