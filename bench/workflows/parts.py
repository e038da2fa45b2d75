"""What the programs are made of: a corpus in clusters, and models as each framework holds them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from langchain_community.docstore.base import Docstore
from langchain_community.vectorstores import FAISS
from langchain_community.vectorstores.utils import DistanceStrategy
from langchain_core.documents import Document as ChainDocument
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import CompletionResponse, LLMMetadata
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from bench.together.material import Material
from bench.vectors import Labels, Vectors, stock_index
from rag_accel.engine_api import Document
from rag_accel.engines import DocumentIndex, IndexSpec, LocalLLM, RemoteLLM
from rag_accel.engines.retrieval import IndexKind, Metric
from rag_accel.engines.retrieval.index.store import IndexSnapshot, TrainedClusters
from rag_accel.engines.retrieval.vectors.vectors import load_faiss

#: passages that stand in a prompt
TOP_K = 3
#: how far a vector that fills an index up is from the text's, in each dimension
_SPREAD = 0.04
_BLOCK = 20_000


@dataclass(frozen=True, slots=True)
class Request:
    """A question, and the text that its user uploads where the program takes one."""

    question: str
    document: str


@dataclass(frozen=True)
class Corpus:
    """Texts and vectors in clusters, which FAISS and our own index read from the same memory.

    Args:
        texts: the distinct ones.
        vectors: ``[n, d], float32``, of length one; number i is near text ``i % len(texts)``.
        centroids: ``[clusters, d], float32``.
        assignments: the cluster of each vector.
        nprobe: clusters that a search reads.
    """

    texts: Sequence[str]
    vectors: Vectors
    centroids: Vectors
    assignments: Labels
    nprobe: int

    @classmethod
    def filled(
        cls, texts: Sequence[str], vectors: Vectors, count: int, clusters: int, nprobe: int
    ) -> Corpus:
        """Return the texts with ``count`` vectors: theirs, then others around them."""
        count = max(count, len(texts))
        random = np.random.default_rng(0)
        drawn = vectors[np.arange(count) % len(texts)]
        for start in range(len(texts), count, _BLOCK):
            part = drawn[start : start + _BLOCK]
            part += _SPREAD * random.standard_normal(part.shape, dtype=np.float32)
            part /= np.linalg.norm(part, axis=1, keepdims=True)
        clusters = min(clusters, len(texts))
        centroids = np.ascontiguousarray(vectors[:: len(texts) // clusters][:clusters])
        nearest = [
            np.argmax(drawn[start : start + _BLOCK] @ centroids.T, axis=1)
            for start in range(0, count, _BLOCK)
        ]
        return cls(texts, drawn, centroids, np.concatenate(nearest), min(nprobe, clusters))

    @cached_property
    def documents(self) -> DocumentIndex:
        """Return our index."""
        count, dimension = self.vectors.shape
        kind, clusters = IndexKind.IVF, len(self.centroids)
        spec = IndexSpec(dimension, Metric.INNER_PRODUCT, kind, clusters, self.nprobe, count)
        documents = tuple(Document(str(place), self.text(place), {}) for place in range(count))
        trained = TrainedClusters(self.centroids, self.assignments)
        return DocumentIndex.from_snapshot(IndexSnapshot(spec, documents, self.vectors, trained))

    def faiss(self, parallel_mode: int = 0, nprobe: int | None = None) -> Any:
        """Return FAISS's index over the same lists; mode 0 is its own default."""
        return stock_index(self.documents, nprobe or self.nprobe, parallel_mode)

    def coded(self) -> Any:
        """Return FAISS's 8-bit index whose best four times k are compared again in float32."""
        faiss = load_faiss()
        quantizer = faiss.IndexFlatIP(self.vectors.shape[1])
        quantizer.add(self.centroids)
        kind, metric = faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
        coded = faiss.IndexIVFScalarQuantizer(
            quantizer, self.vectors.shape[1], len(self.centroids), kind, metric
        )
        coded.nprobe, coded.parallel_mode = self.nprobe, 1
        refined = faiss.IndexRefineFlat(coded)
        refined.k_factor = 4
        refined.train(self.vectors[:_BLOCK])
        refined.add(self.vectors)
        refined.referenced_objects = [quantizer, coded]
        return refined

    def text(self, place: int) -> str:
        """Return the text of a vector."""
        return self.texts[place % len(self.texts)]


@dataclass(frozen=True)
class Parts:
    """The models of a program, in every framework's objects.

    Args:
        chat: LangChain's chat model.
        async_chat: the same with asynchronous methods, which a pipeline of transformers lacks.
        llm: LlamaIndex's language model.
        engine: the same model for a ``RAGraph``.
        embeddings: LangChain's.
        embedding: LlamaIndex's.
        embedder: the same model for a ``RAGraph``.
        corpus: what is searched.
    """

    chat: Any
    async_chat: Any
    llm: Any
    engine: Any
    embeddings: Any
    embedding: Any
    embedder: Any
    corpus: Corpus

    @cached_property
    def store(self) -> FAISS:
        """Return LangChain's FAISS store over the corpus."""
        strategy = DistanceStrategy.MAX_INNER_PRODUCT
        ids: Any = range(len(self.corpus.vectors))
        docstore = _Texts(self.corpus)
        return FAISS(
            self.embeddings, self.corpus.faiss(), docstore, ids, distance_strategy=strategy
        )

    @property
    def retriever(self) -> Any:
        """Return LangChain's retriever over the corpus."""
        return self.store.as_retriever(search_kwargs={"k": TOP_K})

    def over(self, corpus: Corpus) -> Parts:
        """Return the same models over another corpus."""
        return replace(self, corpus=corpus)


class _Texts(Docstore):
    """Documents made when they are found: hundreds of thousands of objects would fill memory."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus

    def search(self, search: Any) -> ChainDocument:
        """Return the document of a place."""
        return ChainDocument(self._corpus.text(search), id=str(search))


class ClusterRetriever(BaseRetriever):
    """A LlamaIndex retriever over a FAISS index, as one writes it for an index of one's own."""

    def __init__(self, parts: Parts) -> None:
        self._embedding = parts.embedding
        self._corpus = parts.corpus
        self._index = parts.corpus.faiss()
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._found(self._embedding.get_query_embedding(query_bundle.query_str))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        vector = await self._embedding.aget_query_embedding(query_bundle.query_str)
        return await asyncio.to_thread(self._found, vector)

    def _found(self, vector: Any) -> list[NodeWithScore]:
        scores, places = self._index.search(np.asarray([vector], np.float32), TOP_K)
        return [
            NodeWithScore(node=TextNode(id_=str(place), text=self._corpus.text(place)), score=score)
            for score, place in zip(scores[0].tolist(), places[0].tolist(), strict=True)
        ]


Embedders = tuple[Any, Any, Any]
"""LangChain's embeddings, LlamaIndex's, and the model itself."""


def local_parts(material: Material, embedders: Embedders, corpus: Corpus, tokens: int) -> Parts:
    """Return SmolLM2 and MiniLM; every framework's objects hold the same two models.

    Args:
        material: the models.
        embedders: of ``embedders_of``.
        corpus: what is searched.
        tokens: most tokens of an answer.
    """
    from langchain_core.language_models import BaseChatModel
    from langchain_huggingface import ChatHuggingFace
    from llama_index.llms.huggingface import HuggingFaceLLM

    from bench.together.programs import _pipeline

    class InThreads(ChatHuggingFace):
        """The chat model whose asynchronous calls run in threads."""

        _agenerate = BaseChatModel._agenerate

    pipeline = _pipeline(material, tokens)
    llm = HuggingFaceLLM(
        model=material.model,
        tokenizer=material.tokenizer,
        context_window=material.model.config.max_position_embeddings,
        max_new_tokens=tokens,
        is_chat_model=True,
        generate_kwargs={"do_sample": False},
    )
    return Parts(
        ChatHuggingFace(llm=pipeline, model_id=material.folder),
        InThreads(llm=pipeline, model_id=material.folder),
        llm,
        LocalLLM(material.model, material.tokenizer, max_tokens_default=tokens),
        *embedders,
        corpus,
    )


def embedders_of(material: Material) -> Embedders:
    """Return MiniLM in every framework's objects."""
    from langchain_huggingface import HuggingFaceEmbeddings
    from llama_index.embeddings.huggingface import HuggingFaceEmbedding

    embeddings = HuggingFaceEmbeddings(
        model_name=material.embedder, encode_kwargs={"normalize_embeddings": True}
    )
    embedding = HuggingFaceEmbedding(model_name=material.embedder, device="cpu")
    return embeddings, embedding, material.encoder


class ServedLLM(CustomLLM):
    """LlamaIndex's language model of a server that speaks as OpenAI does."""

    client: Any
    async_client: Any

    @property
    def metadata(self) -> LLMMetadata:
        """Return the limits of the model."""
        return LLMMetadata(context_window=8192, num_output=64)

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Ask the server and wait."""
        said = self.client.chat.completions.create(**_asked(prompt))
        return CompletionResponse(text=said.choices[0].message.content)

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        """Ask the server on the running loop."""
        said = await self.async_client.chat.completions.create(**_asked(prompt))
        return CompletionResponse(text=said.choices[0].message.content)

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        """Give the answer as one piece."""
        yield self.complete(prompt, formatted)


def _asked(prompt: str) -> Any:
    return {"model": _MODEL, "messages": [{"role": "user", "content": prompt}]}


_MODEL = "scripted"


@contextmanager
def served_parts(
    embedders: Embedders, corpus: Corpus, url: str, wait: Callable[[Any], Any]
) -> Iterator[Parts]:
    """Give the scripted model of a server, and MiniLM.

    Args:
        embedders: of ``embedders_of``.
        corpus: what is searched.
        url: of the server.
        wait: runs a coroutine on the loop of asynchronous callers.

    Raises:
        ImportError: a client of OpenAI's is missing.
    """
    from langchain_openai import ChatOpenAI
    from openai import AsyncOpenAI, OpenAI
    from pydantic import SecretStr

    chat = ChatOpenAI(model=_MODEL, base_url=url, api_key=SecretStr("none"))
    client, async_client = (make(base_url=url, api_key="none") for make in (OpenAI, AsyncOpenAI))
    llm = ServedLLM(client=client, async_client=async_client)
    served = RemoteLLM(url, model=_MODEL, api_key="none")
    try:
        yield Parts(chat, chat, llm, served, *embedders, corpus)
    finally:
        client.close()
        chat.root_client.close()
        wait(async_client.close())
        wait(chat.root_async_client.close())
