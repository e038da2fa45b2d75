"""Programs of neo4j-graphrag, with embedders and models that always answer the same."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import neo4j
from neo4j.exceptions import ResultFailedError
from neo4j_graphrag.embeddings.base import Embedder
from neo4j_graphrag.generation import GraphRAG
from neo4j_graphrag.llm import LLMInterfaceV2
from neo4j_graphrag.llm.types import LLMResponse
from neo4j_graphrag.retrievers import (
    HybridCypherRetriever,
    HybridRetriever,
    Text2CypherRetriever,
    VectorCypherRetriever,
    VectorRetriever,
)

from neo4j_graphrag_rag_accel import accelerate, activate
from rag_accel import Accelerator

DIMENSION = 8
#: Texts of the graph's nodes, some of which look like what a query is made of.
TEXTS = (
    "The bridge opened in 1931",
    "The ferry closed when the bridge opened",
    'A "quoted" name',
    "two\nlines",
    "MATCH (n) DETACH DELETE n",
    "`back` and 'single' quotes",
    "The harbour froze in 1940",
    "The harbour froze in 1940",  # twice: a tie
)
CYPHER = "MATCH (n:Fact) WHERE n.text CONTAINS 'bridge' RETURN n.text AS text ORDER BY text"
SCHEMA = "(:Fact {text: STRING})-[:NEXT]->(:Fact)"
NEXT = "OPTIONAL MATCH (node)-[:NEXT]->(next) RETURN node.text AS text, next.text AS next, score"


def vector_of(text: str) -> list[float]:
    """Return a vector that only depends on the text."""
    return [byte / 255 for byte in hashlib.sha256(text.encode()).digest()[:DIMENSION]]


class HashEmbedder(Embedder):
    """An embedder of a user's own; it counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def embed_query(self, text: str) -> list[float]:
        self.calls.append(text)
        return vector_of(text)


class ScriptedModel(LLMInterfaceV2):
    """A model that answers with what a function makes of its last message; it counts its calls."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        super().__init__("scripted")
        self.answer = answer
        self.asked: list[str] = []

    def invoke(self, input: Any, **kwargs: Any) -> LLMResponse:
        text = input if isinstance(input, str) else input[-1]["content"]
        self.asked.append(text)
        return LLMResponse(content=self.answer(text))

    async def ainvoke(self, input: Any, **kwargs: Any) -> LLMResponse:
        return self.invoke(input)


def digest(text: str) -> str:
    """Return an answer that shows any difference of the prompt."""
    return hashlib.sha256(text.encode()).hexdigest()


def fill(driver: Any, label: str = "Fact", index: str = "facts") -> None:
    """Write the texts as a chain of nodes with a vector index and a full-text index."""
    driver.execute_query(
        f"UNWIND $rows AS row CREATE (n:{label} {{at: row.at, text: row.text, v: row.v}})",
        rows=[{"at": at, "text": text, "v": vector_of(text)} for at, text in enumerate(TEXTS)],
    )
    driver.execute_query(f"MATCH (a:{label}), (b:{label} {{at: a.at + 1}}) CREATE (a)-[:NEXT]->(b)")
    driver.execute_query(
        f"CREATE VECTOR INDEX {index} FOR (n:{label}) ON n.v OPTIONS {{indexConfig: "
        f"{{`vector.dimensions`: {DIMENSION}, `vector.similarity_function`: 'cosine'}}}}"
    )
    driver.execute_query(f"CREATE FULLTEXT INDEX {index}_words FOR (n:{label}) ON EACH [n.text]")
    driver.execute_query("CALL db.awaitIndexes(60)")


@dataclass
class GraphPrograms:
    """Retrievers over the graph that ``fill`` wrote, and a program over each."""

    driver: Any
    embedder: Any = field(default_factory=HashEmbedder)
    cypher: str = CYPHER
    index: str = "facts"
    model: ScriptedModel = field(default_factory=lambda: ScriptedModel(digest))

    def retriever(self, kind: str) -> Any:
        """Return a new retriever of a kind."""
        return getattr(self, kind)()

    def rag(self, kind: str) -> GraphRAG:
        """Return a new program over a retriever of a kind."""
        return GraphRAG(self.retriever(kind), self.model)

    def vector(self) -> VectorRetriever:
        return VectorRetriever(self.driver, self.index, self.embedder, ["text", "at"])

    def vector_cypher(self) -> VectorCypherRetriever:
        return VectorCypherRetriever(self.driver, self.index, NEXT, self.embedder)

    def hybrid(self) -> HybridRetriever:
        return HybridRetriever(
            self.driver, self.index, f"{self.index}_words", self.embedder, ["text"]
        )

    def hybrid_cypher(self) -> HybridCypherRetriever:
        return HybridCypherRetriever(
            self.driver, self.index, f"{self.index}_words", NEXT, self.embedder
        )

    def text2cypher(self) -> Text2CypherRetriever:
        return Text2CypherRetriever(self.driver, ScriptedModel(lambda _: self.cypher), SCHEMA)


KINDS = ("vector", "vector_cypher", "hybrid", "hybrid_cypher", "text2cypher")
ARMS = ("accelerated", "activated")


@contextmanager
def running(arm: str, program: Any, accelerator: Accelerator) -> Iterator[Any]:
    """Give a program as one of the arms has it."""
    if arm == "accelerated":
        yield accelerate(program, accelerator=accelerator)
    else:
        with activate(accelerator):
            yield program


def side_by_side(call: Callable[[Any], Any], arguments: list[Any]) -> list[Any]:
    """Return what calls in a thread each, begun together, return or raise; in order."""
    found: list[Any] = [None] * len(arguments)
    together = threading.Barrier(len(arguments))

    def run(at: int) -> None:
        together.wait(30)
        found[at] = outcome(lambda: call(arguments[at]))

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(arguments))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or the type and the text of what it raises.

    Of a query that the server refused, the driver once said only that its result has failed.
    """
    try:
        return call()
    except ResultFailedError:
        return outcome(call)
    except Exception as error:
        return type(error), str(error)


def steps(accelerator: Accelerator) -> Counter[str]:
    """Return how many steps the scheduler has heard of, by the last part of the engine's name."""
    engines: Any = accelerator.metrics.snapshot()["engines"]
    return Counter({name.rpartition(".")[2]: engine["steps"] for name, engine in engines.items()})


class ScriptedDriver(neo4j.Driver):
    """A driver without a server: it tells of one vector index and gives a record for each query."""

    _closed = True  # there is nothing to close

    def __init__(self) -> None:
        self._pool = self
        self.pool_config = self
        self.user_agent = ""
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def execute_query(self, query_: Any, parameters_: Any = None, **kwargs: Any) -> Any:
        if "dbms.components" in query_:
            return _result(versions=["5.26.0"], edition="community")
        if query_.startswith("SHOW VECTOR INDEXES"):
            return _result(labels=["Fact"], properties=["v"], dimensions=DIMENSION)
        self.sent.append((query_, parameters_))
        return _result(node={"text": str(parameters_)}, score=1.0)


def _result(**values: Any) -> Any:
    return neo4j.EagerResult([neo4j.Record(values)], None, list(values))
