"""Programs whose models are on a CUDA device give what they give unaccelerated there."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")
pytest.importorskip("langchain_huggingface")

from cuda_kit import needs_cuda, torch, unchanged_switches
from fake_runner import tokenizer
from hf_callers import QUESTIONS, count_owned, own_model, own_pipeline
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_huggingface import HuggingFaceEmbeddings, HuggingFacePipeline
from program_models import program_model
from tiny_chat import TOKENS
from tiny_chat import model as chat_model

from langchain_rag_accel import ChatRagAccel, RagAccelEmbeddings, accelerate, explain
from rag_accel import Accelerator
from rag_accel.engines import LocalLLM, ProcessMember

pytestmark = needs_cuda

TEXTS = [f"text number {number} " + "word " * (number % 30) for number in range(200)]


@pytest.fixture(scope="module")
def embedder() -> Any:
    """Give embeddings on the device; who changes them takes others."""
    made = HuggingFaceEmbeddings.model_construct(model_name="the program's")
    made._client = program_model().to("cuda")
    return made


def near(found: Any, expected: Any, most: float = 1e-6) -> None:
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=0, atol=most)


def on_the_device() -> Any:
    return copy.deepcopy(chat_model()).to("cuda")


def generated(model: Any, question: str) -> str:
    ids = (
        tokenizer()
        .apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )["input_ids"]
        .to("cuda")
    )
    made = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=TOKENS,
        do_sample=False,
        pad_token_id=0,
    )
    return tokenizer().decode(made[0, ids.shape[1] :], skip_special_tokens=True)


def test_embeddings_are_those_of_the_program(embedder: Any, accelerator: Accelerator) -> None:
    fast = accelerate(embedder, accelerator=accelerator)
    with unchanged_switches():
        near(fast.embed_documents(TEXTS), embedder.embed_documents(TEXTS))
        near(fast.embed_query(TEXTS[7]), embedder.embed_query(TEXTS[7]))
        found = asyncio.run(fast.aembed_documents(TEXTS[:20]))
    near(found, embedder.embed_documents(TEXTS[:20]))


def test_a_chain_retrieves_and_answers_what_it_does_alone(
    embedder: Any, accelerator: Accelerator
) -> None:
    store = InMemoryVectorStore.from_texts(TEXTS, embedder)
    model = on_the_device()

    def chain(llm: Any) -> Any:
        prompt = ChatPromptTemplate.from_template("{context}\n\nWhich says {question}?")
        found = store.as_retriever(search_kwargs={"k": 3}) | (
            lambda documents: "\n\n".join(one.page_content for one in documents)
        )
        return {"context": found, "question": RunnablePassthrough()} | prompt | llm

    llm = ChatRagAccel(
        model=model, tokenizer=tokenizer(), max_tokens=TOKENS, accelerator=accelerator
    )
    asked = [f"text number {at}" for at in range(12)]
    plain = chain(lambda prompt: generated(model, prompt.to_messages()[0].content))
    expected = plain.batch(asked)
    fast = accelerate(chain(llm) | StrOutputParser(), accelerator=accelerator)
    assert fast.batch(asked) == expected
    assert asyncio.run(fast.abatch(asked)) == expected
    assert "".join(fast.stream(asked[0])) == expected[0]


def test_a_program_s_model_is_computed_on_the_listed_devices(embedder: Any) -> None:
    listed: Any = ["cuda:0", "cpu", ProcessMember()]
    with Accelerator(
        strict=True, embedding_runtime="torch", embedder=listed, member_tolerance=1e-5
    ) as acc:
        fast = accelerate(embedder, accelerator=acc)
        fast.embed_query("the first text")
        assert acc.embedders.wait(60.0)
        near(fast.embed_documents(TEXTS), embedder.embed_documents(TEXTS), 1e-5)
        text = str(explain(fast))
    assert "cuda:0: the first member" in text
    assert "stays out" not in text


def test_a_component_of_devices_embeds_there(accelerator: Accelerator) -> None:
    model = program_model()
    fast = RagAccelEmbeddings(model, devices=["cuda:0"], accelerator=accelerator)
    near(fast.embed_documents(TEXTS), model.to("cuda").encode(TEXTS))


@pytest.mark.parametrize("reuse", ["exact", "full", "fused"])
def test_a_chat_model_with_reuse_answers(reuse: Any, accelerator: Accelerator) -> None:
    model = on_the_device()
    llm = ChatRagAccel(
        model=LocalLLM(model, tokenizer(), kv_reuse=reuse, reuse_always=reuse == "fused" or None),
        max_tokens=TOKENS,
        accelerator=accelerator,
    )
    asked: list[Any] = [f"Which of the documents says {number}?" for number in range(8)]
    found = [str(one.content) for one in llm.batch(asked)]
    assert found == [generated(model, question) for question in asked]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_pipeline_of_the_program_shares_steps(
    dtype: str, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = own_model(getattr(torch, dtype)).to("cuda")
    llm = HuggingFacePipeline(pipeline=own_pipeline(made))
    plain = [llm.invoke(question) for question in QUESTIONS]
    sizes = count_owned(monkeypatch)
    fast = accelerate(llm, accelerator=accelerator)
    found = [fast.invoke(question) for question in QUESTIONS]
    assert found == plain
    # In bfloat16 each product is rounded to 8 bits, in another order for another shape: such a
    # model keeps its own ``generate``.
    assert bool(sizes) == (dtype == "float32")
    assert fast.batch(QUESTIONS) == llm.batch(QUESTIONS)
