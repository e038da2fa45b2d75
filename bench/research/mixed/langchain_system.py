"""Serve the requests of a trace as an ordinary program on LangChain's own objects does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_community.docstore.base import Docstore
from langchain_community.vectorstores import FAISS
from langchain_community.vectorstores.utils import DistanceStrategy
from langchain_core.documents import Document as LangChainDocument
from langchain_core.embeddings import Embeddings
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from bench.emulated.device import EmulatedDevice
from bench.research.mixed.emulated_chat_model import EmulatedChatModel
from bench.research.mixed.index_files import LargeIndex
from bench.research.mixed.programs import PROGRAMS, TOP_K, Answer
from bench.research.mixed.systems import QueryVectors
from bench.research.mixed.trace import Request
from rag_accel.engine_api import Document


class TableEmbeddings(Embeddings):
    """Embeddings that look vectors up."""

    def __init__(self, vectors: QueryVectors) -> None:
        self._vectors = vectors

    def embed_query(self, text: str) -> list[float]:
        """Return the vector as a list, as LangChain's own embeddings do."""
        return self._vectors[text].tolist()

    async def aembed_query(self, text: str) -> list[float]:
        """Return the vector at once: no thread is needed for it."""
        return self.embed_query(text)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of texts that are in the table."""
        return [self.embed_query(text) for text in texts]


class TableDocstore(Docstore):
    """Documents made when a label is asked for: millions at once would fill memory."""

    def __init__(self, index: LargeIndex) -> None:
        self._index = index

    def search(self, search: str) -> LangChainDocument:
        """Return the document of an id."""
        return LangChainDocument(id=search, page_content=self._index.text(int(search)))


class LabelIds:
    """The documents' names by their labels, as a dict of them would give."""

    def __getitem__(self, label: int) -> str:
        return str(label)


class LangChainSystem:
    """The programs on LangChain's own objects."""

    def __init__(self, index: LargeIndex, vectors: QueryVectors, device: EmulatedDevice) -> None:
        self.name = "langchain"
        ids: Any = LabelIds()
        store = FAISS(
            TableEmbeddings(vectors),
            index.stock_index(parallel_mode=0),
            TableDocstore(index),
            ids,
            distance_strategy=DistanceStrategy.MAX_INNER_PRODUCT,
        )
        self._retriever = store.as_retriever(search_kwargs={"k": TOP_K})
        self._model = EmulatedChatModel(device=device)
        self._chains: dict[str, Any] = {}

    async def serve(self, request: Request) -> Answer:
        """Run the request's program."""
        return await PROGRAMS[request.workflow](self, request.question)

    async def search(self, query: str) -> Sequence[Document]:
        """Ask the retriever."""
        found = await self._retriever.ainvoke(query)
        return [Document(one.id or "", one.page_content) for one in found]

    async def generate(self, template: str, values: Mapping[str, str]) -> str:
        """Run prompt, model and parser as one chain."""
        chain = self._chains.get(template)
        if chain is None:
            prompt = ChatPromptTemplate.from_template(template)
            chain = self._chains[template] = prompt | self._model | StrOutputParser()
        return await chain.ainvoke(dict(values))

    def close(self) -> None:
        """Stop nothing: the executor is the loop's."""
