"""Code that is replaced after a model was compiled runs at the next call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from embedded_texts import embedded

pytest.importorskip("openvino")
torch = pytest.importorskip("torch")

from rag_accel.engines.embedding.engine import SentenceTransformerEngine  # noqa: E402

TEXTS = ["a", "Who may cross the bridge in winter?", "word " * 40]
TOLERANCE = 1e-6
PATIENCE_S = 60.0
WHERE = pytest.mark.parametrize("where", ["instance", "class"])


@pytest.fixture
def engine(model: Any) -> SentenceTransformerEngine:
    """Return an engine whose model is compiled."""
    made = SentenceTransformerEngine(model)
    embedded(made, TEXTS)
    assert made.runtime is not None
    made.runtime.wait(PATIENCE_S)
    assert made.runtime.state == "ready", made.runtime.reason
    return made


def replace_forward(monkeypatch: pytest.MonkeyPatch, module: Any, where: str) -> None:
    """Have a layer, or all of its class, give the negative of what it gives."""
    real = type(module).forward

    def of_class(self: Any, *args: Any) -> Any:
        return -real(self, *args)

    if where == "class":
        monkeypatch.setattr(type(module), "forward", of_class)
    else:
        monkeypatch.setattr(module, "forward", lambda *args: -real(module, *args))


def intermediate(model: Any) -> Any:
    return model[0].model.encoder.layer[1].intermediate


@WHERE
def test_forward_of_an_inner_module(
    engine: SentenceTransformerEngine, model: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    old = embedded(engine, TEXTS)
    replace_forward(monkeypatch, intermediate(model), where)
    new = embedded(engine, TEXTS)
    assert np.abs(new - old).max() > 1e-3
    assert np.abs(new - model.encode(TEXTS)).max() <= TOLERANCE


@WHERE
def test_encode_of_the_model(
    engine: SentenceTransformerEngine, model: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def encode(*args: Any, **kwargs: Any) -> Any:
        return np.full((len(args[-1]), 96), 7.0, dtype=np.float32)

    monkeypatch.setattr(model if where == "instance" else type(model), "encode", encode)
    assert embedded(engine, TEXTS).tolist() == [[7.0] * 96] * len(TEXTS)
    monkeypatch.undo()
    assert np.abs(embedded(engine, TEXTS) - model.encode(TEXTS)).max() <= TOLERANCE
