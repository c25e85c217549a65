"""The update of a local step in one pass over the stacks, compiled for the card by PyTorch's own NVRTC."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

MOST_ROWS, MOST_NUMBERS = 65_535, 4096
_CARD = """
extern "C" __global__ void shifted_step(float* out, const float* y, const float* g, const float* h,
                                        const float* gamma, const long long* at) {
  const long long first = at[0], size = at[1], stride = at[2];
  const long long row = (long long)blockIdx.y;
  const float t = gamma[0];
  float* to = out + row * stride + first;
  const float* yr = y + row * stride + first;
  const float* hr = h + row * at[3] + first;
  const float* gr = g + row * size;
  const long long step = (long long)gridDim.x * blockDim.x;
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (size % 4 == 0) {
    for (; i < size / 4; i += step) {
      float4 a = ((const float4*)yr)[i];
      const float4 b = ((const float4*)gr)[i], c = ((const float4*)hr)[i];
      a.x -= t * (b.x - c.x); a.y -= t * (b.y - c.y); a.z -= t * (b.z - c.z); a.w -= t * (b.w - c.w);
      ((float4*)to)[i] = a;
    }
  } else {
    for (; i < size; i += step) to[i] = yr[i] - t * (gr[i] - hr[i]);
  }
}
"""


class FusedUpdate:
    """y <- y - gamma (g - h)  on a span of the columns of float32 stacks: each is read once, and y written once.

    Everything goes by pointers, so that a captured launch stays valid.
    """

    def __init__(self, device: torch.device) -> None:
        compiler: Any = vars(torch.cuda)["_compile_kernel"]  # since PyTorch 2.9
        self.kernel, self.device = compiler(_CARD, "shifted_step"), device
        self.numbers: dict[Any, torch.Tensor] = {}

    def __call__(self, Y: torch.Tensor, g: torch.Tensor, H: torch.Tensor, gamma: float, first: int, size: int) -> None:
        # the kernel takes the rows of g to be contiguous, and those of Y and H to have strides
        self._launch(Y, Y, g.contiguous(), H, gamma, (first, size, Y.stride(0), H.stride(0)))

    def new(self, A: torch.Tensor, B: torch.Tensor, b: float, v: torch.Tensor) -> torch.Tensor:
        """A + b (B - v)  as a new stack, with one v for all rows."""
        out = torch.empty_like(A)
        # a stride of zero lets all rows read the same v
        self._launch(out, A, B, v, -b, (0, A.shape[1], A.stride(0), 0))
        return out

    def _launch(self, out: Any, y: Any, g: Any, h: Any, gamma: float, at: tuple[int, ...]) -> None:
        numbers = self._there(at, torch.int64)
        # four numbers for each of 256 threads; the loop in the kernel does the rest of longer rows
        blocks = min(256, max(1, -(-at[1] // 1024)))
        arguments = [out, y, g, h, self._there((gamma,), torch.float32), numbers]
        self.kernel(grid=(blocks, len(y), 1), block=(256, 1, 1), args=arguments)

    def _there(self, numbers: tuple[Any, ...], kind: torch.dtype) -> torch.Tensor:
        """Numbers on the card, where captured launches find them: those of the first launches are kept for good."""
        if numbers in self.numbers:
            return self.numbers[numbers]
        found = torch.tensor(numbers, dtype=kind, device=self.device)
        if len(self.numbers) < MOST_NUMBERS:
            self.numbers[numbers] = found
        return found

    def adds(self, A: Any, B: Any, v: Any) -> bool:
        """Whether ``new`` can read these."""
        kinds = A.dtype == B.dtype == v.dtype == torch.float32 and A.device == B.device == v.device
        # a multiple of four, so that every row begins where four numbers can be read at once
        rows = A.ndim == B.ndim == 2 and A.shape == B.shape and A.shape[1] % 4 == 0 and len(A) <= MOST_ROWS
        return kinds and rows and A.is_contiguous() and B.is_contiguous() and v.is_contiguous()

    def fits(self, Y: Any, g: Any, H: Any) -> bool:
        """Whether these are stacks that the kernel can read."""
        plain = H is not None and Y.dtype == g.dtype == H.dtype == torch.float32 and Y.stride(0) == H.stride(0)
        return plain and len(Y) <= MOST_ROWS


@cache
def fused_update(device: torch.device) -> FusedUpdate | None:
    """The kernel where this PyTorch can compile it and it gives the right numbers, which is tried; None otherwise."""
    if device.type != "cuda":
        return None
    try:
        update = FusedUpdate(device)
        # a span of nine numbers and one of twelve: the kernel reads single numbers in one and fours in the other
        Y, H = (torch.arange(k, k + 384.0, device=device).reshape(3, 128) for k in (0, 5))
        g, new = torch.arange(27.0, device=device).reshape(3, 9), Y.clone()
        wide = torch.arange(36.0, device=device).reshape(3, 12)
        update(new, g, H, 0.5, 64, 9)
        update(new, wide, H, 0.25, 0, 12)
        Y[:, 64:73] -= 0.5 * (g - H[:, 64:73])
        Y[:, :12] -= 0.25 * (wide - H[:, :12])
        right = torch.allclose(new, Y) and torch.allclose(update.new(Y, H, 0.5, H[0]), Y + 0.5 * (H - H[0]))
        return update if right else None
    except (KeyError, RuntimeError, TypeError, ValueError, OSError):
        return None
