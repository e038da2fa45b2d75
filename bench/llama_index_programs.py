"""LlamaIndex programs over leaves that answer from their input alone: what the suite measures."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from llama_index.core import Settings, VectorStoreIndex, get_response_synthesizer
from llama_index.core.base.llms.types import CompletionResponse, LLMMetadata
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.evaluation import BaseEvaluator, EvaluationResult
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.indices.query.query_transform.base import StepDecomposeQueryTransform
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.query_engine import (
    MultiStepQueryEngine,
    RetryQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.schema import TextNode

SUBJECTS = ("bridge", "ferry", "harbour", "library", "lighthouse", "market", "museum", "quarry")
_DIMENSIONS = 64

Build = Callable[[float], Any]


class WaitingLLM(CustomLLM):
    """A model that answers after a while, in a thread or on a loop; it keeps no state."""

    answer_s: float

    @property
    def metadata(self) -> LLMMetadata:
        """Return the limits of the model."""
        return LLMMetadata(context_window=4096, num_output=64)

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Answer, after a while."""
        time.sleep(self.answer_s)
        return CompletionResponse(text=_answer(prompt))

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        """Answer, after a while, without blocking the loop."""
        await asyncio.sleep(self.answer_s)
        return CompletionResponse(text=_answer(prompt))

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        """Give the answer as one piece."""
        yield self.complete(prompt, formatted)


def _answer(prompt: str) -> str:
    return f"Answer {zlib.crc32(prompt.encode()) % 1000}."


class WordEmbedding(BaseEmbedding):
    """Counts of a text's words, each in the dimension that its hash names."""

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        vector = [0.0] * _DIMENSIONS
        for word in text.lower().split():
            vector[zlib.crc32(word.encode()) % _DIMENSIONS] += 1.0
        return vector


class SecondTry(BaseEvaluator):
    """An evaluator that rejects the first answer to a question and accepts what comes after."""

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: Any) -> None:
        pass

    async def aevaluate(
        self,
        query: str | None = None,
        response: str | None = None,
        contexts: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> EvaluationResult:
        """Accept an answer to a question that was put anew."""
        is_second = "previous bad answer" in (query or "")
        return EvaluationResult(passing=is_second, response=response, feedback="Try again.")


#: classes of this file that several threads may call, as a user would name them
THREAD_SAFE = (WaitingLLM, WordEmbedding, SecondTry)


def _index() -> VectorStoreIndex:
    # Fixed ids: they decide between equal scores.
    nodes = [
        TextNode(text=f"The {subject} opened in {1900 + number}.", id_=subject)
        for number, subject in enumerate(SUBJECTS)
    ]
    return VectorStoreIndex(nodes, embed_model=WordEmbedding())


def _engine(answer_s: float, **arguments: Any) -> Any:
    return _index().as_query_engine(
        llm=WaitingLLM(answer_s=answer_s), similarity_top_k=2, **arguments
    )


def _hyde(answer_s: float) -> Any:
    transform = HyDEQueryTransform(llm=WaitingLLM(answer_s=answer_s), include_original=True)
    return TransformQueryEngine(_engine(answer_s), transform)


def _multi_step(answer_s: float) -> Any:
    model = WaitingLLM(answer_s=answer_s)
    return MultiStepQueryEngine(
        query_engine=_engine(answer_s),
        query_transform=StepDecomposeQueryTransform(llm=model, verbose=False),
        response_synthesizer=get_response_synthesizer(llm=model),
        index_summary="Buildings of a town",
        num_steps=2,
    )


def _retry(answer_s: float) -> Any:
    # The engine asks for this one, though it only puts the question anew.
    Settings.llm = WaitingLLM(answer_s=answer_s)
    return RetryQueryEngine(_engine(answer_s), SecondTry(), max_retries=1)


#: engines whose async methods block their loop in plain LlamaIndex
BLOCKING: Mapping[str, Build] = {"hyde": _hyde, "multistep": _multi_step, "retry": _retry}


def _mode(mode: str) -> Build:
    return lambda answer_s: _engine(answer_s, response_mode=mode)


def _postprocessed(answer_s: float) -> Any:
    return _engine(answer_s, node_postprocessors=[SimilarityPostprocessor(similarity_cutoff=0.01)])


#: programs with small stores and hash embeddings, in which nothing helps
UNBATCHED: Mapping[str, Build] = {
    "compact": _mode("compact"),
    "refine": _mode("refine"),
    "tree summarize": _mode("tree_summarize"),
    "postprocessed": _postprocessed,
}


def questions(count: int) -> list[str]:
    """Return questions, no two equal."""
    return [
        f"When did the {SUBJECTS[number % len(SUBJECTS)]} open? Visitor {number} asks."
        for number in range(count)
    ]


def texts(count: int, seed: int = 3) -> list[str]:
    """Return texts of 20 to 120 words, no two equal."""
    random = np.random.default_rng(seed)
    words = [*SUBJECTS, "opened", "closed", "in", "the", "year", "by", "people", "water", "stone"]
    return [
        f"Text {number}. " + " ".join(random.choice(words, size=int(random.integers(20, 120))))
        for number in range(count)
    ]
