"""The mark of tests that compute on a CUDA device, and the switches that nobody but a user sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

needs_cuda = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def switches() -> tuple[Any, ...]:
    """Return what decides how torch rounds: TF32, reduced sums and the default dtype."""
    matmul = torch.backends.cuda.matmul
    return (
        torch.get_float32_matmul_precision(),
        matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        matmul.allow_bf16_reduced_precision_reduction,
        matmul.allow_fp16_reduced_precision_reduction,
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
    )


@contextmanager
def unchanged_switches() -> Iterator[None]:
    """Check that the block leaves them as they were."""
    before = switches()
    yield
    assert switches() == before
