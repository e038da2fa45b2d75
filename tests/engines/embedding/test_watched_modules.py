"""Settings and code of every module are watched, and methods replaced after first use are seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rag_accel.engines.embedding.model_watch import ModelWatch  # noqa: E402
from rag_accel.engines.embedding.sentence_encoder import SentenceEncoder  # noqa: E402


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


def test_forward_replaced_in_a_class_counts(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = ModelWatch(model)
    kind = type(attention(model).output)
    monkeypatch.setattr(kind, "forward", lambda *_args, **_kwargs: None)
    assert not watch.is_same()
    monkeypatch.undo()
    assert watch.is_same()


def test_running_a_whole_model_changes_nothing(model: Any) -> None:
    watch = ModelWatch(model)
    model.encode(["a", "b c"])
    assert watch.is_same()


@pytest.mark.parametrize("where", ["instance", "class"])
def test_encode_replaced_after_the_first_use_runs(
    model: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    encoder = SentenceEncoder(model)
    encoder.prepare(["a"], "query")

    def encode(*args: Any, **kwargs: Any) -> Any:
        return np.full((1, 3), 7.0, dtype=np.float32)

    monkeypatch.setattr(model if where == "instance" else type(model), "encode", encode)
    prepared = encoder.prepare(["a"], "query")
    assert type(prepared).__name__ == "EncodedTexts"
