"""Usual stacks: programs as people write them, over scripted servers where something is hosted."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypedDict, TypeVar

import langchain_rag_accel
import llama_index_rag_accel
from bench.llama_index_programs import WaitingLLM
from bench.tracing import switch_on
from rag_accel.accelerator import Accelerator
from rag_accel.interception.leaf_table import AROUND_PARTS

SUBJECTS = ("bridge", "ferry", "harbour", "library", "lighthouse", "market", "museum", "quarry")
TEXTS = [f"The {SUBJECTS[n % 8]} number {n} opened in {1800 + n}." for n in range(320)]
#: of an answer of an LLM that a program wrote
LLM_S = 0.3
_FEW = TEXTS[:40]
_PROMPT = "Answer from {context}: {question}"
#: the last one has no encoding, so that its call fails beside others
QUESTIONS = [*(f"When did {number} open?" for number in range(5)), "When did \ud800 open?"]

T = TypeVar("T")


class Places(NamedTuple):
    """What programs are made with.

    Args:
        url: base URL of a server of OpenAI's interface.
        limited_url: of another one, which limits its rate.
        folder: of a local embedding model.
    """

    url: str
    limited_url: str
    folder: str


class Parts(NamedTuple):
    """The parts of an accelerated program that something acts on, and the others with reasons."""

    acting: list[str]
    idle: list[str]


@dataclass(frozen=True, slots=True)
class Stack:
    """A program of a usual stack.

    Args:
        user: who writes such programs.
        name: of its parts, first the framework.
        make: returns it.
        ask: returns its answer, or what it found, as a text.
        verbs: the integration's module.
        mechanism: what explains that something acts on it, in the words of ``explain``.
        tracer: the name of the tracer that is on, if any.
        is_notebook: whether the program runs as it is inside ``activate()``, one question after
            another.
        is_limited: whether its endpoint limits its rate, so that some users may get no answer.
        options: of its accelerator.
    """

    user: str
    name: str
    make: Callable[[Places], Any]
    ask: Callable[[Any, str], Awaitable[str]]
    verbs: Any
    mechanism: str
    tracer: str = ""
    is_notebook: bool = False
    is_limited: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def accelerated(self, program: Any, accelerator: Accelerator) -> Any:
        """Return the program accelerated, as its user does it."""
        if self.is_notebook:
            return program
        return self.verbs.accelerate(program, accelerator=accelerator)

    def on(self, accelerator: Accelerator) -> AbstractContextManager[Any]:
        """Return the block in which the accelerated program runs."""
        return self.verbs.activate(accelerator) if self.is_notebook else nullcontext()

    async def answers(self, program: Any, questions: Sequence[str]) -> list[str | None]:
        """Return the answers to questions as its users ask them; None for a refused one."""
        from openai import RateLimitError

        async def ask(question: str) -> str | None:
            try:
                return await self.ask(program, question)
            except RateLimitError:
                if not self.is_limited:
                    raise
                return None

        if self.is_notebook:
            return [await ask(question) for question in questions]
        return await asyncio.gather(*map(ask, questions))

    def parts(self, program: Any) -> Parts:
        """Return the parts of an accelerated program, as ``explain`` says them."""
        acting, idle = list[str](), list[str]()
        for line in self.verbs.explain(program).splitlines():
            _, _, said = line.partition(": ")
            name, _, how = said.partition(": ")
            _, not_now, reason = how.rstrip(")").partition("(not now: ")
            if how.startswith("borrowed") and AROUND_PARTS not in how:
                idle.append(f"{name} {how[how.index('(') :]}" if "(" in how else name)
            elif not_now:
                idle.append(f"{name} ({reason})")
            elif how.startswith("recognised"):
                acting.append(name)
        return Parts(list(dict.fromkeys(acting)), list(dict.fromkeys(idle)))


class Compared(NamedTuple):
    """A program beside itself accelerated: its parts, ``explain``'s text, answers and errors."""

    parts: Parts
    explained: str
    plain: list[str]
    ours: list[str]


async def compare(stack: Stack, places: Places) -> Compared:
    """Ask a program questions, and then itself accelerated."""

    async def outcome(program: Any, question: str) -> str:
        try:
            return await stack.ask(program, question)
        except Exception as error:
            return repr(error)

    async def outcomes(program: Any) -> list[str]:
        return await asyncio.gather(*(outcome(program, question) for question in QUESTIONS))

    plain = stack.make(places)
    expected = await outcomes(plain)
    options = {"strict": True, "embedding_runtime": "torch", **stack.options}
    with Accelerator(**options) as accelerator:
        fast = stack.accelerated(plain, accelerator)
        with stack.on(accelerator):
            found = await outcomes(fast)
            return Compared(stack.parts(fast), stack.verbs.explain(fast), expected, found)


async def in_its_process(number: int, work: Callable[..., Awaitable[T]], *given: Any) -> T:
    """Return what work on a stack and what it is given returns.

    A tracer cannot be switched off again, so that a stack with one has a process of its own.
    """
    stack = STACKS[number]
    if not stack.tracer:
        return await work(stack, *given)
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, fresh, switch_on, (stack.tracer,)) as pool:
        job = partial(_apart, number, work, *given)
        return await asyncio.get_running_loop().run_in_executor(pool, job)


def _apart(number: int, work: Callable[..., Awaitable[T]], *given: Any) -> T:
    async def run() -> T:
        try:
            return await work(STACKS[number], *given)
        finally:
            await close_clients()

    return asyncio.run(run())


#: clients that programs were made with, to be closed
_clients: list[Any] = []


async def close_clients() -> None:
    """Close the connections of all programs made by now, on the loop that opened them."""
    while _clients:
        client = _clients.pop()
        closing = (getattr(client, "aclose", None) or client.close)()
        if closing is not None:
            await closing


# Parts -------------------------------------------------------------------------------------------


def _openai(url: str, **more: Any) -> Any:
    from langchain_openai import OpenAIEmbeddings

    key: Any = "k"
    made = OpenAIEmbeddings(
        model="m", base_url=url, api_key=key, check_embedding_ctx_length=False, **more
    )
    _clients.extend([made.client._client, made.async_client._client])
    return made


def _chat(url: str) -> Any:
    from langchain_openai import ChatOpenAI

    key: Any = "k"
    made = ChatOpenAI(model="m", base_url=url, api_key=key)
    _clients.extend([made.root_client, made.root_async_client])
    return made


def _local(places: Places) -> Any:
    from langchain_huggingface import HuggingFaceEmbeddings

    return HuggingFaceEmbeddings(model_name=places.folder)


def _in_memory(embeddings: Any, texts: list[str] = _FEW) -> Any:
    from langchain_core.vectorstores import InMemoryVectorStore

    store = InMemoryVectorStore.from_texts(texts, embeddings)
    return store.as_retriever(search_kwargs={"k": 2})


def hosted_retriever(url: str) -> Any:
    """Return a retriever whose embeddings a server computes."""
    return _in_memory(_openai(url))


def _qdrant(embeddings: Any) -> Any:
    from langchain_qdrant import QdrantVectorStore

    store = QdrantVectorStore.from_texts(_FEW, embeddings, location=":memory:", collection_name="c")
    _clients.append(store.client)
    return store.as_retriever(search_kwargs={"k": 2})


def _own_store(url: str) -> Any:
    import httpx2
    from langchain_core.documents import Document
    from langchain_core.vectorstores import VectorStore

    class TableStore(VectorStore):
        """A store of the program's own, whose searches a server makes."""

        def __init__(self, embeddings: Any) -> None:
            self._embeddings, self._client = embeddings, httpx2.AsyncClient(base_url=url)
            _clients.append(self._client)

        @classmethod
        def from_texts(cls, texts: Any, embedding: Any, *_: Any, **more: Any) -> TableStore:
            raise NotImplementedError

        def similarity_search(self, query: str, k: int = 4, **more: Any) -> list[Document]:
            raise NotImplementedError

        async def asimilarity_search(self, query: str, k: int = 4, **more: Any) -> list[Document]:
            vector = await self._embeddings.aembed_query(query)
            found = await self._client.post("search", json={"vector": vector})
            return [Document(_FEW[number]) for number in found.json()]

    return TableStore(_openai(url)).as_retriever()


def _index(embedding: Any, llm: Any = None, **more: Any) -> Any:
    from llama_index.core import VectorStoreIndex
    from llama_index.core.schema import TextNode

    nodes = [TextNode(text=text, id_=str(number)) for number, text in enumerate(_FEW)]
    index = VectorStoreIndex(nodes, embed_model=embedding)
    llm = llm or WaitingLLM(answer_s=LLM_S)
    return index.as_query_engine(llm=llm, similarity_top_k=4, **more)


def _local_embedding(places: Places) -> Any:
    from llama_index.embeddings.huggingface import HuggingFaceEmbedding

    return HuggingFaceEmbedding(model_name=places.folder)


# Programs ----------------------------------------------------------------------------------------


def chain(retriever: Any, model: Any) -> Any:
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_core.runnables import RunnablePassthrough

    given: Any = {"context": retriever, "question": RunnablePassthrough()}
    return given | ChatPromptTemplate.from_template(_PROMPT) | model


def _graph(retriever: Any, model: Any) -> Any:
    from langgraph.graph import END, START, StateGraph

    class State(TypedDict):
        question: str
        context: str
        answer: str

    async def retrieve(state: State) -> dict[str, str]:
        found = await retriever.ainvoke(state["question"])
        return {"context": "\n".join(document.page_content for document in found)}

    async def generate(state: State) -> dict[str, str]:
        answer = await model.ainvoke(f"{state['context']}\n{state['question']}")
        return {"answer": str(answer.content)}

    graph = StateGraph(State)
    graph.add_node("retrieve", retrieve)
    graph.add_node("generate", generate)
    graph.add_edge(START, "retrieve")
    graph.add_edge("retrieve", "generate")
    graph.add_edge("generate", END)
    return graph.compile()


def _agent(places: Places) -> Any:
    from langchain_core.tools import create_retriever_tool
    from langgraph.prebuilt import create_react_agent

    retriever = _qdrant(_openai(places.url))
    tool = create_retriever_tool(retriever, "search", "Find when something opened.")
    return create_react_agent(_chat(places.url), [tool])


def _filtered(places: Places) -> Any:
    from langchain_classic.retrievers import ContextualCompressionRetriever
    from langchain_classic.retrievers.document_compressors import EmbeddingsFilter

    embeddings = _openai(places.url, default_headers={"X-Team": "search"})
    retriever = ContextualCompressionRetriever(
        base_compressor=EmbeddingsFilter(embeddings=embeddings, k=1),
        base_retriever=_in_memory(embeddings),
    )
    return chain(retriever, _chat(places.url))


def _reranked(places: Places) -> Any:
    import torch
    from langchain_classic.retrievers import ContextualCompressionRetriever
    from langchain_classic.retrievers.document_compressors import CrossEncoderReranker
    from langchain_community.cross_encoders import HuggingFaceCrossEncoder

    torch.manual_seed(0)  # of the network's head, which the folder lacks
    model = HuggingFaceCrossEncoder(model_name=places.folder, model_kwargs={"num_labels": 1})
    retriever = ContextualCompressionRetriever(
        base_compressor=CrossEncoderReranker(model=model, top_n=1),
        base_retriever=_in_memory(_local(places)),
    )
    return _graph(retriever, _chat(places.url))


def _postprocessed(places: Places) -> Any:
    import torch
    from llama_index.postprocessor.sbert_rerank import SentenceTransformerRerank

    torch.manual_seed(0)  # of the network's head, which the folder lacks
    reranker = SentenceTransformerRerank(model=places.folder, top_n=2)
    return _index(_local_embedding(places), node_postprocessors=[reranker])


def _language_model(places: Places, dtype: str) -> tuple[Any, Any]:
    """Return a tiny model of random weights, and a tokenizer."""
    import torch
    from transformers import AutoTokenizer

    from bench.kv.first_token import Shape

    tokenizer = AutoTokenizer.from_pretrained(places.folder)
    model = Shape(64, 2, 4, 2, 128, 2048).model(len(tokenizer))
    return model.to(getattr(torch, dtype)), tokenizer


def _all_local(places: Places, dtype: str = "float32", samples: bool = False) -> Any:
    from llama_index.llms.huggingface import HuggingFaceLLM

    model, tokenizer = _language_model(places, dtype)
    llm = HuggingFaceLLM(
        model=model,
        tokenizer=tokenizer,
        context_window=2048,
        max_new_tokens=8,
        tokenizer_outputs_to_remove=["token_type_ids"],
        generate_kwargs={"do_sample": samples},
    )
    return _index(_local_embedding(places), llm)


def _sampled_pipeline(places: Places) -> Any:
    from langchain_huggingface import HuggingFacePipeline
    from transformers import pipeline

    model, tokenizer = _language_model(places, "bfloat16")
    made: Any = pipeline(
        "text-generation", model=model, tokenizer=tokenizer, max_new_tokens=8, do_sample=True
    )
    return chain(_in_memory(_local(places)), HuggingFacePipeline(pipeline=made))


def _hosted_index(places: Places) -> Any:
    from llama_index.embeddings.openai import OpenAIEmbedding

    made = OpenAIEmbedding(model_name="m", api_base=places.url, api_key="k")
    _clients.extend([made._get_client(), made._get_aclient()])
    return _index(made)


def _pipeline(places: Places) -> Any:
    from llama_index.core.ingestion import IngestionPipeline
    from llama_index.core.node_parser import SentenceSplitter

    parts: list[Any] = [SentenceSplitter(chunk_size=64, chunk_overlap=0), _local_embedding(places)]
    return IngestionPipeline(transformations=parts, disable_cache=True)


def _prompted(places: Places) -> Any:
    from langchain_core.prompts import ChatPromptTemplate

    return ChatPromptTemplate.from_template("Rate this: {text}") | _chat(places.limited_url)


def _hyde(places: Places) -> Any:
    from llama_index.core.indices.query.query_transform import HyDEQueryTransform
    from llama_index.core.query_engine import TransformQueryEngine

    transform = HyDEQueryTransform(WaitingLLM(answer_s=LLM_S))
    return TransformQueryEngine(_index(_local_embedding(places)), transform)


def _multi_query(places: Places) -> Any:
    from langchain_classic.retrievers import MultiQueryRetriever
    from langchain_core.prompts import PromptTemplate

    prompt = PromptTemplate.from_template("Question: {question}\nSimpler questions:")
    model = _chat(places.url)
    retriever = MultiQueryRetriever.from_llm(_in_memory(_local(places)), model, prompt)
    return chain(retriever, model)


# Questions ---------------------------------------------------------------------------------------


async def _answer(program: Any, question: str) -> str:
    return str((await program.ainvoke(question)).content)


async def _state(program: Any, question: str) -> str:
    return str((await program.ainvoke({"question": question}))["answer"])


async def _last_message(program: Any, question: str) -> str:
    found = await program.ainvoke({"messages": [("user", question)]})
    return "\n".join(str(message.content) for message in found["messages"])


async def _over_http(program: Any, question: str) -> str:
    import json

    import httpx2
    from fastapi import FastAPI
    from starlette.responses import PlainTextResponse

    async def answer(request: Any) -> PlainTextResponse:
        return PlainTextResponse(await _answer(program, await request.json()))

    app = FastAPI()
    app.add_route("/", answer, ["POST"])
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app)) as client:
        return (await client.post("http://service/", content=json.dumps(question))).text


async def _response(program: Any, question: str) -> str:
    return str(await program.aquery(question))


async def _drawn_response(program: Any, question: str) -> str:
    """Return that there is an answer, which is another one each time."""
    return f"an answer: {bool(str(await program.aquery(question)))}"


async def _drawn_text(program: Any, question: str) -> str:
    """Return that there is an answer, which is another one each time."""
    return f"an answer: {bool(await program.ainvoke(question))}"


async def _ingested(program: Any, question: str) -> str:
    from llama_index.core import Document

    nodes = await program.arun(documents=[Document(text=f"{question} {text}") for text in _FEW[:4]])
    return _ends([node.embedding for node in nodes])


async def _embedded(program: Any, question: str) -> str:
    return _ends(await program.aembed_documents([f"{question} {text}" for text in _FEW]))


def _ends(vectors: Sequence[Sequence[float]]) -> str:
    """Return where each vector is least and greatest: the same for equal up to rounding."""
    return " ".join(f"{v.index(min(v))}-{v.index(max(v))}" for v in map(list, vectors))


async def _batch(program: Any, question: str) -> str:
    found = await program.abatch([{"text": f"{question} {number}"} for number in range(4)])
    return " ".join(str(message.content) for message in found)


_SHARED = "share its calls"
_LOCAL = "texts of all requests share batches"
_TURNS = "they wait for their turn"
_SAMPLED = "greedy and sampled calls of all requests share steps"
_SERVICE = "service, hosted models"
_ON_CPU = "local models"
_AGENT = "graph or agent"
_INGESTION = "batch"
_NOTEBOOK = "notebook, `activate()`"
STACKS = (
    Stack(
        *(_SERVICE, "LangChain, OpenAIEmbeddings, InMemoryVectorStore, ChatOpenAI"),
        lambda at: chain(_in_memory(_openai(at.url)), _chat(at.url)),
        *(_answer, langchain_rag_accel, _SHARED),
    ),
    Stack(
        _SERVICE,
        "FastAPI, LangChain, OpenAIEmbeddings at a gateway, EmbeddingsFilter, ChatOpenAI, Sentry",
        *(_filtered, _over_http, langchain_rag_accel, _SHARED, "Sentry"),
    ),
    Stack(
        _SERVICE,
        "LangChain, OpenAIEmbeddings, an asynchronous store of its own, ChatOpenAI, OpenInference",
        lambda at: chain(_own_store(at.url), _chat(at.url)),
        *(_answer, langchain_rag_accel, _SHARED, "OpenInference"),
    ),
    Stack(
        _SERVICE,
        "LlamaIndex, OpenAIEmbedding, SimpleVectorStore, an LLM of its own, OpenInference",
        *(_hosted_index, _response, llama_index_rag_accel, _SHARED, "OpenInference"),
    ),
    Stack(
        *(_ON_CPU, "LlamaIndex, HuggingFaceEmbedding, SimpleVectorStore, an LLM of its own"),
        lambda at: _index(_local_embedding(at)),
        *(_response, llama_index_rag_accel, _LOCAL),
    ),
    Stack(
        _ON_CPU,
        "LlamaIndex, HuggingFaceEmbedding, SimpleVectorStore, SentenceTransformerRerank,"
        " an LLM of its own",
        *(_postprocessed, _response, llama_index_rag_accel, _LOCAL),
    ),
    Stack(
        *(_ON_CPU, "LlamaIndex, HuggingFaceEmbedding, SimpleVectorStore, HuggingFaceLLM"),
        *(_all_local, _response, llama_index_rag_accel, _LOCAL),
    ),
    Stack(
        _ON_CPU,
        "LlamaIndex, HuggingFaceEmbedding, SimpleVectorStore, HuggingFaceLLM in bfloat16"
        " that samples",
        lambda at: _all_local(at, "bfloat16", samples=True),
        *(_drawn_response, llama_index_rag_accel, _SAMPLED),
        options={"adopt_llm": "batched"},
    ),
    Stack(
        _ON_CPU,
        "LangChain, HuggingFaceEmbeddings, InMemoryVectorStore, HuggingFacePipeline in bfloat16"
        " that samples",
        *(_sampled_pipeline, _drawn_text, langchain_rag_accel, _SAMPLED),
        options={"adopt_llm": "batched"},
    ),
    Stack(
        *(_AGENT, "LangGraph create_react_agent, OpenAIEmbeddings, Qdrant, ChatOpenAI"),
        *(_agent, _last_message, langchain_rag_accel, _SHARED),
    ),
    Stack(
        _AGENT,
        "LangGraph, HuggingFaceEmbeddings, InMemoryVectorStore, CrossEncoderReranker, ChatOpenAI",
        *(_reranked, _state, langchain_rag_accel, _LOCAL),
    ),
    Stack(
        *(_AGENT, "LangGraph, OpenAIEmbeddings, Qdrant, ChatOpenAI, Sentry"),
        lambda at: _graph(_qdrant(_openai(at.url)), _chat(at.url)),
        *(_state, langchain_rag_accel, _SHARED, "Sentry"),
    ),
    Stack(
        *(_INGESTION, "LlamaIndex IngestionPipeline, HuggingFaceEmbedding"),
        *(_pipeline, _ingested, llama_index_rag_accel, _LOCAL),
    ),
    Stack(
        *(_INGESTION, "LangChain abatch, ChatOpenAI at an endpoint that limits its rate"),
        *(_prompted, _batch, langchain_rag_accel, _TURNS),
        is_limited=True,
    ),
    Stack(
        *(_INGESTION, "LangChain, HuggingFaceEmbeddings alone"),
        *(_local, _embedded, langchain_rag_accel, _LOCAL),
    ),
    Stack(
        *(_NOTEBOOK, "LangChain, HuggingFaceEmbeddings, InMemoryVectorStore, ChatOpenAI"),
        lambda at: chain(_in_memory(_local(at), TEXTS), _chat(at.url)),
        *(_answer, langchain_rag_accel, _LOCAL),
        is_notebook=True,
    ),
    Stack(
        _NOTEBOOK,
        "LlamaIndex HyDE, HuggingFaceEmbedding, SimpleVectorStore, an LLM of its own",
        *(_hyde, _response, llama_index_rag_accel, _LOCAL),
        is_notebook=True,
    ),
    Stack(
        _NOTEBOOK,
        "LangChain MultiQueryRetriever, HuggingFaceEmbeddings, InMemoryVectorStore, ChatOpenAI",
        *(_multi_query, _answer, langchain_rag_accel, _LOCAL),
        is_notebook=True,
    ),
)
