"""A model whose layers have adapters gives the vectors of those that are active at each call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from embedded_texts import embedded

pytest.importorskip("openvino")
torch = pytest.importorskip("torch")

from rag_accel.engines.embedding.engine import SentenceTransformerEngine  # noqa: E402

TEXTS = ("a", "Who may cross the bridge in winter?")
TOLERANCE = 1e-6
PATIENCE_S = 60.0


class Adapted(torch.nn.Module):
    """A layer with low-rank additions that keeps what is active as the usual library does."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base_layer = base
        self.scaling = {"one": 1.0, "other": 1.0}
        self._active_adapter = ["one"]
        self._disable_adapters = False
        for name, seed in (("one", 1), ("other", 2)):
            drawn = torch.randn(base.weight.shape, generator=torch.Generator().manual_seed(seed))
            self.register_buffer(f"lora_{name}", drawn / 9)

    def forward(self, rows: Any) -> Any:
        found = self.base_layer(rows)
        if self._disable_adapters:
            return found
        for name in self._active_adapter:
            found = found + self.scaling[name] * (rows @ getattr(self, f"lora_{name}").T)
        return found


Adapted.__module__ = "peft.tuners.lora.layer"


def adapt(model: Any) -> Adapted:
    """Give a layer of a model adapters and return it."""
    attention = model[0].model.encoder.layer[0].attention.self
    attention.query = Adapted(attention.query)
    return attention.query


def test_an_adapter_that_comes_after_the_compilation_is_seen_at_the_next_call(model: Any) -> None:
    engine = SentenceTransformerEngine(model)
    embedded(engine, TEXTS)
    assert engine.runtime is not None
    engine.runtime.wait(PATIENCE_S)
    assert engine.runtime.state == "ready"
    old = embedded(engine, TEXTS)
    layer = adapt(model)
    for active in ("one", "other"):
        layer._active_adapter = [active]
        new = embedded(engine, TEXTS)
        assert np.abs(new - old).max() > 1e-3
        assert np.abs(new - model.encode(list(TEXTS))).max() <= TOLERANCE
        old = new
