"""A PyTorch module with its loss and a client's data, as an oracle; only imported where PyTorch is wanted."""

from __future__ import annotations

import copy
import hashlib
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from proxskip import theory
from proxskip.randomness import dropout_word
from proxskip.types import Array, InputError

ROWS_AT_ONCE = 4096
"""Rows that a full loss or gradient passes through the module in one go."""
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
"""Constants of splitmix64 (Steele, Lea, Flood, 2014) as signed words."""


def mixed(v: Any) -> Any:
    """The output function of splitmix64 on int64 tensors, which wrap around: the same bits on every device."""
    v = (v ^ ((v >> 30) & (2**34 - 1))) * _MIX[0]
    v = (v ^ ((v >> 27) & (2**37 - 1))) * _MIX[1]
    return v ^ ((v >> 31) & (2**33 - 1))


def masks_of(word: Any, client: Any) -> Any:
    """The key of a client's masks in the local step that has this word; both are int64 tensors."""
    return mixed(word + client * _GOLDEN)


def convolved(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any:
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


def _pair(v: Any) -> tuple[int, int]:
    return (v, v) if isinstance(v, int) else tuple(v)


class KeyedDropout(TorchFunctionMode):  # type: ignore[misc]
    """Dropout as a function of a key (None: no dropout), the number of the layer, and the place in the tensor.

    A generator with a state would make the masks depend on the order in which clients are computed.
    """

    def __init__(self, key: Any, many: bool = False) -> None:
        super().__init__()
        self.key, self.layer, self.many = key, 0, many

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.dropout:
            return self._dropout(*args, **kwargs)
        if self.many and func is torch.nn.functional.conv2d:
            return convolved(*args, **kwargs)
        return func(*args, **kwargs)

    def _dropout(self, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training or p == 0.0 or self.key is None:
            return input
        self.layer += 1
        place = torch.arange(input.numel(), device=input.device).reshape(input.shape)
        word = mixed(mixed(self.key ^ self.layer) + place * _GOLDEN)
        kept = ((word >> 40) & (2**24 - 1)) >= int(p * 2**24)
        return input * kept.to(input.dtype) / (1.0 - p if p < 1.0 else 1.0)


class Model:
    """A PyTorch module with its loss on one client's data: x is the vector of its trainable parameters.

    The L and mu of a network are unknown, so give methods their gamma: ``ps.Scaffnew(gamma=0.1, p=0.1)``.
    Runs start at the module's weights. The module itself is never changed; ``module_at(x)`` is a copy at x.

    Args:
        module: any module whose buffers stay as they are; clients may share one. Its dropout acts in local steps if it
            is in training mode, with masks keyed by seed, client, round and step, never where the loss is evaluated.
        loss: ``loss(outputs, targets)``, a mean over the rows.
        inputs, targets: tensors with one row per sample, on the module's device.
        l2: adds l2/2 |x|^2.
        L: the smoothness constant, if you know it; step sizes are then derived from it and checked.
        metrics: ``{"accuracy": f}`` with ``f(outputs, targets)``, a mean over the rows: each is a column of the trace.
        test: ``(inputs, targets)`` on which the metrics are evaluated instead; clients may share one pair.
    """

    mu: float | None = None
    thread_safe = False

    def __init__(
        self,
        module: torch.nn.Module,
        loss: Callable[..., Any],
        inputs: Any,
        targets: Any,
        l2: float = 0.0,
        L: float | None = None,
        metrics: Mapping[str, Callable[..., Any]] | None = None,
        test: tuple[Any, Any] | None = None,
    ) -> None:
        if type(module).__name__ == "OptimizedModule":  # of torch.compile: engines differentiate and batch the original
            (module,) = module.children()
        self.module, self.loss, self.inputs, self.targets = module, loss, inputs, targets
        self.names = tuple(name for name, p in module.named_parameters() if p.requires_grad)
        _check(module, self.names, inputs, targets)
        if not (targets.is_floating_point() or targets.dtype == torch.bool):
            self.targets = targets.long()  # the only integers that all losses take as classes
        weights = [module.get_parameter(name) for name in self.names]
        self.shapes = tuple(p.shape for p in weights)
        self.torch_dtype, self.device = weights[0].dtype, weights[0].device
        self.N, self.d, self.l2 = len(inputs), sum(p.numel() for p in weights), float(l2)
        self.given_L, self.L_known = None if L is None else theory.positive("L", L), L is not None
        self.metrics, self.test = dict(metrics or {}), test
        self.is_random = self._try()

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
    def constants(self) -> dict[str, Any]:
        """What a step does not change: buffers and frozen parameters."""
        frozen = {name: p for name, p in self.module.named_parameters() if not p.requires_grad}
        return frozen | dict(self.module.named_buffers())

    def _try(self) -> bool:
        """Refuse a loss without gradients, or a module with a state or draws of its own; whether it has dropout."""
        few, data = _extreme_rows(self.targets), (self.inputs, self.targets)
        modes = tuple((layer.training, layer.extra_repr()) for layer in self.module.modules())
        labels = (
            tuple(self.targets[few].tolist()) if self.targets.dtype == torch.long and self.targets.ndim == 1 else ()
        )
        about = (
            self.loss, modes, len(few), labels, *((v.dtype, v.shape[1:], v.device) for v in data),
            tuple(self.metrics.items()), id(self.test),
        )  # fmt: skip
        if self.module in _TRIED and _TRIED[self.module][0] == about:
            return _TRIED[self.module][1]  # clients that share a module are many
        leaves = {name: self.module.get_parameter(name).detach().clone().requires_grad_(True) for name in self.names}
        buffers = {name: v.clone() for name, v in self.module.named_buffers()}
        tensors, dropout = leaves | buffers, KeyedDropout(torch.tensor(0, device=self.device))
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices), dropout:
            before = _generator_state(self.device)
            with _in_a_sentence("the loss of two rows cannot be computed"):
                loss = self.loss(functional_call(self.module, tensors, (self.inputs[few],)), self.targets[few])
            drew = not torch.equal(before, _generator_state(self.device))
        _check_loss(loss)
        if any(g is not None and g.is_sparse for g in _slopes(loss, leaves)):
            raise InputError("a gradient is sparse; make the embedding with sparse=False.")
        for name, v in buffers.items():
            if tensors[name] is not v or not same_bytes(v, self.module.get_buffer(name)):
                raise InputError(
                    f"the module changes its buffer {name}, which is not averaged; use GroupNorm or LayerNorm in place "
                    "of batch normalization, or put the layer in eval mode."
                )
        if drew:
            raise InputError(
                "the module draws random numbers without a key; use nn.Dropout, set the dropout inside attention "
                "layers to 0, or put the module in eval mode."
            )
        self._check_scale(few)
        with _in_a_sentence("the metrics cannot be computed"):
            self.measure(self.start(), slice(0, 2))
        _TRIED[self.module] = about, dropout.layer > 0
        return dropout.layer > 0

    def _check_scale(self, few: Any) -> None:
        """Refuse a loss that is not a mean over the rows: of rows that are all there twice a mean stays the same."""
        parameters = self.parameters_at(self._flat(self.start()))
        with torch.no_grad():
            once, twice = (
                float(self.loss_at(parameters, self.inputs[r], self.targets[r])) for r in (few, few.repeat(2))
            )
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

    def parameters_at(self, flat: Any) -> dict[str, Any]:
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

    def _flat(self, x: Array) -> Any:
        return torch.as_tensor(np.array(x), device=self.device)

    # -- values and gradients ------------------------------------------------------------------------------------------
    def loss_at(
        self,
        parameters: dict[str, Any],
        inputs: Any,
        targets: Any,
        key: Any = None,
        module: Any = None,
        many: bool = False,
    ) -> Any:
        """The loss on these rows as a tensor, with the dropout of a key; of this module, or of one like it.

        Args:
            many: for many clients at once: ``conv2d`` is a product of matrices.
        """
        with KeyedDropout(key, many):
            outputs = functional_call(self.module if module is None else module, parameters, (inputs,))
            return self.loss(outputs, targets).reshape(())  # a shape of (1,) would be broadcast

    def value(self, x: Array) -> float:
        """The mean loss over all rows without dropout, and the regularizer."""
        parameters = self.parameters_at(self._flat(x))
        with torch.no_grad():
            total = self._mean(lambda a, b: float(self.loss_at(parameters, a, b)), self.inputs, self.targets)
        return float(total + 0.5 * self.l2 * float(x @ x))

    def gradient(self, x: Array) -> Array:
        """The gradient over all rows, without dropout."""
        parameters = self._leaves(x)
        total = self._mean(lambda a, b: self._gradient(parameters, a, b, None), self.inputs, self.targets)
        return np.asarray(total + self.l2 * x)

    def minibatch_gradient(self, x: Array, rows: Any) -> Array:
        """The gradient over these rows, without dropout."""
        picks = torch.as_tensor(np.asarray(rows), device=self.inputs.device)
        return self._gradient(self._leaves(x), self.inputs[picks], self.targets[picks], None) + self.l2 * x

    def random_gradient(self, x: Array, rows: Any, key: tuple[int, int, int, int]) -> Array:
        """The gradient over these rows (None for all) with dropout keyed by (seed, client, round, step)."""
        seed, client, round, step = key
        word, i = (torch.tensor(v, device=self.device) for v in (dropout_word(seed, round, step), int(client)))
        picks = slice(None) if rows is None else torch.as_tensor(np.asarray(rows), device=self.inputs.device)
        return self._gradient(self._leaves(x), self.inputs[picks], self.targets[picks], masks_of(word, i)) + self.l2 * x

    def measure(self, x: Array, rows: slice = slice(None)) -> dict[str, float]:
        """The metrics at x on these rows, without dropout."""
        if not self.metrics:
            return {}
        inputs, targets = (v[rows] for v in self.test or (self.inputs, self.targets))
        parameters = self.parameters_at(self._flat(x))

        def values(a: Any, b: Any) -> Array:
            outputs = functional_call(self.module, parameters, (a,))
            return np.array([_number(name, f(outputs, b)) for name, f in self.metrics.items()])

        with torch.no_grad(), KeyedDropout(None):
            means = self._mean(values, inputs, targets)
        return dict(zip(self.metrics, means.tolist(), strict=True))

    def fingerprint(self) -> bytes:
        """A digest of the data, the weights' shapes and the loss."""
        digest = hashlib.sha256(repr((self.names, self.shapes, self.torch_dtype, self.l2, self.given_L)).encode())
        for v in (self.inputs, self.targets, *self.constants.values()):
            digest.update(repr((v.dtype, v.shape)).encode())
            digest.update(v.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.digest()

    def _leaves(self, x: Array) -> dict[str, Any]:
        return {n: v.detach().requires_grad_(True) for n, v in self.parameters_at(self._flat(x)).items()}

    def _gradient(self, leaves: dict[str, Any], inputs: Any, targets: Any, key: Any) -> Array:
        slopes = _slopes(self.loss_at(leaves, inputs, targets, key), leaves)
        # a parameter that the loss does not depend on has the gradient zero
        parts = [torch.zeros_like(v) if g is None else g for g, v in zip(slopes, leaves.values(), strict=True)]
        return np.asarray(torch.cat([g.reshape(-1) for g in parts]).to("cpu", torch.float64).numpy())

    def _mean(self, part: Callable[[Any, Any], Any], inputs: Any, targets: Any) -> Any:
        """The mean over all rows of what ``part`` says of some of them, each a mean over its rows."""
        N = len(inputs)
        if N <= ROWS_AT_ONCE:
            return part(inputs, targets)
        pieces = [slice(lo, lo + ROWS_AT_ONCE) for lo in range(0, N, ROWS_AT_ONCE)]
        return sum(len(inputs[s]) / N * part(inputs[s], targets[s]) for s in pieces)


_TRIED: MutableMapping[torch.nn.Module, tuple[Any, bool]] = weakref.WeakKeyDictionary()
"""Modules that were tried: with what, and whether they have dropout."""


def same_bytes(a: Any, b: Any) -> bool:
    """Whether two tensors are equal, NaNs included."""
    return bool(torch.equal(*(v.detach().reshape(-1).contiguous().view(torch.uint8) for v in (a, b))))


def _slopes(loss: Any, leaves: dict[str, Any]) -> tuple[Any, ...]:
    """The gradients by the leaves; None for those that the loss does not depend on."""
    slopes: tuple[Any, ...] = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return slopes


def _generator_state(device: torch.device) -> Any:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _number(metric: str, value: Any) -> float:
    if isinstance(value, torch.Tensor) and value.numel() != 1:
        raise InputError(f"the metric {metric} gives {value.numel()} numbers; return one, a mean over the rows.")
    if not isinstance(value, (torch.Tensor, np.generic, int, float)):
        raise InputError(f"the metric {metric} gives {value!r}; return a number, a mean over the rows.")
    return float(value)


def _extreme_rows(targets: Any) -> Any:
    """Two rows to try a loss on, with the smallest and the largest label, since a loss may refuse labels."""
    if targets.dtype != torch.long or len(targets) < 2:
        return torch.arange(min(2, len(targets)), device=targets.device)
    rows = targets.reshape(len(targets), -1)
    return torch.stack([rows.amin(1).argmin(), rows.amax(1).argmax()])


@contextmanager
def _in_a_sentence(what: str) -> Iterator[None]:
    """What a user's function raises, as one sentence."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"{what} ({reason}).") from error


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        what = f"{loss.numel()} numbers" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
        raise InputError(f"the loss gives {what}; return a tensor with one number, a mean over the rows.")
    if not loss.requires_grad:
        raise InputError("the loss does not depend on the parameters by operations of PyTorch; there is no gradient.")


def _check(module: torch.nn.Module, names: tuple[str, ...], inputs: Any, targets: Any) -> None:
    """Refuse what cannot be averaged, or repeated."""
    if isinstance(module, torch.jit.ScriptModule):
        raise InputError(
            "a compiled ScriptModule cannot be called with other weights; give the module it was made from."
        )
    if not names:
        raise InputError("the module has no parameter that requires a gradient; there is nothing to train.")
    if not (isinstance(inputs, torch.Tensor) and isinstance(targets, torch.Tensor)):
        raise InputError("inputs and targets must be tensors with one row per sample; torch.as_tensor makes them.")
    if not len(inputs) or len(targets) != len(inputs):
        raise InputError(f"there are {len(inputs)} inputs and {len(targets)} targets; give one target per input.")
    for name in names:
        p = module.get_parameter(name)
        if torch.nn.parameter.is_lazy(p) or p.is_meta or p.is_complex():
            what = "complex" if p.is_complex() else "not initialized"
            raise InputError(f"the parameter {name} is {what}; give the module real weights.")
    kinds = {module.get_parameter(name).dtype for name in names}
    if len(kinds) > 1:
        raise InputError(f"the parameters have the dtypes {', '.join(sorted(map(str, kinds)))}; give them one.")
