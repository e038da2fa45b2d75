"""Options of the HTTP engine are bounded."""

from __future__ import annotations

from typing import Any

import pytest

from rag_accel.engines.http.options import RemoteOptions
from rag_accel.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_retries", -1),
        ("concurrency", 0),
        ("read_timeout_s", 0.0),
        ("total_timeout_s", float("nan")),
        ("max_response_bytes", 0),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: float) -> None:
    fields: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=f"RemoteOptions.{name}"):
        RemoteOptions(**fields)
