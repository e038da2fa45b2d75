"""Models that must be as fast as each other have one key, others have another."""

from __future__ import annotations

from typing import Any

import pytest

from rag_accel.engines.measuring import model_speed_key

torch = pytest.importorskip("torch")


def model(width: int = 4, layers: int = 2) -> Any:
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))


def test_weights_do_not_matter() -> None:
    assert model_speed_key(model(), "embedding") == model_speed_key(model(), "embedding")


@pytest.mark.parametrize(
    "other",
    [
        model_speed_key(model(width=8), "embedding"),
        model_speed_key(model(layers=3), "embedding"),
        model_speed_key(model().double(), "embedding"),
        model_speed_key(model().to("meta"), "embedding"),
        model_speed_key(torch.nn.Sequential(model(), torch.nn.ReLU()), "embedding"),
        model_speed_key(model(), "reranking"),
    ],
)
def test_what_changes_the_speed_changes_the_key(other: str) -> None:
    assert other
    assert other != model_speed_key(model(), "embedding")


@pytest.mark.parametrize("unknown", [None, object(), len, "a name"])
def test_what_cannot_be_looked_into_has_none(unknown: object) -> None:
    assert model_speed_key(unknown, "embedding") == ""
