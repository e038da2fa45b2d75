"""Tiny random cross-encoders, and the reranker of LangChain over one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.documents import Document
from tiny_cross_encoder import WORDS, save_cross_encoder


def cross_encoder(folder: Path, labels: int = 1) -> Any:
    """Return a tiny random cross-encoder, loaded as users load theirs."""
    from langchain_community.cross_encoders import HuggingFaceCrossEncoder

    saved = save_cross_encoder(folder, labels)
    return HuggingFaceCrossEncoder(model_name=saved, model_kwargs={"device": "cpu"})


def reranker_of(model: Any, top_n: int = 3) -> Any:
    """Return LangChain's reranker."""
    from langchain_classic.retrievers.document_compressors import CrossEncoderReranker

    return CrossEncoderReranker(model=model, top_n=top_n)


def passages(number: int, count: int = 12) -> list[Document]:
    chance = np.random.default_rng(number)
    sizes = chance.integers(1, 40, size=count)
    return [
        Document(" ".join(chance.choice(WORDS, size)), metadata={"number": at})
        for at, size in enumerate(sizes)
    ]


def reranked(reranker: Any, numbers: Sequence[int]) -> list[Any]:
    """Return what is chosen of each list of documents."""
    return [reranker.compress_documents(passages(one), f"word{one} word2") for one in numbers]
