"""Test the extractive reader, and the engine and the chat model that serve it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.engine_api import (
    Document,
    Engine,
    EngineRequest,
    GenerationInput,
    GenerationOutput,
    Handle,
    Message,
    PrimitiveKind,
    StepBudget,
    WorkId,
)
from rag_accel.errors import EngineError
from rag_accel.testing import EngineContract, ManualClock
from rag_accel_demo.extractive import engine as engine_module
from rag_accel_demo.extractive.chat_model import ExtractiveChatModel
from rag_accel_demo.extractive.engine import Completion, ExtractiveEngine, complete
from rag_accel_demo.extractive.prompt import format_passages
from rag_accel_demo.extractive.reader import NO_ANSWER, find_answer, stem

PUMP = Document(
    "pump",
    "The pump moves water from the well to the tank. Its filter must be cleaned every month. "
    "If the pressure drops below two bar, close the valve and call the engineer.",
    {"title": "Pump manual"},
)
GARDEN = Document(
    "garden",
    "Tomatoes need six hours of sunlight. Water the roots in the morning, not the leaves.",
    {"title": "Garden notes"},
)
BRIDGE = Document("bridge", "The bridge opens for tall ships at noon.", {"title": "Harbour"})
PASSAGES = (GARDEN, PUMP, BRIDGE)
CONTEXT = f"Context:\n{format_passages(PASSAGES)}"


def test_the_sentence_that_answers_is_returned_with_its_citation() -> None:
    answer = find_answer("How often do I clean the filter of the pump?", PASSAGES)
    assert "Its filter must be cleaned every month. [2]" in answer


def test_citations_are_the_passages_the_sentences_stand_in() -> None:
    answer = find_answer("Should I water tomatoes in the morning or clean the pump?", PASSAGES)
    cited: list[int] = []
    for sentence in answer:
        text, _, number = sentence.rpartition(" [")
        cited.append(int(number.rstrip("]")))
        assert text in PASSAGES[cited[-1] - 1].text
    assert set(cited) == {1, 2}


def test_sentences_stand_in_reading_order() -> None:
    answer = find_answer("What if the pressure drops, and how is the filter cleaned?", [PUMP])
    places = [PUMP.text.index(sentence.rpartition(" [")[0]) for sentence in answer]
    assert len(places) > 1
    assert places == sorted(places)


@pytest.mark.parametrize(
    "question",
    [
        "Who won the football world cup in 1998?",
        "How is the gearbox of a diesel lorry repaired?",
        "What is it?",
        "",
    ],
)
def test_a_question_without_support_is_answered_honestly(question: str) -> None:
    assert find_answer(question, PASSAGES) == (NO_ANSWER,)


@pytest.mark.parametrize("passages", [[], [Document("empty", "")], [Document("blank", " \n\n ")]])
def test_nothing_to_read_is_answered_honestly(passages: list[Document]) -> None:
    assert find_answer("How often is the filter cleaned?", passages) == (NO_ANSWER,)


def test_a_title_counts_as_support_for_its_passage() -> None:
    text = "Turn the red handle to the left and wait for a minute."
    titled = Document("a", text, {"title": "Valve shutdown"})
    question = "How does the valve shutdown work with the handle?"
    assert find_answer(question, [titled]) == (f"{text} [1]",)
    assert find_answer(question, [Document("b", text)]) == (NO_ANSWER,)


def test_word_forms_are_matched() -> None:
    passage = Document("a", "Serialization of numbers is lossless. Cats sleep.")
    answer = find_answer("Is a number serialized without loss?", [passage])
    assert answer == ("Serialization of numbers is lossless. [1]",)


def test_a_repeated_sentence_is_said_once() -> None:
    answer = find_answer("How often is the pump filter cleaned?", [PUMP, PUMP, PUMP])
    assert " ".join(answer).count("cleaned every month") == 1


def test_a_lead_in_ends_with_a_full_stop() -> None:
    passage = Document("a", "The filter is cleaned with:\n\n- warm water\n- a soft brush")
    answer = find_answer("What is the filter cleaned with?", [passage], 1)
    assert answer == ("The filter is cleaned with. [1]",)


def test_a_heading_is_no_answer() -> None:
    passage = Document("a", "Filter cleaning:\n- Rinse the filter for its monthly cleaning.")
    answer = find_answer("How does the filter cleaning work?", [passage])
    assert answer == ("Rinse the filter for its monthly cleaning. [1]",)


@given(st.text(max_size=80), st.lists(st.text(max_size=200), max_size=4), st.integers(-1, 4))
def test_any_text_is_answered_without_an_error(question: str, texts: list[str], limit: int) -> None:
    passages = [Document(str(number), text) for number, text in enumerate(texts)]
    ends = tuple(f" [{number}]" for number in range(1, len(passages) + 1))
    answer = find_answer(question, passages, limit)
    assert 1 <= len(answer) <= max(1, limit)
    assert answer == (NO_ANSWER,) or all(sentence.endswith(ends) for sentence in answer)


@pytest.mark.parametrize(
    "family",
    [
        ["serialize", "serializes", "serialized", "serializing", "serialization"],
        ["remove", "removes", "removed", "removing", "removal"],
        ["directory", "directories"],
        ["copy", "copies", "copied"],
        ["stop", "stops", "stopped", "stopping"],
        ["file", "files"],
        ["key", "keys"],
    ],
)
def test_relatives_share_a_stem(family: list[str]) -> None:
    assert len({stem(word) for word in family}) == 1


@pytest.mark.parametrize(("one", "other"), [("string", "strip"), ("os", "o"), ("class", "clas")])
def test_different_words_keep_different_stems(one: str, other: str) -> None:
    assert stem(one) != stem(other)


def _payload(question: str, **fields: object) -> GenerationInput:
    message = Message("user", f"{CONTEXT}\n\nQuestion: {question}")
    return replace(GenerationInput((message,)), **fields)  # pyright: ignore[reportArgumentType]


def test_a_stop_string_cuts_the_completion() -> None:
    done = complete(_payload("How often is the pump filter cleaned?", stop=(" month",)))
    assert "every" in done.output.text
    assert "month" not in done.output.text
    assert done.output.finish_reason == "stop"
    assert "".join(done.pieces) == done.output.text


def test_max_tokens_cuts_the_completion_and_says_so() -> None:
    done = complete(_payload("How often is the pump filter cleaned?", max_tokens=3))
    assert done.output.completion_tokens == 3
    assert done.output.finish_reason == "length"
    assert "".join(done.pieces) == done.output.text


def test_passages_in_the_system_turn_are_read() -> None:
    system = Message("system", f"Use this context.\n\n{CONTEXT}")
    user = Message("user", "How often must the filter of the pump be cleaned?")
    text = complete(GenerationInput((system, user))).output.text
    assert "cleaned every month. [2]" in text


class TestExtractiveEngine(EngineContract):
    def make_engine(self) -> Engine:
        return ExtractiveEngine()

    def make_request(self, number: int) -> EngineRequest:
        question = (
            "How often is the pump filter cleaned?",
            "When does the bridge open for ships?",
        )[number % 2]
        payload = replace(_payload(question), max_tokens=40 + number)
        return EngineRequest(WorkId(f"w{number}"), "r", PrimitiveKind.DECODING, payload)

    def make_bad_request(self) -> EngineRequest:
        return replace(self.make_request(7), id=WorkId("bad"), payload="no generation")


def _request(name: str = "w", **fields: object) -> EngineRequest:
    payload = _payload("If the pressure of the pump drops, who cleans its filter?")
    request = EngineRequest(WorkId(name), "r", PrimitiveKind.DECODING, payload)
    return replace(request, **fields)  # pyright: ignore[reportArgumentType]


def test_sentences_are_streamed_as_partial_outputs() -> None:
    engine = ExtractiveEngine()
    engine.submit([_request(stream=True)])
    *partials, final = engine.step(StepBudget())
    assert len(partials) > 1
    assert {output.kind for output in partials} == {"partial"}
    assert isinstance(final.value, GenerationOutput)
    assert "".join(output.value for output in partials) == final.value.text


@pytest.mark.parametrize(
    "fields",
    [{"kind": PrimitiveKind.EMBEDDING}, {"payload": None}, {"handle": Handle("foreign")}],
)
def test_work_that_is_not_for_this_engine_ends_in_an_error_of_its_own(
    fields: dict[str, object],
) -> None:
    engine = ExtractiveEngine()
    engine.submit([_request("bad", **fields), _request("good")])
    bad, good = engine.step(StepBudget())
    assert (bad.id, bad.kind, type(bad.error)) == ("bad", "error", EngineError)
    assert (good.id, good.kind) == ("good", "final")


def test_a_reader_that_raises_fails_only_its_item(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(payload: GenerationInput, max_sentences: int) -> Completion:
        if payload.max_tokens == 1:
            raise ZeroDivisionError
        return complete(payload, max_sentences)

    monkeypatch.setattr(engine_module, "complete", fail)
    engine = ExtractiveEngine()
    engine.submit([_request("a", payload=_payload("Who?", max_tokens=1)), _request("b")])
    bad, good = engine.step(StepBudget())
    assert (bad.id, bad.kind, type(bad.error)) == ("a", "error", ZeroDivisionError)
    assert (good.id, good.kind) == ("b", "final")


def test_a_step_stops_at_its_time_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()

    def complete_slowly(payload: GenerationInput, max_sentences: int) -> Completion:
        clock.advance(1.0)
        return complete(payload, max_sentences)

    monkeypatch.setattr(engine_module, "complete", complete_slowly)
    engine = ExtractiveEngine(clock=clock)
    engine.submit([_request(name) for name in "abc"])
    assert [output.id for output in engine.step(StepBudget(time_s=1.5))] == ["a", "b"]
    assert [output.id for output in engine.step(StepBudget(time_s=0.0))] == ["c"]


BRIDGES = (
    "Context:\n[1] bridges\nThe bridge opened in 1932. It is 1149 metres long.\n\n"
    "[2] ferries\nThe ferry takes nine minutes.\n\nQuestion: When was the bridge opened?"
)


def test_the_chat_model_answers_from_the_passages_with_a_citation() -> None:
    assert "The bridge opened in 1932. [1]" in str(ExtractiveChatModel().invoke(BRIDGES).content)


def test_what_the_chat_model_streams_is_what_it_answers() -> None:
    model = ExtractiveChatModel()
    streamed = "".join(str(chunk.content) for chunk in model.stream(BRIDGES))
    assert streamed == model.invoke(BRIDGES).content
