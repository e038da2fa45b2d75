"""Chains over Hugging Face models that a program has already compute no retrieved text twice."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("langchain_huggingface")

from fake_runner import tokenizer
from hf_callers import own_model, own_pipeline
from idle_accelerators import soon_idle
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.outputs import LLMResult
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_huggingface import ChatHuggingFace, HuggingFacePipeline
from lc_reuse_programs import PROGRAMS, TEXTS, Orders, Program, joined
from reuse_kit import num_tokens, reused

from langchain_rag_accel import accelerate, activate, explain
from rag_accel import Accelerator

each_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
PROMPT = PromptTemplate.from_template("Answer by these:\n\n{context}\n\nWhich one says {input}?")


@pytest.fixture(scope="module")
def llm() -> HuggingFacePipeline:
    """Give a model that tests leave as it is."""
    return HuggingFacePipeline(pipeline=own_pipeline(own_model(), return_full_text=False))


def chat_of(llm: HuggingFacePipeline) -> ChatHuggingFace:
    return ChatHuggingFace(llm=llm, tokenizer=tokenizer(), model_id="tiny")


@pytest.fixture
def reusing() -> Iterator[Accelerator]:
    with Accelerator(kv_reuse="full", strict=True) as made:
        yield made
        assert soon_idle(made)
        assert made.bypassed == {}


def chain(model: Any) -> Program:
    return {"context": Orders() | joined, "input": RunnablePassthrough()} | PROMPT | model


def fast(program: Program, accelerator: Accelerator) -> Any:
    return accelerate(program, accelerator=accelerator)


def tokens(*names: str) -> int:
    return num_tokens(*(TEXTS[name] for name in names))


class Infos(BaseCallbackHandler):
    def __init__(self) -> None:
        self.found: list[Any] = []

    def on_llm_end(self, response: LLMResult, **kwargs: Any) -> None:
        self.found += [one.generation_info for group in response.generations for one in group]

    @property
    def reused(self) -> list[int]:
        return [one["kv_reuse"]["reused_tokens"] for one in self.found]


@each_program
@pytest.mark.parametrize("model", [lambda llm: llm, chat_of], ids=["llm", "chat"])
def test_texts_are_found_and_not_computed_again(
    llm: HuggingFacePipeline,
    reusing: Accelerator,
    model: Callable[[Any], Any],
    program: Callable[[Any], Program],
) -> None:
    made = fast(program(model(llm)), reusing)
    made.invoke("abc")
    assert reused(reusing) == 0
    made.invoke("cab")
    assert reused(reusing) == tokens(*"abc")


def test_all_ways_of_calling_reuse_texts(llm: HuggingFacePipeline, reusing: Accelerator) -> None:
    made = fast(chain(llm), reusing)
    made.invoke("abc")
    calls: list[Callable[[], Any]] = [
        lambda: made.invoke("bca"),
        lambda: asyncio.run(made.ainvoke("cab")),
        lambda: list(made.stream("bac")),
        lambda: asyncio.run(_astreamed(made, "acb")),
        lambda: made.batch(["cba"]),
        lambda: asyncio.run(made.abatch(["bcab"])),
    ]
    counts: list[int] = []
    for call in calls:
        before = reused(reusing)
        call()
        counts.append(reused(reusing) - before)
    assert counts == [*[tokens(*"abc")] * 5, tokens(*"abcb")]


async def _astreamed(made: Any, query: str) -> list[Any]:
    return [piece async for piece in made.astream(query)]


# What was reused is said


def test_generations_say_what_was_reused(llm: HuggingFacePipeline, reusing: Accelerator) -> None:
    infos = Infos()
    made = fast(chain(llm), reusing)
    for query in ("abc", "cab"):
        made.invoke(query, config={"callbacks": [infos]})
    list(made.stream("bca", config={"callbacks": [infos]}))
    assert infos.reused == [0, tokens(*"abc"), tokens(*"abc")]
    assert infos.found[1]["kv_reuse"]["mode"] == "full"


def test_each_prompt_of_a_call_has_its_own_report(
    llm: HuggingFacePipeline, reusing: Accelerator
) -> None:
    retrieve, infos = Orders() | joined, Infos()

    def ask(query: str) -> list[str]:
        contexts = [retrieve.invoke(one) for one in query.split()]
        prompts = [PROMPT.format(context=one, input="it") for one in contexts]
        found = llm.generate([*prompts, "Nothing is known of this?"], callbacks=[infos])
        return [group[0].text for group in found.generations]

    made = fast(RunnableLambda(ask), reusing)
    with activate(accelerator=reusing):
        made.invoke("ab c bca")
        made.invoke("ba c")
    assert infos.reused[4:] == [tokens(*"ab"), tokens("c"), 0]


# Bounds


# Folders, tenants, changes


def test_a_folder_that_cannot_be_used_leaves_other_accelerators_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    model = HuggingFacePipeline(pipeline=own_pipeline(own_model()))
    options: dict[str, Any] = {"kv_reuse": "full", "kv_folder": str(tmp_path / "file")}
    with Accelerator(**options) as accelerator, caplog.at_level(logging.WARNING):
        made = fast(chain(model), accelerator)
        for _ in range(2):
            assert made.invoke("abc") == chain(model).invoke("abc")
        assert accelerator.bypassed == {("llm", "ConfigError"): 1}
        assert "its engine could not be made: no files can be kept in this folder" in explain(made)
    with Accelerator(kv_reuse="full", strict=True) as accelerator:
        made = fast(chain(model), accelerator)
        made.invoke("abc")
        made.invoke("cab")
        assert reused(accelerator) == tokens(*"abc")


def test_a_tokenizer_that_fails_leaves_the_call_to_its_model(
    llm: HuggingFacePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rag_accel.engines.llm.local.reuse import id_segments

    def failing(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no text")

    monkeypatch.setattr(id_segments, "segment_ids", failing)
    with Accelerator(kv_reuse="full") as accelerator:
        made = fast(chain(llm), accelerator)
        assert made.invoke("abc") == chain(llm).invoke("abc")
        assert list(made.stream("abc")) == list(chain(llm).stream("abc"))
        assert accelerator.bypassed == {("llm", "RuntimeError"): 2}


def test_another_tokenizer_takes_nothing_of_the_first(reusing: Accelerator) -> None:
    pipeline = own_pipeline(own_model())
    model = HuggingFacePipeline(pipeline=pipeline)
    made = fast(chain(model), reusing)
    made.invoke("abc")
    other = copy.deepcopy(pipeline.tokenizer).train_new_from_iterator(["of the of the"], 300)
    other.padding_side = "left"
    pipeline.tokenizer = other
    made.invoke("abc")
    assert reused(reusing) == 0
    before = reused(reusing)
    made.invoke("cab")
    assert reused(reusing) > before
