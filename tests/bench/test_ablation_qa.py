"""The setting that the ablation answers questions in: uploads, starts, and what the model says."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore

from bench.ablation.advanced_qa import Ours
from bench.ablation.qa_answers import Answers
from bench.ablation.qa_setting import LEADING, LOADED, Setting, open_setting
from bench.emulated.table import DeviceTable
from rag_accel.engine_api import Document, Message
from rag_accel.errors import ConfigError
from rag_accel.graph.item_lists import read_items
from rag_accel_demo.material import Material

#: a device so fast that a request of some 300 tokens takes milliseconds
FAST = DeviceTable("fast", 0.01, 0.001, 0.0, 1e6)


def score(pairs: list[tuple[str, str]]) -> list[float]:
    """Count the words that query and text share, longer texts last."""
    return [len(set(query.split()) & set(text.split())) - len(text) / 1000 for query, text in pairs]


@pytest.fixture(scope="module")
def texts() -> Material:
    """Return documents enough to index and to upload, all different."""
    embeddings = DeterministicFakeEmbedding(size=16)
    documents = tuple(
        Document(f"d{number}", f"fact {number} is that {number} follows {number - 1}")
        for number in range(40)
    )
    return Material(
        documents=documents,
        questions=("what follows 3", "is 7 a fact", "which fact is 9"),
        skipped=(),
        embeddings=embeddings,
        store=InMemoryVectorStore(embeddings),
        index_was_cached=True,
    )


@pytest.fixture
def setting(texts: Material) -> Iterator[Setting]:
    with open_setting(texts, score, FAST, documents=24, upload_words=12, loaded_places=2) as opened:
        yield opened


def test_a_latency_under_load_counts_from_when_the_request_was_due(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]

    class Busy:
        """Be held up for 3 s by each start, and serve each request in 1 s."""

        def __init__(self, accelerator: object) -> None:
            self._asked: list[str] = []

        def __enter__(self) -> Busy:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def add_request(self, question: str, graph: object) -> int:
            self._asked.append(question)
            now_s[0] += 3.0
            return len(self._asked) - 1

        def wait(self, id: int) -> SimpleNamespace:
            return SimpleNamespace(unwrap=lambda: self._asked[id], latency_s=1.0)

    clock = SimpleNamespace(
        perf_counter=lambda: now_s[0],
        sleep=lambda seconds: now_s.__setitem__(0, now_s[0] + seconds),
    )
    monkeypatch.setattr("bench.ablation.advanced_qa.Server", Busy)
    monkeypatch.setattr("bench.ablation.advanced_qa.time", clock)
    with Ours.opened(setting, setting.device) as ours:
        found = ours.under_load(LOADED, ["a", "b", "c"], [0.0, 1.0, 9.0])
    assert found == (["a", "b", "c"], [1.0, 3.0, 1.0])


def test_an_upload_is_found_and_then_forgotten(setting: Setting) -> None:
    request, before = setting.request(0), len(setting.index)
    with Ours.opened(setting, setting.device) as ours:
        assert ours.answer(LEADING, request)
    assert len(setting.index) == before + 1
    setting.forget(request)
    assert len(setting.index) == before


def test_too_few_documents_to_upload_are_refused(texts: Material) -> None:
    with (
        pytest.raises(ConfigError, match="too few documents"),
        open_setting(texts, score, FAST, documents=40, upload_words=12, loaded_places=2),
    ):
        pytest.fail("opened")


# What the model says -------------------------------------------------------------------------


def ask(answers: Answers, prompt: str) -> str:
    return answers((Message("user", prompt),))


def test_an_expansion_is_three_different_queries_of_24_words() -> None:
    answers = Answers(tuple(f"passage {number} of many" for number in range(50)))
    text = ask(answers, "Expand.\n\nQuestion: why is it so\nQueries:")
    queries = text.splitlines()
    assert len(set(queries)) == 3
    assert [len(query.split()) for query in queries] == [24, 24, 24]
    assert all(query.startswith("why is it so ") for query in queries)
    assert text == ask(answers, "Expand.\n\nQuestion: why is it so\nQueries:")


def test_no_query_ends_as_an_introduction_to_a_list_does() -> None:
    text = ask(Answers(("get_stack(f, t):",)), "Expand.\n\nQuestion: what is it?\nQueries:")
    assert len(set(text.splitlines())) == 1
    assert read_items(text) == (text.splitlines()[0],)


def test_an_answer_has_45_to_60_words_and_tells_prompts_apart() -> None:
    answers = Answers(("one",))
    said = [ask(answers, f"Question: {number}\nAnswer:") for number in range(40)]
    assert len(set(said)) == 40
    assert {len(one.split()) for one in said} <= set(range(45, 61))
