"""Multiply matrices of signed bytes exactly, on the fastest path that proves itself exact.

``torch._int_mm`` sums in 32 bits. On processors without dot-product instructions for bytes some
kernels add pairs in 16 bits and saturate (pytorch #136746); a certificate built on such numbers
would be wrong without a sign. So the first use multiplies matrices of extremes of several shapes.
A machine on which one number is off gets float32 products of short parts instead, which are exact.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from rag_accel.engines.retrieval.scan.codes import LARGEST_CODE

Codes = npt.NDArray[np.int8]
Products = npt.NDArray[np.int32]

EXACT_PART = (1 << 24) // LARGEST_CODE**2  # terms whose float32 sum is exact in any order
_SHAPES = (
    (1, 1, 5),
    (1, 9, 1),
    (1, 300, 64),
    (3, 7, 77),
    (17, 33, 256),
    (33, 500, 130),
    (64, 300, 384),
)


@functools.cache
def exact_product() -> Callable[[Codes, Codes], Products]:
    """Return ``multiply(left [m, dim], right [n, dim]) -> left @ right.T, int32, [m, n]``.

    Both arguments are C-contiguous and not empty. The choice is made once for a process.

    Raises:
        ImportError: torch is not installed.
    """
    return _by_bytes if all(_is_exact(_by_bytes, *shape) for shape in _SHAPES) else by_floats


def by_floats(left: Codes, right: Codes) -> Products:
    """Multiply through float32, in parts so short that no sum needs more than 24 digits."""
    torch = _torch()
    total = torch.zeros((len(left), len(right)), dtype=torch.int32)
    for start in range(0, left.shape[1], EXACT_PART):
        part = slice(start, start + EXACT_PART)
        lefts, rights = (torch.from_numpy(side[:, part]).float() for side in (left, right))
        total += (lefts @ rights.T).int()
    return total.numpy()


def _by_bytes(left: Codes, right: Codes) -> Products:
    if left.shape[1] == 1:
        # The strides of a side of length 1 say nothing, and oneDNN then declines without an error.
        return np.multiply(left, right.T, dtype=np.int32)
    torch = _torch()
    return torch._int_mm(torch.from_numpy(left), torch.from_numpy(right).t()).numpy()


def _is_exact(
    multiply: Callable[[Codes, Codes], Products], rows: int, columns: int, dimension: int
) -> bool:
    random = np.random.default_rng(rows)
    signs = (-LARGEST_CODE, LARGEST_CODE)
    for lefts, rights in ((signs, signs), ((127,), (127,)), ((127,), (-127,)), ((-127,), (-127,))):
        left = random.choice(np.asarray(lefts, dtype=np.int8), (rows, dimension))
        right = random.choice(np.asarray(rights, dtype=np.int8), (columns, dimension))
        expected = np.einsum("id,jd->ij", left, right, dtype=np.int64)
        try:
            if not np.array_equal(multiply(left, right), expected):
                return False
        except (AttributeError, RuntimeError):  # this build of torch has no such product
            return False
    return True


@functools.cache
def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "scanning codes needs torch: pip install 'rag-accel[local]'", name="torch"
        ) from error
    return torch
