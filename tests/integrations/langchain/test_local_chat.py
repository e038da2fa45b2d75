"""A local language model behind LangChain: its text, streams, batches, usage and refusals."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from fake_runner import tokenizer
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import ConfigurableField, RunnableConfig, RunnableLambda
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests
from pydantic import ValidationError
from tiny_chat import TOKENS, generated, generated_by, model
from tool_chat import TEMPLATE

from langchain_rag_accel import ChatRagAccel
from rag_accel import END, START, Accelerator, ConfigError, EngineError, RAGraph
from rag_accel.config import Options
from rag_accel.engine_api import Engine
from rag_accel.engines.llm.local.choice import LocalModel

QUESTIONS = [f"Which of the documents says {number}?" for number in range(16)]


@pytest.fixture
def chat(accelerator: Accelerator) -> ChatRagAccel:
    return ChatRagAccel(
        model=model(), tokenizer=tokenizer(), max_tokens=TOKENS, accelerator=accelerator
    )


def generation_graph() -> RAGraph:
    graph = RAGraph()
    graph.add_generation("answer", prompt="{input}", max_tokens=TOKENS)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph


def _steps(accelerator: Accelerator) -> list[Any]:
    engines: Any = accelerator.metrics.snapshot().get("engines", {})
    return [engine for name, engine in engines.items() if name.startswith("llm#")]


async def test_the_text_is_that_of_generate(chat: ChatRagAccel) -> None:
    question = QUESTIONS[0]
    assert chat.invoke(question).content == generated(question)
    assert (await chat.ainvoke(question)).content == generated(question)


async def test_a_stream_gives_the_same_text_in_pieces(chat: ChatRagAccel) -> None:
    question = QUESTIONS[1]
    pieces = [chunk.content for chunk in chat.stream(question)]
    assert len(pieces) > 3
    assert "".join(map(str, pieces)) == generated(question)
    again = [chunk.content async for chunk in chat.astream(question)]
    assert "".join(map(str, again)) == generated(question)


@pytest.mark.parametrize("way", ["batch", "abatch", "generate", "agenerate"])
def test_sixteen_together_are_answered_alike_and_share_steps(
    way: str, chat: ChatRagAccel, accelerator: Accelerator
) -> None:
    messages = [[HumanMessage(question)] for question in QUESTIONS]
    if way == "batch":
        found = [one.content for one in chat.batch(QUESTIONS)]
    elif way == "abatch":
        found = [one.content for one in asyncio.run(chat.abatch(QUESTIONS))]
    elif way == "generate":
        found = [one[0].text for one in chat.generate(messages).generations]
    else:
        found = [one[0].text for one in asyncio.run(chat.agenerate(messages)).generations]
    assert found == [generated(question) for question in QUESTIONS]
    (engine,) = _steps(accelerator)
    assert engine["items"] == 16
    assert engine["steps"] < 8 * TOKENS


class _Ends(BaseCallbackHandler):
    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        self.told.append(("start", kwargs["run_id"]))

    def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        self.told.append(("end", kwargs["run_id"]))

    def on_llm_error(self, error: BaseException, **kwargs: Any) -> None:
        self.told.append(("error", kwargs["run_id"]))


def test_generate_raises_the_first_error_as_langchain_does(chat: ChatRagAccel) -> None:
    ends = _Ends()
    long = [HumanMessage("how high? " * 2000)]
    lists = [[HumanMessage("a")], long, [ToolMessage("b", tool_call_id="1")], [HumanMessage("c")]]
    with pytest.raises(EngineError, match="context"):
        chat.generate(lists, callbacks=[ends])
    assert [what for what, _ in ends.told] == ["start"] * 4 + ["error"]
    assert ends.told[1][1] == ends.told[4][1]
    with pytest.raises(ConfigError, match="tool message"):
        chat.generate([lists[0], lists[2]])


def test_generate_streams_to_a_handler_that_asks_for_it(
    chat: ChatRagAccel, accelerator: Accelerator
) -> None:
    def second(messages: list[Any], config: RunnableConfig) -> str:
        found = chat.generate([messages, messages], callbacks=config["callbacks"])
        return found.generations[1][0].text

    async def events() -> list[Any]:
        run = RunnableLambda(second)
        return [one async for one in run.astream_events([HumanMessage("a")], version="v2")]

    told = [one["event"] for one in asyncio.run(events())]
    assert told.count("on_chat_model_stream") > 4
    (engine,) = _steps(accelerator)
    assert engine["items"] == 2


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ([ToolMessage("a", tool_call_id="1")], "tool message"),
        (
            [AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": "1"}])],
            "one with tool calls",
        ),
        ([HumanMessage([{"type": "image_url", "image_url": "x"}])], "image_url"),
    ],
)
def test_messages_it_cannot_take_are_refused_by_name(
    messages: list[Any], found: str, chat: ChatRagAccel
) -> None:
    with pytest.raises(ConfigError, match=found):
        chat.invoke([SystemMessage("s"), *messages])


def test_a_folder_without_a_model_is_refused_by_name(
    tmp_path: Path, accelerator: Accelerator
) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path)):
        ChatRagAccel(model=str(tmp_path), accelerator=accelerator).invoke("a")


BAD = [
    {"max_tokens": 0},
    {"max_tokens": True},
    {"temperature": "0.5"},
    {"top_k": True},
    {"seed": "7"},
    {"kv_max_age_s": False},
]


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_options_that_are_no_numbers_or_out_of_range_are_named(bad: dict[str, Any]) -> None:
    (name,) = bad
    with pytest.raises(ValidationError, match=name):
        ChatRagAccel(model="some/model", **bad)


class Own(ChatRagAccel):
    """A class of a user's with a field of its own."""

    mark: str = ""


def test_an_argument_that_it_does_not_have_is_named_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="ChatRagAccel") as caught:
        ChatRagAccel(model="some/model", kv_resue="full")  # type: ignore[call-arg]
    for words in (
        "a component has no such argument; at ChatRagAccel; found kv_resue",
        "did you mean 'kv_reuse'?",
        "recompute_ratio",
    ):
        assert words in str(caught.value)
    with pytest.raises(ValueError, match="kv_resue"):
        ChatRagAccel.model_validate({"model": "some/model", "kv_resue": "full"})


def test_what_makes_another_of_it_has_all_its_arguments() -> None:
    chat = Own(model="some/model", kv_reuse="full", tags=["x"], mark="m")
    configurable: Any = chat.configurable_fields(kv_reuse=ConfigurableField(id="reuse"))
    configured: Any = configurable.prepare({"configurable": {"reuse": "exact"}})[0]
    assert configured.kv_reuse == "exact"
    for again in (
        configured,
        chat.model_copy(update={"seed": 3}),
        copy.copy(chat),
        copy.deepcopy(chat),
        pickle.loads(pickle.dumps(chat)),
        Own.model_validate(chat),
        Own.model_validate(chat.model_dump()),
        Own.model_validate_json(chat.model_dump_json()),
    ):
        assert (again.model, again.mark, again._llm.name) == ("some/model", "m", "some/model")


def test_a_model_that_was_changed_since_is_refused_by_name(accelerator: Accelerator) -> None:
    own = copy.deepcopy(model())
    chat = ChatRagAccel(model=own, tokenizer=tokenizer(), max_tokens=2, accelerator=accelerator)
    chat.invoke("a")
    weight = own.model.norm.weight.detach()
    own.model.norm.weight = torch.nn.Parameter(weight * torch.linspace(-1, 1, len(weight)))
    with pytest.raises(ConfigError, match="changed"):
        chat.invoke("a")
    again = ChatRagAccel(
        model=own, tokenizer=tokenizer(), max_tokens=TOKENS, accelerator=accelerator
    )
    assert again.invoke("a").content == generated_by(own, "a") != generated("a")
    with pytest.raises(ConfigError, match="changed"):
        chat.invoke("a")


def test_a_model_in_a_folder_answers_as_its_object(
    tmp_path: Path, chat: ChatRagAccel, accelerator: Accelerator
) -> None:
    model().save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    named = ChatRagAccel(model=str(tmp_path), max_tokens=TOKENS, accelerator=accelerator)
    assert named.invoke(QUESTIONS[7]).content == generated(QUESTIONS[7])
    with Accelerator(llm=str(tmp_path), strict=True) as other:
        found = other.run(generation_graph(), input=QUESTIONS[7])
    assert found == generated(QUESTIONS[7])


async def test_a_model_whose_last_caller_is_gone_is_loaded_again_off_the_loop(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded_in: list[threading.Thread] = []
    make = LocalModel.make

    def watched(local: LocalModel, options: Options) -> Engine:
        loaded_in.append(threading.current_thread())
        return make(local, options)

    monkeypatch.setattr(LocalModel, "make", watched)
    model_and_tokenizer = {"model": model(), "tokenizer": tokenizer(), "max_tokens": 2}
    waiting = ChatRagAccel(**model_and_tokenizer, accelerator=accelerator)
    calling = ChatRagAccel(**model_and_tokenizer, accelerator=accelerator)
    await calling.ainvoke("a")
    del calling
    gc.collect()
    await waiting.ainvoke("a")
    assert len(loaded_in) == 2
    assert threading.current_thread() not in loaded_in


class _Suite:
    """The model of the standard suites, which look at shapes, not at words."""

    @pytest.fixture(autouse=True)
    def shared(self, accelerator: Accelerator) -> None:
        self.params = {"model": model(), "tokenizer": tokenizer(), "accelerator": accelerator}

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatRagAccel

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return self.params


class TestUnit(_Suite, ChatModelUnitTests):
    has_tool_calling = False  # the suite forces calls, and of tools with equal names

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**self.params, "chat_template": TEMPLATE}


class TestIntegration(_Suite, ChatModelIntegrationTests):
    has_tool_calling = False  # a model of random weights calls none
    has_structured_output = False

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**self.params, "max_tokens": TOKENS}


class TestStopStrings:
    """A single text that ends an answer is one stop string, however it is given."""

    @pytest.fixture
    def word(self, chat: ChatRagAccel) -> str:
        """Give three characters from the middle of an answer."""
        whole = str(chat.invoke(QUESTIONS[3]).content)
        return whole[5:8]

    def test_of_a_call(self, chat: ChatRagAccel, word: str) -> None:
        expected = chat.invoke(QUESTIONS[3], stop=[word]).content
        assert expected == generated(QUESTIONS[3]).partition(word)[0]
        assert chat.invoke(QUESTIONS[3], stop=word).content == expected  # type: ignore[arg-type]
        assert chat.bind(stop=word).invoke(QUESTIONS[3]).content == expected
        assert "".join(str(one.content) for one in chat.stream(QUESTIONS[3], stop=word)) == expected  # type: ignore[arg-type]

    @pytest.mark.parametrize("stop", [[None], 7, ["a", 3]])
    def test_what_is_no_text_is_refused(self, chat: ChatRagAccel, stop: Any) -> None:
        with pytest.raises(ConfigError, match="stop strings are texts"):
            chat.invoke(QUESTIONS[3], stop=stop)
