"""Only objects whose class and settings are known exactly are given to an owned engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rag_accel.adoption.embeddings import adopt_sentence_transformer
from rag_accel.errors import ConfigError
from rag_accel_adapters.langchain.models import EMBEDDINGS


class _Named:
    __module__ = "langchain_huggingface.embeddings.huggingface"
    __qualname__ = "HuggingFaceEmbeddings"


def _model() -> Any:
    """Return a model without weights, whose methods are the library's own."""
    return object.__new__(pytest.importorskip("sentence_transformers").SentenceTransformer)


def _object(**changes: Any) -> Any:
    fields: dict[str, Any] = {
        "multi_process": False,
        "show_progress": False,
        "encode_kwargs": {},
        "query_encode_kwargs": {},
        "_client": _model(),
    }
    return SimpleNamespace(**{**fields, **changes})


def test_the_known_class_is_recognised_by_its_full_name() -> None:
    obj = _object()
    adopted = EMBEDDINGS.adopt(obj, _Named)
    assert adopted is not None
    assert adopted.model is obj._client
    assert adopted.prepare("two\nlines") == "two lines"


def test_another_class_is_not_recognised() -> None:
    assert EMBEDDINGS.adopt(_object(), SimpleNamespace) is None


@pytest.mark.parametrize(
    "change",
    [
        {"multi_process": True},
        {"encode_kwargs": {"precision": "int8"}},
        {"query_encode_kwargs": {"output_value": "token_embeddings"}},
        {"encode_kwargs": {"device": ["cpu", "cpu"]}},
        {"_client": SimpleNamespace(encode=len)},
    ],
)
def test_settings_an_engine_cannot_honour_are_not_recognised(change: dict[str, Any]) -> None:
    assert EMBEDDINGS.adopt(_object(**change), _Named) is None


def test_a_model_whose_encode_was_replaced_is_not_recognised() -> None:
    model = _model()
    vars(model)["encode"] = len
    assert EMBEDDINGS.adopt(_object(_client=model), _Named) is None


def test_queries_are_encoded_as_documents_unless_told_otherwise() -> None:
    same = EMBEDDINGS.adopt(_object(encode_kwargs={"prompt": "p"}), _Named)
    spelled = EMBEDDINGS.adopt(
        _object(encode_kwargs={"prompt": "p"}, query_encode_kwargs={"prompt": "p"}), _Named
    )
    other = EMBEDDINGS.adopt(
        _object(encode_kwargs={"prompt": "p"}, query_encode_kwargs={"prompt": "q"}), _Named
    )
    assert same is not None
    assert spelled is not None
    assert other is not None
    assert same.variant == spelled.variant != other.variant


def test_settings_that_change_no_vector_do_not_make_another_engine() -> None:
    plain = EMBEDDINGS.adopt(_object(), _Named)
    batched = EMBEDDINGS.adopt(_object(encode_kwargs={"batch_size": 8}), _Named)
    assert plain is not None
    assert batched is not None
    assert plain.variant == batched.variant


def test_arguments_that_an_engine_cannot_honour_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"query_encode_kwargs\['precision'\]"):
        adopt_sentence_transformer(object(), {"precision": "int8"}, {}, str)
