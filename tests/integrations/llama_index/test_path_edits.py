"""Property graphs that are edited while queries run: no answer is that of another prompt."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("transformers")

import tiny_chat
from fake_runner import tokenizer
from li_graph_programs import GraphLLM
from llama_index.core.graph_stores import SimplePropertyGraphStore
from llama_index.core.graph_stores.types import EntityNode, Relation
from llama_index.core.indices.property_graph import ImplicitPathExtractor, PropertyGraphIndex
from path_kit import PATIENCE_S, reused
from tree_prompts import TOKENS, masked_answer

from llama_index_rag_accel import RagAccelLLM, accelerate
from rag_accel import Accelerator
from rag_accel.engine_api import EngineRequest, PrimitiveKind
from rag_accel.engines.llm.local.engine import LocalLLMEngine

pytestmark = pytest.mark.filterwarnings("ignore::rag_accel.UncheckedReuseWarning")

AT_ONCE, ROUNDS = 8, 2
NEWEST = re.compile("Hub -> knows -> N([0-9]+)")
KNOWN = ("Ada", "Babbage", "Menabrea")


class LockedStore(SimplePropertyGraphStore):
    """A store for several threads, which upstream's is not: it lists a set while that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()

    def get_triplets(self, *given: Any, **options: Any) -> Any:
        with self.lock:
            return super().get_triplets(*given, **options)

    def get(self, *given: Any, **options: Any) -> Any:
        with self.lock:
            return super().get(*given, **options)

    def get_rel_map(self, *given: Any, **options: Any) -> Any:
        with self.lock:
            return super().get_rel_map(*given, **options)


def add(store: SimplePropertyGraphStore, name: str) -> None:
    """Let the hub know somebody, who knows somebody else."""
    store.upsert_nodes([EntityNode(name=one) for one in ("Hub", name, f"a friend of {name}")])
    store.upsert_relations(
        [
            Relation(label="knows", source_id="Hub", target_id=name),
            Relation(label="knows", source_id=name, target_id=f"a friend of {name}"),
        ]
    )


def remove(store: SimplePropertyGraphStore, name: str) -> None:
    """Let the hub know somebody no more; upstream takes the hub away with its relation."""
    store.delete(ids=[name])
    store.upsert_nodes([EntityNode(name="Hub")])


def filled(store: SimplePropertyGraphStore) -> Any:
    for name in KNOWN:
        add(store, name)
    return store


def engine_over(store: SimplePropertyGraphStore, accelerator: Accelerator) -> Any:
    """Return the accelerated query engine of an index, whose keyword is the hub."""
    index = PropertyGraphIndex.from_existing(
        property_graph_store=store,
        llm=GraphLLM(words="hub"),
        kg_extractors=[ImplicitPathExtractor()],
        embed_kg_nodes=False,
    )
    llm = RagAccelLLM(
        tiny_chat.model(),
        tokenizer=tokenizer(),
        kv_reuse="dependency",
        max_tokens=TOKENS,
        pool_bytes=1 << 24,
        runner="torch",
    )
    made = index.as_query_engine(llm=llm, include_text=False)
    return accelerate(made, accelerator=accelerator)


class Prompts:
    """The requests that an engine was given, and what happens when it is given one."""

    def __init__(self) -> None:
        self.requests: list[EngineRequest] = []
        self.then: Callable[[], object] = lambda: None

    def of(self, question: str) -> EngineRequest:
        """Return the request whose prompt has a question."""
        whole = (one for one in self.requests if one.kind is PrimitiveKind.DECODING)
        (found,) = (one for one in whole if question in text_of(one))
        return found


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> Prompts:
    """Note what is submitted from here on."""
    noted, submit = Prompts(), LocalLLMEngine.submit

    def noting(engine: LocalLLMEngine, work: Sequence[EngineRequest]) -> None:
        noted.requests += work
        noted.then()
        submit(engine, work)

    monkeypatch.setattr(LocalLLMEngine, "submit", noting)
    return noted


def text_of(request: EngineRequest) -> str:
    return "\n".join(message.content for message in request.payload.messages)


def check(answers: dict[str, str], prompts: Prompts) -> None:
    """Check that each answer is that of a mask over the prompt that its question really had."""
    for question, answer in answers.items():
        assert answer == masked_answer(prompts.of(question)), text_of(prompts.of(question))


@pytest.mark.parametrize("edited", ["added", "deleted", "renamed"])
def test_an_edit_between_a_search_and_its_prompt_is_seen_by_the_next_query(
    accelerator: Accelerator, prompts: Prompts, edited: str
) -> None:
    store = filled(SimplePropertyGraphStore())
    engine = engine_over(store, accelerator)
    questions = [f"Question {at}: who knows whom?" for at in range(4)]
    answers = {questions[0]: str(engine.query(questions[0]))}

    def edit() -> None:
        prompts.then = lambda: None
        if edited != "added":
            remove(store, "Ada")
        if edited != "deleted":
            add(store, "Byron")

    prompts.then = edit
    for question in questions[1:]:
        answers[question] = str(engine.query(question))
    check(answers, prompts)
    assert reused(accelerator) > 0
    before, behind = (text_of(prompts.of(question)) for question in questions[1:3])
    assert "Hub -> knows -> Ada" in before
    assert "Byron" not in before
    assert ("Hub -> knows -> Ada" in behind) == (edited == "added")
    assert ("Hub -> knows -> Byron" in behind) == (edited != "deleted")


class Editor:
    """A thread that lets the hub know one more, and the one before no more, again and again."""

    def __init__(self, store: LockedStore) -> None:
        self._store = store
        self._ended = threading.Event()
        self.begun = self.completed = 0

    @contextmanager
    def editing(self) -> Iterator[None]:
        """Edit until the block ends; raise what an edit raises."""
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(self._edit)
            try:
                yield
            finally:
                self._ended.set()
                running.result(PATIENCE_S)

    def _edit(self) -> None:
        while not self._ended.is_set():
            self.begun += 1
            with self._store.lock:
                add(self._store, f"N{self.begun}")
                remove(self._store, f"N{self.begun - 1}")
            self.completed += 1


def test_queries_of_threads_have_the_answers_of_the_prompts_they_had(
    accelerator: Accelerator, prompts: Prompts
) -> None:
    store = filled(LockedStore())
    engine = engine_over(store, accelerator)
    editor = Editor(store)

    def ask(at: int) -> tuple[str, str, int, int]:
        question = f"Question {at}: who knows whom?"
        completed = editor.completed
        return question, str(engine.query(question)), completed, editor.begun

    with editor.editing(), ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(ask, range(AT_ONCE * ROUNDS)))
    for question, _, completed, begun in found:
        shown = text_of(prompts.of(question))
        (seen,) = {int(number) for number in NEWEST.findall(shown)} or {0}
        assert completed <= seen <= begun
    check({question: answer for question, answer, *_ in found}, prompts)
    assert reused(accelerator) > 0
    add(store, "Byron")
    assert str(engine.query("Question last?")) == masked_answer(prompts.of("Question last?"))
    assert "Hub -> knows -> Byron" in text_of(prompts.of("Question last?"))
