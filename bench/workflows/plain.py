"""The eight workflows as their authors write them: sequential, blocking, one request a call.

HedraRAG (section 6) has one-shot, HyDE, RECOMP, multistep and iterative retrieval-generation;
Teola (section 7) has question answering over an uploaded document, whose answer is made of several
passages by stuffing, by a tree or by refinement. The prompts are those of ``rag_accel.workflows``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_text_splitters import RecursiveCharacterTextSplitter
from langgraph.graph import END, START, StateGraph
from llama_index.core import Document as LlamaDocument
from llama_index.core import PromptTemplate, VectorStoreIndex
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.query_engine import CustomQueryEngine

from bench.workflows.parts import TOP_K, ClusterRetriever, Parts, Request
from rag_accel.workflows import prompts
from rag_accel.workflows.steps import Questions, joined

PARTS, ROUNDS = 3, 2
DECOMPOSE = prompts.DECOMPOSE.replace("{count}", str(PARTS))
SPLITTER = RecursiveCharacterTextSplitter(chunk_size=240, chunk_overlap=20)
SENTENCES = SentenceSplitter(chunk_size=64, chunk_overlap=8)
_PASSAGE = {"passage": "[1] {context_str}", "input": "{query_str}"}
DRAFT = PromptTemplate(prompts.ANSWER_PASSAGE.format(**_PASSAGE))
REFINE = PromptTemplate(
    prompts.REFINE.format(
        passage="[1] {context_msg}", input="{query_str}", answer="{existing_answer}"
    )
)


def numbered(texts: Sequence[Any]) -> str:
    """Return passages, documents or texts, as they stand in a prompt."""
    found = [text if isinstance(text, str) else text.page_content for text in texts]
    return "\n\n".join(f"[{number}] {text}" for number, text in enumerate(found, start=1))


def asking(parts: Parts, template: str) -> Any:
    """Return LangChain's chain of a prompt, the model and its text."""
    return ChatPromptTemplate.from_messages([("human", template)]) | parts.chat | StrOutputParser()


# LangChain ---------------------------------------------------------------------------------------


def one_shot(parts: Parts) -> Any:
    """Return a chain: search, answer."""
    inputs = {"docs": parts.retriever | numbered, "input": RunnablePassthrough()}
    return inputs | asking(parts, prompts.ANSWER)


def recomp(parts: Parts) -> Any:
    """Return a chain: search, compress, answer."""
    inputs = {"docs": parts.retriever | numbered, "input": RunnablePassthrough()}
    summarised = inputs | RunnablePassthrough.assign(summary=asking(parts, prompts.COMPRESS))
    return summarised | asking(parts, prompts.ANSWER_FROM_SUMMARY)


def stuff(parts: Parts) -> Any:
    """Return a chain: chunk, embed and index the document, search, answer."""

    def passages(given: Request) -> str:
        chunks = SPLITTER.split_text(given.document)
        store = InMemoryVectorStore.from_texts(chunks, parts.embeddings)
        return numbered(store.similarity_search(given.question, k=TOP_K))

    inputs = {
        "docs": RunnableLambda(passages),
        "input": RunnableLambda(lambda given: given.question),
    }
    return inputs | asking(parts, prompts.ANSWER)


# LangGraph ---------------------------------------------------------------------------------------


class State(TypedDict, total=False):
    """The values of a request."""

    question: str
    document: str
    query: str
    questions: Sequence[str]
    passages: Sequence[Any]
    notes: Sequence[str]
    answer: str
    rounds: int


def multistep(parts: Parts) -> Any:
    """Return a loop: a search and an answer for each simpler question, then one of all notes."""
    retriever, plan = parts.retriever, asking(parts, DECOMPOSE)
    step, combine = asking(parts, prompts.ANSWER_STEP), asking(parts, prompts.ANSWER_FROM_NOTES)

    def decompose(state: State) -> State:
        written = plan.invoke({"input": state["question"]})
        return {"questions": Questions(PARTS)(written, state["question"]), "notes": []}

    def search(state: State) -> State:
        return {"passages": retriever.invoke(state["questions"][len(state["notes"])])}

    def answer_step(state: State) -> State:
        question = state["questions"][len(state["notes"])]
        reply = step.invoke({"docs": numbered(state["passages"]), "question": question})
        return {"notes": [*state["notes"], note(question, reply)]}

    def answer(state: State) -> State:
        notes = "\n".join(state["notes"])
        return {"answer": combine.invoke({"notes": notes, "input": state["question"]})}

    def after_step(state: State) -> str:
        return "search" if len(state["notes"]) < len(state["questions"]) else "answer"

    graph: Any = StateGraph(State)
    graph.add_sequence([decompose, search, answer_step]).add_node("answer", answer)
    graph.add_conditional_edges("answer_step", after_step, ["search", "answer"])
    return graph.add_edge(START, "decompose").add_edge("answer", END).compile()


def note(question: str, reply: str) -> str:
    """Return an answered simpler question as it stands in the last prompt."""
    return f"Question: {question}\nAnswer: {reply}"


def iterative(parts: Parts) -> Any:
    """Return a loop: search with the question and the answer so far, answer again."""
    retriever, chain = parts.retriever, asking(parts, prompts.ANSWER)

    def search(state: State) -> State:
        return {"passages": retriever.invoke(probe(state))}

    def answer(state: State) -> State:
        values = {"docs": numbered(state["passages"]), "input": state["question"]}
        return {"answer": chain.invoke(values), "rounds": state.get("rounds", 0) + 1}

    return rounds_of(search, answer)


def probe(state: State) -> str:
    """Return what an iteration searches for."""
    question = state["question"]
    return joined(question, state["answer"]) if "answer" in state else question


def rounds_of(search: Any, answer: Any) -> Any:
    """Return the graph that searches and answers in rounds."""
    graph: Any = StateGraph(State)
    graph.add_sequence([("search", search), ("respond", answer)]).add_edge(START, "search")
    again = {"search": "search", END: END}
    graph.add_conditional_edges(
        "respond", lambda state: "search" if state["rounds"] < ROUNDS else END, again
    )
    return graph.compile()


def tree(parts: Parts) -> Any:
    """Return a graph: index the document, search, answer from each passage, combine the answers."""
    leaf, combine = asking(parts, prompts.ANSWER_PASSAGE), asking(parts, prompts.COMBINE)

    def upload(state: State) -> State:
        chunks = SPLITTER.split_text(state["document"])
        store = InMemoryVectorStore.from_texts(chunks, parts.embeddings)
        return {"passages": store.similarity_search(state["question"], k=TOP_K)}

    def leaves(state: State) -> State:
        return {"notes": [leaf.invoke(values) for values in leaf_values(state)]}

    def join(state: State) -> State:
        partials = "\n\n".join(state["notes"])
        return {"answer": combine.invoke({"partials": partials, "input": state["question"]})}

    graph: Any = StateGraph(State)
    graph.add_sequence([upload, leaves, join]).add_edge(START, "upload").add_edge("join", END)
    return graph.compile()


def leaf_values(state: State) -> list[dict[str, str]]:
    """Return the values of each leaf's prompt."""
    question = state["question"]
    return [{"passage": numbered([one]), "input": question} for one in state["passages"]]


# LlamaIndex --------------------------------------------------------------------------------------


class HydeEngine(CustomQueryEngine):
    """A query engine that searches with a made-up passage."""

    retriever: ClusterRetriever
    llm: Any

    def custom_query(self, query_str: str) -> str:
        """Write a passage, search with it, answer."""
        passage = self.llm.predict(PromptTemplate(prompts.HYPOTHESIS), input=query_str)
        docs = numbered([one.text for one in self.retriever.retrieve(passage)])
        return self.llm.predict(PromptTemplate(prompts.ANSWER), docs=docs, input=query_str)

    async def acustom_query(self, query_str: str) -> str:
        """Do so without blocking the loop."""
        passage = await self.llm.apredict(PromptTemplate(prompts.HYPOTHESIS), input=query_str)
        docs = numbered([one.text for one in await self.retriever.aretrieve(passage)])
        return await self.llm.apredict(PromptTemplate(prompts.ANSWER), docs=docs, input=query_str)


def hyde(parts: Parts) -> HydeEngine:
    """Return a query engine: write a passage, search with it, answer."""
    return HydeEngine(retriever=ClusterRetriever(parts), llm=parts.llm)


def refine(parts: Parts) -> Any:
    """Return a function: index the document, search, improve the answer passage by passage."""

    def answer(request: Request) -> str:
        index = VectorStoreIndex.from_documents(
            [LlamaDocument(text=request.document)],
            transformations=[SENTENCES],
            embed_model=parts.embedding,
        )
        return str(refining(index, parts).query(request.question))

    return answer


def refining(index: VectorStoreIndex, parts: Parts) -> Any:
    """Return LlamaIndex's own query engine in its mode ``refine``."""
    return index.as_query_engine(
        llm=parts.llm,
        similarity_top_k=TOP_K,
        response_mode="refine",
        text_qa_template=DRAFT,
        refine_template=REFINE,
    )
