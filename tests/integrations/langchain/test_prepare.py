"""What ``prepare`` does for LangChain programs before their first request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("langchain_huggingface")

from cross_encoders import cross_encoder, passages, reranker_of
from fake_runner import tokenizer
from hf_callers import own_model, own_pipeline
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_huggingface import ChatHuggingFace, HuggingFaceEmbeddings, HuggingFacePipeline
from lc_programs import joined
from program_models import program_model

from langchain_rag_accel import ChatRagAccel, accelerate, prepare
from rag_accel import Accelerator, ConfigError
from rag_accel.adoption import local_llms
from rag_accel.config import Options


def embeddings() -> HuggingFaceEmbeddings:
    made = HuggingFaceEmbeddings.model_construct(model_name="the program's")
    made._client = program_model()
    return made


def chat() -> ChatHuggingFace:
    llm = HuggingFacePipeline(pipeline=own_pipeline(own_model()))
    return ChatHuggingFace(llm=llm, tokenizer=tokenizer(), model_id="tiny")


def items(accelerator: Accelerator) -> dict[str, int]:
    """Return how many items each owned engine has had, by its name without its number."""
    engines: dict[str, Any] = accelerator.metrics.snapshot().get("engines", {})
    return {name.partition("#")[0]: told["items"] for name, told in engines.items() if "#" in name}


class Recording(BaseCallbackHandler):
    """A record of the names of all callbacks that fired."""

    def __init__(self) -> None:
        self.fired: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_"):
            self.fired.append(name)
        return super().__getattribute__(name)


def test_models_of_a_chain_are_ready_and_its_callbacks_silent(accelerator: Accelerator) -> None:
    store = InMemoryVectorStore.from_texts(["one text", "another"], embeddings())
    recording, model = Recording(), chat()
    chain = (store.as_retriever() | joined | model).with_config(callbacks=[recording])
    fast = accelerate(chain, accelerator=accelerator)
    assert prepare(fast)
    made = items(accelerator)
    assert made.keys() == {"embedding", "llm"}
    assert all(made.values())
    assert recording.fired == []
    plain = chain.invoke("which text?")
    assert fast.invoke("which text?").content == plain.content
    assert items(accelerator).keys() == made.keys()


def test_a_reranker_is_ready(accelerator: Accelerator, tmp_path: Path) -> None:
    plain = reranker_of(cross_encoder(tmp_path / "model"))
    fast = accelerate(plain, accelerator=accelerator)
    assert prepare(fast)
    assert items(accelerator)["rerank"] > 0
    assert fast.compress_documents(passages(1), "word1") == plain.compress_documents(
        passages(1), "word1"
    )


def test_a_model_that_cannot_be_loaded_is_refused_by_name(
    accelerator: Accelerator, tmp_path: Path
) -> None:
    missing = ChatRagAccel(model=str(tmp_path / "nothing"), accelerator=accelerator)
    with pytest.raises(ConfigError, match="there is no such folder"):
        prepare(accelerate(missing | joined))


def test_nothing_is_made_where_all_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    with Accelerator() as made:
        fast = accelerate(embeddings(), accelerator=made)
        monkeypatch.setenv("RAG_ACCEL", "0")
        assert prepare(fast)
        assert items(made) == {}


def test_an_adopted_model_waits_for_its_trace(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[bool] = []
    load = local_llms.LocalModel.load_for_tokens

    def noting(local: Any, *, waits: bool) -> Any:
        waited.append(waits)
        return load(local, waits=waits)

    monkeypatch.setattr(local_llms.LocalModel, "load_for_tokens", noting)
    assert prepare(accelerate(chat(), accelerator=accelerator))
    chat_of_a_request = accelerate(chat(), accelerator=accelerator)
    chat_of_a_request.invoke("first?")
    assert waited == [True, False]


def test_a_recognised_model_whose_engine_fails_does_not_end_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr(local_llms.LocalModel, "load_for_tokens", failing)
    with Accelerator(options=Options()) as made:
        assert prepare(accelerate(chat(), accelerator=made))
        assert made.bypassed == {("llm", "MemoryError"): 1}


@pytest.mark.parametrize("obj", ["x", None, object()])
def test_other_objects_are_refused_by_name(obj: Any) -> None:
    with pytest.raises(ConfigError, match=r"prepare\(\) does not know this object"):
        prepare(obj)
