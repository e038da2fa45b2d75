"""The mark of tests whose models OpenVINO computes in bfloat16, which takes AVX-512 or AMX."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
openvino: Any = pytest.importorskip("openvino")

needs_bfloat16 = pytest.mark.skipif(
    "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"),
    reason="no processor that computes bfloat16",
)

#: cases of a test over dtypes
DTYPES = [
    pytest.param(torch.float32, id="fp32"),
    pytest.param(torch.bfloat16, id="bf16", marks=needs_bfloat16),
]
