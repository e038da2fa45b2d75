"""Settings of every module are watched, and the class that it is of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rag_accel.engines.embedding.model_watch import ModelWatch  # noqa: E402


def attention(model: Any) -> Any:
    return model[0].model.encoder.layer[0].attention


CHANGES: dict[str, Callable[[Any], object]] = {
    "eps": lambda m: setattr(attention(m).output.LayerNorm, "eps", 0.5),
    "scaling": lambda m: setattr(attention(m).self, "scaling", 3.0),
    "an entry": lambda m: attention(m).self.factors.update(default=2.0),
    "another class": lambda m: setattr(attention(m).output.dense, "__class__", Doubled),
}


class Doubled(torch.nn.Linear):
    def forward(self, input: Any) -> Any:
        return 2 * super().forward(input)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_setting_of_an_inner_module_counts(model: Any, change: Callable[[Any], object]) -> None:
    attention(model).self.factors = {"default": 1.0}
    watch = ModelWatch(model)
    assert watch.is_same()
    change(model)
    assert not watch.is_same()
