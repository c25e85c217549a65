"""A PyTorch module with its loss and a client's data, as an oracle; only imported where PyTorch is wanted."""

from __future__ import annotations

import copy
import hashlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, IterableDataset, default_collate

from proxskip import theory
from proxskip.support.randomness import dropout_word
from proxskip.types import Array, Indices, InputError

Rows = dict[str, Tensor]
"""Tensors with one row per sample, by name: "inputs" and "targets", or the names of a dict."""
Tensors = dict[str, Tensor]
"""Parameters and buffers by their names in the module."""
Function = Callable[..., Any]
"""A loss or a metric: of outputs and targets, or of a module and a batch."""
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
ROWS_AT_ONCE = 4096
"""Rows that a full loss or gradient passes through the module in one go."""
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
"""Constants of splitmix64 (Steele, Lea, Flood, 2014) as signed words."""


def mixed(v: Tensor) -> Tensor:
    """The output function of splitmix64 on int64 tensors, which wrap around: the same bits on every device."""
    v = (v ^ ((v >> 30) & (2**34 - 1))) * _MIX[0]
    v = (v ^ ((v >> 27) & (2**37 - 1))) * _MIX[1]
    return v ^ ((v >> 31) & (2**33 - 1))


def masks_of(word: Tensor, client: Tensor) -> Tensor:
    """The key of a client's masks in the local step that has this word; both are int64 tensors."""
    return mixed(word + client * _GOLDEN)


Pair = int | Sequence[int]
"""One number for both directions of an image, or one for each."""


def convolved(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Pair = 1, padding: Pair | str = 0,
    dilation: Pair = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """``conv2d`` as a product of matrices, where it is a plain one.

    With a kernel of its own for each client, ``conv2d`` becomes a convolution in groups, for which libraries have slow
    kernels only; products of many small matrices are fast.
    """
    if input.ndim != 4 or isinstance(padding, str) or _pair(dilation) != (1, 1) or groups != 1:
        return torch.nn.functional.conv2d(input, weight, bias, stride, padding, dilation, groups)
    (down, right), (top, left), (O, _, a, b) = _pair(stride), _pair(padding), weight.shape
    H, W = (input.shape[2] + 2 * top - a) // down + 1, (input.shape[3] + 2 * left - b) // right + 1
    patches = torch.nn.functional.unfold(input, (a, b), padding=padding, stride=stride)  # (B, C a b, H W)
    product = (weight.reshape(O, -1) @ patches).reshape(len(input), O, H, W)
    return product if bias is None else product + bias[:, None, None]


def _pair(v: Pair) -> tuple[int, int]:
    first, second = (v, v) if isinstance(v, int) else v
    return first, second


class KeyedDropout(TorchFunctionMode):  # type: ignore[misc]
    """Dropout as a function of a key (None: no dropout), the number of the layer, and the place in the tensor.

    A generator with a state would make the masks depend on the order in which clients are computed.
    """

    def __init__(self, key: Tensor | None, many: bool = False) -> None:
        super().__init__()
        self.key, self.layer, self.many = key, 0, many

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.dropout:
            return self._dropout(*args, **kwargs)
        if self.many and func is torch.nn.functional.conv2d:
            return convolved(*args, **kwargs)
        return func(*args, **kwargs)

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0.0 or self.key is None:
            return input
        self.layer += 1
        place = torch.arange(input.numel(), device=input.device).reshape(input.shape)
        word = mixed(mixed(self.key ^ self.layer) + place * _GOLDEN)
        kept = ((word >> 40) & (2**24 - 1)) >= int(p * 2**24)
        return input * kept.to(input.dtype) / (1.0 - p if p < 1.0 else 1.0)


class _Called(torch.nn.Module):  # type: ignore[misc]
    """A function of a module and a batch, as a module that is called with the batch."""

    def __init__(self, function: Function, module: torch.nn.Module) -> None:
        super().__init__()
        self.function, self.module = function, module

    def forward(self, batch: Rows) -> Any:
        return self.function(self.module, batch)


class Model:
    """A PyTorch module with its loss on one client's data: x is the vector of its trainable parameters.

    The L and mu of a network are unknown, so give methods their gamma: ``ps.Scaffnew(gamma=0.1, p=0.1)``.
    Runs start at the module's weights. The module itself is never changed; ``module_at(x)`` is a copy at x.

    Args:
        module: any module whose buffers stay as they are; clients may share one. Its dropout acts in local steps if it
            is in training mode, with masks keyed by seed, client, round and step, never where the loss is evaluated.
        loss: ``loss(outputs, targets)``, a mean over the rows.
        inputs, targets: tensors with one row per sample, on the module's device. Or ``inputs`` is a dict of such
            tensors and ``targets`` is left out: loss and metrics are then functions of (module, batch), a dict of rows.
        l2: adds l2/2 |x|^2.
        L: the smoothness constant, if you know it; step sizes are then derived from it and checked.
        metrics: ``{"accuracy": f}`` with ``f(outputs, targets)``, a mean over the rows: each is a column of the trace.
        test: ``(inputs, targets)`` on which the metrics are evaluated instead, or a dict; clients may share one.
        may_move: accept a module that changes its buffers, as batch normalization does; ``moving`` are their names.
    """

    mu: float | None = None
    thread_safe = False

    def __init__(
        self,
        module: torch.nn.Module,
        loss: Function,
        inputs: Any,
        targets: Any = None,
        l2: float = 0.0,
        L: float | None = None,
        metrics: Mapping[str, Function] | None = None,
        test: Any = None,
        may_move: bool = False,
    ) -> None:
        if type(module).__name__ == "OptimizedModule":  # of torch.compile: engines differentiate and batch the original
            (module,) = module.children()
        self.module, self.loss = module, loss
        self.names = tuple(name for name, p in module.named_parameters() if p.requires_grad)
        _check(module, self.names)
        data = tensors_of(inputs if targets is None else (inputs, targets))
        self.of_batches, self.rows = isinstance(data, dict), _named(data)
        self.test, self.test_rows = test, self.rows if test is None else _named(tensors_of(test))
        weights = [module.get_parameter(name) for name in self.names]
        self.shapes = tuple(p.shape for p in weights)
        self.torch_dtype, self.device = weights[0].dtype, weights[0].device
        self.N, self.d, self.l2 = len(next(iter(self.rows.values()))), sum(p.numel() for p in weights), float(l2)
        self.given_L, self.L_known = None if L is None else theory.positive("L", L), L is not None
        self.metrics, self.may_move = dict(metrics or {}), may_move
        self.is_random, self.moving = self._try()

    def __repr__(self) -> str:
        return f"Model({type(self.module).__name__}, {self.d} parameters, {self.N} rows)"

    @property
    def L(self) -> float:
        """The smoothness constant that was given."""
        if self.given_L is None:
            raise InputError("the L of this module is unknown; pass a gamma, as in Scaffnew(gamma=0.1, p=0.1), or L.")
        return self.given_L

    @property
    def dtype(self) -> np.dtype[Any]:
        """The precision of its gradients, of those that numpy has."""
        return np.dtype(np.float64 if self.torch_dtype == torch.float64 else np.float32)

    @property
    def constants(self) -> Tensors:
        """What a step does not change: buffers and frozen parameters."""
        frozen = {name: p for name, p in self.module.named_parameters() if not p.requires_grad}
        return frozen | dict(self.module.named_buffers())

    def _try(self) -> tuple[bool, tuple[str, ...]]:
        """Refuse a loss without gradients, or a module with a state or draws of its own.

        Returns:
            Whether it has dropout, and the names of the buffers that it changes.
        """
        few = _extreme_rows(self.rows)
        modes = tuple((layer.training, layer.extra_repr()) for layer in self.module.modules())
        about = (
            self.loss, modes, self.may_move, tuple(self.metrics.items()), id(self.test),
            *((name, v.dtype, v.shape[1:], len(v) > 1, v.device) for name, v in few.items()),
        )  # fmt: skip
        ranges = [(int(v.min()), int(v.max())) for v in few.values() if v.dtype in INTEGERS and v.numel()]
        known, tried, found = _TRIED.get(self.module, (None, ranges, (False, ())))
        if known == about:  # clients that share a module are many
            if all(a <= low and high <= b for (low, high), (a, b) in zip(ranges, tried, strict=True)):
                return found
            ranges = [(min(low, a), max(high, b)) for (low, high), (a, b) in zip(ranges, tried, strict=True)]
        leaves = {name: self.module.get_parameter(name).detach().clone().requires_grad_(True) for name in self.names}
        buffers = {name: v.clone() for name, v in self.module.named_buffers()}
        tensors, dropout = leaves | buffers, KeyedDropout(torch.tensor(0, device=self.device))
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices), dropout:
            before = _generator_state(self.device)
            with in_a_sentence(f"the loss of a few rows cannot be computed{self._other_precision()}"):
                (loss,) = self._answers([self.loss], tensors, few)
            drew = not torch.equal(before, _generator_state(self.device))
        _check_loss(loss)
        if any(g is not None and g.is_sparse for g in _slopes(loss, leaves)):
            raise InputError("a gradient is sparse; make the embedding with sparse=False.")
        moving = tuple(name for name, v in buffers.items() if not same_bytes(v, self.module.get_buffer(name)))
        replaced = tuple(name for name, v in buffers.items() if tensors[name] is not v)
        if replaced or (moving and not self.may_move):
            raise InputError(
                f"the module changes its buffer {(replaced + moving)[0]}, which is not averaged; use GroupNorm or "
                "LayerNorm in place of batch normalization, put the layer in eval mode, or pass buffers= to train."
            )
        if drew:
            raise InputError(
                "the module draws random numbers without a key; use nn.Dropout, set the dropout inside attention "
                "layers to 0, or put the module in eval mode."
            )
        self._check_scale(tensors, few)
        with in_a_sentence("the metrics cannot be computed"):
            self.measured(tensors, self.module, _extreme_rows(self.test_rows))
        found = dropout.layer > 0, moving
        _TRIED[self.module] = about, ranges, found
        return found

    def _other_precision(self) -> str:
        """What to say of inputs in another precision than the parameters, such as those of numpy."""
        for name, v in self.rows.items():
            if v.is_floating_point() and v.dtype != self.torch_dtype:
                return f"; {name} are {v.dtype} and the parameters {self.torch_dtype}, so perhaps convert one of them"
        return ""

    def _check_scale(self, parameters: Tensors, few: Rows) -> None:
        """Refuse a loss that is not a mean over the rows: of rows that are all there twice a mean stays the same."""
        doubled = {name: torch.cat([v, v]) for name, v in few.items()}
        with torch.no_grad():
            once, twice = (float(self.loss_at(parameters, rows)) for rows in (few, doubled))
        if abs(twice - once) > 0.1 * abs(once):
            raise InputError(
                f"the loss is {once:.4g} for some rows and {twice:.4g} if each is there twice; give a loss that is "
                'a mean over the rows, such as one with reduction="mean".'
            )

    # -- between vectors and modules -----------------------------------------------------------------------------------
    def start(self) -> Array:
        """The module's weights."""
        flat = [self.module.get_parameter(name).detach().reshape(-1) for name in self.names]
        return np.asarray(torch.cat(flat).to("cpu", torch.float64).numpy())

    def parameters_at(self, flat: Tensor) -> Tensors:
        """The pieces of a flat tensor by the parameters' names, in their dtype."""
        flat = flat.to(self.torch_dtype)
        sizes = [shape.numel() for shape in self.shapes]
        pieces = flat.split(sizes)
        return {n: v.view(shape) for n, v, shape in zip(self.names, pieces, self.shapes, strict=True)}

    def module_at(self, x: Array) -> torch.nn.Module:
        """A copy of the module with the weights x, such as those of a result: ``model.module_at(result.x)``."""
        module = copy.deepcopy(self.module)
        with torch.no_grad():
            for name, v in self.parameters_at(self._flat(x)).items():
                module.get_parameter(name).copy_(v)
        return module

    def _flat(self, x: Array) -> Tensor:
        return torch.as_tensor(np.array(x), device=self.device)

    # -- values and gradients ------------------------------------------------------------------------------------------
    def _answers(
        self, functions: Iterable[Function], parameters: Tensors, rows: Rows, module: torch.nn.Module | None = None
    ) -> list[Any]:
        """What a loss or metrics say of these rows."""
        module = self.module if module is None else module
        if self.of_batches:
            named = {f"module.{name}": v for name, v in parameters.items()}
            return [functional_call(_Called(f, module), named, (rows,)) for f in functions]
        outputs = functional_call(module, parameters, (rows["inputs"],))
        return [f(outputs, rows["targets"]) for f in functions]

    def loss_at(
        self, parameters: Tensors, rows: Rows, key: Tensor | None = None, module: torch.nn.Module | None = None,
        many: bool = False,
    ) -> Tensor:  # fmt: skip
        """The loss on these rows as a tensor, with the dropout of a key; of this module, or of one like it.

        Args:
            many: for many clients at once: ``conv2d`` is a product of matrices.
        """
        with KeyedDropout(key, many):
            (loss,) = self._answers([self.loss], parameters, rows, module)
        return loss.reshape(())  # a shape of (1,) would be broadcast

    def value(self, x: Array) -> float:
        """The mean loss over all rows without dropout, and the regularizer."""
        parameters = self.parameters_at(self._flat(x))
        with torch.no_grad():
            total = _mean(lambda rows: float(self.loss_at(parameters, rows)), self.rows)
        return float(total + 0.5 * self.l2 * float(x @ x))

    def gradient(self, x: Array) -> Array:
        """The gradient over all rows, without dropout."""
        parameters = self._leaves(x)
        total = _mean(lambda rows: self._gradient(parameters, rows, None), self.rows)
        return np.asarray(total + self.l2 * x)

    def minibatch_gradient(self, x: Array, rows: Indices) -> Array:
        """The gradient over these rows, without dropout."""
        return self._gradient(self._leaves(x), self._picked(rows), None) + self.l2 * x

    def random_gradient(self, x: Array, rows: Indices | None, key: tuple[int, int, int, int]) -> Array:
        """The gradient over these rows (None for all) with dropout keyed by (seed, client, round, step)."""
        seed, client, round, step = key
        word, i = (torch.tensor(v, device=self.device) for v in (dropout_word(seed, round, step), int(client)))
        some = self.rows if rows is None else self._picked(rows)
        return self._gradient(self._leaves(x), some, masks_of(word, i)) + self.l2 * x

    def measure(self, x: Array) -> dict[str, float]:
        """The metrics at x, without dropout."""
        return self.measured(self.parameters_at(self._flat(x)), self.module)

    def measured(self, parameters: Tensors, module: torch.nn.Module, rows: Rows | None = None) -> dict[str, float]:
        """The metrics of a module with these parameters without dropout, on all test rows if none are given."""
        if not self.metrics:
            return {}

        def values(some: Rows) -> Array:
            answers = self._answers(self.metrics.values(), parameters, some, module)
            return np.array([_number(name, v) for name, v in zip(self.metrics, answers, strict=True)])

        with torch.no_grad(), KeyedDropout(None):
            means = _mean(values, self.test_rows if rows is None else rows)
        return dict(zip(self.metrics, means.tolist(), strict=True))

    def fingerprint(self) -> bytes:
        """A digest of the data, the weights' shapes and the loss."""
        digest = hashlib.sha256(repr((self.names, self.shapes, self.torch_dtype, self.l2, self.given_L)).encode())
        for v in (*self.rows.values(), *self.constants.values()):
            digest.update(repr((v.dtype, v.shape)).encode())
            digest.update(v.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.digest()

    def _leaves(self, x: Array) -> Tensors:
        return {n: v.detach().requires_grad_(True) for n, v in self.parameters_at(self._flat(x)).items()}

    def _gradient(self, leaves: Tensors, rows: Rows, key: Tensor | None) -> Array:
        slopes = _slopes(self.loss_at(leaves, rows, key), leaves)
        # a parameter that the loss does not depend on has the gradient zero
        parts = [torch.zeros_like(v) if g is None else g for g, v in zip(slopes, leaves.values(), strict=True)]
        return np.asarray(torch.cat([g.reshape(-1) for g in parts]).to("cpu", torch.float64).numpy())

    def _picked(self, rows: Indices) -> Rows:
        return picked(self.rows, torch.as_tensor(np.asarray(rows), device=self.device))


def picked(rows: Rows, which: Tensor | slice | int) -> Rows:
    """Some of the rows."""
    return {name: v[which] for name, v in rows.items()}


def _extreme_rows(rows: Rows) -> Rows:
    """A few rows to try functions on, with the smallest and largest integers, since labels and words may be refused."""
    N = len(next(iter(rows.values())))
    picks = {*range(min(2, N))}
    for v in (v.reshape(N, -1) for v in rows.values() if v.dtype in INTEGERS and v.numel()):
        picks |= {int(v.amin(1).argmin()), int(v.amax(1).argmax())}
    device = next(iter(rows.values())).device
    return picked(rows, torch.tensor(sorted(picks), device=device))


def _mean(part: Callable[[Rows], Any], rows: Rows) -> Any:
    """The mean over all rows of what ``part`` says of some of them, each a mean over its rows."""
    N = len(next(iter(rows.values())))
    if N <= ROWS_AT_ONCE:
        return part(rows)
    pieces = [slice(lo, min(N, lo + ROWS_AT_ONCE)) for lo in range(0, N, ROWS_AT_ONCE)]
    return sum((s.stop - s.start) / N * part(picked(rows, s)) for s in pieces)


_TRIED: MutableMapping[torch.nn.Module, tuple[Any, list[tuple[int, int]], tuple[bool, tuple[str, ...]]]]
_TRIED = weakref.WeakKeyDictionary()
"""Modules that were tried: with what, the ranges of its integers, and what ``Model._try`` found."""


def same_bytes(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal, NaNs included."""
    return bool(torch.equal(*(v.detach().reshape(-1).contiguous().view(torch.uint8) for v in (a, b))))


def _slopes(loss: Tensor, leaves: Tensors) -> tuple[Tensor | None, ...]:
    """The gradients by the leaves; None for those that the loss does not depend on."""
    slopes: tuple[Tensor | None, ...] = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return slopes


def _generator_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _number(metric: str, value: Any) -> float:
    if isinstance(value, Tensor) and value.numel() != 1:
        raise InputError(f"the metric {metric} gives {value.numel()} numbers; return one, a mean over the rows.")
    if not isinstance(value, (Tensor, np.generic, int, float)):
        raise InputError(f"the metric {metric} gives {value!r}; return a number, a mean over the rows.")
    return float(value)


@contextmanager
def in_a_sentence(what: str) -> Iterator[None]:
    """What a user's function raises, as one sentence."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"{what} ({reason}).") from error


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = f"{loss.numel()} numbers" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise InputError(f"the loss gives {what}; return a tensor with one number, a mean over the rows.")
    if not loss.requires_grad:
        raise InputError("the loss does not depend on the parameters by operations of PyTorch; there is no gradient.")


def tensors_of(data: Any, device: torch.device | None = None) -> Rows | tuple[Tensor, Tensor]:
    """A client's data as tensors with one row per sample: a dict of them, or a pair.

    Args:
        data: (inputs, targets), tensors in a dict, or a map-style Dataset whose items are such, which is read once.
        device: where the tensors are to be; where they are if not given.
    """
    if isinstance(data, (DataLoader, IterableDataset)):
        raise InputError(f"a client is a {type(data).__name__}; give its data set, which has items by number.")
    if hasattr(data, "__getitem__") and not isinstance(data, (Mapping, tuple, list, Tensor, str)):
        data = _collated(data)
    if not isinstance(data, Mapping) and not (isinstance(data, (tuple, list)) and len(data) == 2):
        raise InputError(
            f"a client is a {type(data).__name__}; give (inputs, targets), a dict of tensors, or a data set whose "
            "items are such."
        )
    try:
        rows = {name: torch.as_tensor(v, device=device) for name, v in _named(data).items()}
    except (RuntimeError, TypeError, ValueError):
        rows = {}
    if not rows or not all(v.ndim for v in rows.values()):
        raise InputError("a client's data must be tensors with one row per sample, or what torch.as_tensor makes such.")
    counts = {name: len(v) for name, v in rows.items()}
    if len({*counts.values()}) > 1 or not all(counts.values()):
        sizes = " and ".join(f"{count} {name}" for name, count in counts.items())
        raise InputError(f"there are {sizes}; give a client as many rows of each, and at least one.")
    if isinstance(data, Mapping):
        return rows
    inputs, targets = rows.values()
    is_class = not (targets.is_floating_point() or targets.dtype == torch.bool)
    return inputs, targets.long() if is_class else targets  # the only integers that all losses take as classes


def _named(data: Any) -> Rows:
    """The tensors by their names."""
    return dict(data if isinstance(data, Mapping) else zip(("inputs", "targets"), data, strict=True))


def _collated(data: Any) -> Any:
    """All items of a data set as one batch."""
    if not len(data):
        raise InputError("a client has an empty data set; leave the client out.")
    try:
        return default_collate([data[k] for k in range(len(data))])
    except (RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"the items of a data set cannot be stacked ({reason}); pad or cut them to one shape, and make each a pair "
            "or a dict of tensors."
        ) from None


def _check(module: torch.nn.Module, names: tuple[str, ...]) -> None:
    """Refuse what cannot be averaged, or repeated."""
    if isinstance(module, torch.jit.ScriptModule):
        raise InputError(
            "a compiled ScriptModule cannot be called with other weights; give the module it was made from."
        )
    if not names:
        raise InputError("the module has no parameter that requires a gradient; there is nothing to train.")
    for name in names:
        p = module.get_parameter(name)
        if torch.nn.parameter.is_lazy(p) or p.is_meta or p.is_complex():
            what = "complex" if p.is_complex() else "not initialized"
            raise InputError(f"the parameter {name} is {what}; give the module real weights.")
    kinds = {module.get_parameter(name).dtype for name in names}
    if len(kinds) > 1:
        raise InputError(f"the parameters have the dtypes {', '.join(sorted(map(str, kinds)))}; give them one.")
