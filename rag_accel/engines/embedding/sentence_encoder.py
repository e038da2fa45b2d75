"""A ``SentenceTransformer`` run on micro-batches, with the results of its own ``encode``.

``encode`` spends 0.7 to 0.9 ms per call on top of the model (it walks all parameters twice), a
tenth of a short query, and cannot bound a batch in tokens without tokenising twice. So where a
model is the plain class on one device, the public parts that ``encode`` is made of are called
directly: ``preprocess`` once for all texts of a step, the model itself per micro-batch on slices
of those features, then truncation and normalisation. Anything else goes through ``encode``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from rag_accel.config import EmbeddingRuntime
from rag_accel.engines.embedding.compiled_model import runtime_for
from rag_accel.engines.embedding.models import (
    encode_arguments,
    has_plain_encode,
    is_plain_model,
    prompt_of,
)
from rag_accel.engines.embedding.prepared_texts import (
    CompiledTexts,
    EncodedTexts,
    PreparedSentences,
    TorchTexts,
    evaluate,
    is_sliceable,
)

Role = Literal["query", "document"]

_DIRECT = frozenset({"normalize_embeddings", "prompt", "prompt_name", "truncate_dim"})
_CHARACTERS_PER_TOKEN = 4
_LEAST_LENGTH = 1e-12  # of a vector that is normalised, as in torch


class SentenceEncoder:
    """An encoder of texts of both roles with one model.

    Args:
        model: a ``SentenceTransformer``, or anything with its ``encode``.
        query_kwargs: arguments of ``encode`` for queries.
        document_kwargs: the same for documents.
        runtime: what may run the model, as of ``SentenceTransformerEngine``.
        threads: most threads of a micro-batch.
        parallel: micro-batches of one thread each that compute at the same time.
    """

    def __init__(
        self,
        model: Any,
        query_kwargs: Mapping[str, Any] | None = None,
        document_kwargs: Mapping[str, Any] | None = None,
        *,
        runtime: EmbeddingRuntime = "torch",
        threads: int = 1,
        parallel: int = 1,
    ) -> None:
        self.model = model
        self._kwargs: dict[Role, dict[str, Any]] = {
            "query": encode_arguments(query_kwargs, "query_kwargs"),
            "document": encode_arguments(document_kwargs, "document_kwargs"),
        }
        self._is_plain = is_plain_model(model)
        limit = getattr(model, "max_seq_length", None)
        self._max_length = limit if isinstance(limit, int) and limit > 0 else None
        may = self._is_plain and self.on_cpu and threads > 0
        self.runtime = runtime_for(model, runtime, threads, parallel) if may else None

    @property
    def on_cpu(self) -> bool:
        """Tell whether the model computes on this machine's cores."""
        return runs_on_cpu(self.model)

    def same_batch(self, role: Role) -> Role:
        """Return the role whose batches this role can join: roles with equal arguments share."""
        return "query" if self._kwargs["query"] == self._kwargs["document"] else role

    def dimension(self, role: Role) -> int | None:
        """Return the components of a vector of this role, None where the model does not tell."""
        for name in ("get_embedding_dimension", "get_sentence_embedding_dimension"):
            ask = getattr(self.model, name, None)
            if callable(ask):
                full = ask()
                break
        else:
            full = None
        cut = self._kwargs[role].get("truncate_dim")
        known = [int(size) for size in (full, cut) if isinstance(size, int)]
        return min(known) if isinstance(full, int) else None

    def estimate(self, text: str) -> int:
        """Return about how many tokens a text has, without the tokenizer."""
        guess = len(text) // _CHARACTERS_PER_TOKEN + 2
        return guess if self._max_length is None else min(guess, self._max_length)

    def prepare(self, texts: Sequence[str], role: Role) -> PreparedSentences:
        """Tokenise texts; errors of the model's tokenizer pass through.

        A compiled model is looked at here: whatever changes the model before a caller asks is seen.
        """
        if self._runs_directly(role):
            prompt, is_known = prompt_of(self.model, self._kwargs[role])
            runtime = self.runtime if is_known else None
            compiled = None if runtime is None else runtime.current()
            tables = None if compiled is None else compiled.prepare(texts, prompt)
            if runtime is not None and compiled is not None and tables is not None:
                evaluate(self.model, compiled.modules)

                def again(rows: Sequence[int]) -> PreparedSentences:
                    return self._prepare_plainly([texts[row] for row in rows], role)

                finish = partial(self._finished, role)
                return CompiledTexts(compiled, tables, finish, again, runtime.give_up)
        return self._prepare_plainly(texts, role)

    def _runs_directly(self, role: Role) -> bool:
        """Tell whether ``encode`` and its arguments are plain; it may be replaced at any time."""
        is_plain = self._is_plain and has_plain_encode(self.model)
        return is_plain and self._kwargs[role].keys() <= _DIRECT

    def _prepare_plainly(self, texts: Sequence[str], role: Role) -> PreparedSentences:
        kwargs = self._kwargs[role]
        if self._runs_directly(role):
            prompt, is_known = prompt_of(self.model, kwargs)
            if is_known:
                features = self.model.preprocess(list(texts), prompt=prompt)
                if is_sliceable(features, len(texts)):
                    return TorchTexts(self.model, features, partial(self._finished, role))
        return EncodedTexts(self.model, texts, kwargs, [self.estimate(text) for text in texts])

    def _finished(self, role: Role, vectors: Any) -> Any:
        """Return vectors ``[n, dim]`` of the model, an array, as ``encode`` would."""
        kwargs = self._kwargs[role]
        cut = kwargs.get("truncate_dim")
        cut = self.model.truncate_dim if cut is None else cut
        if cut is not None:
            vectors = vectors[..., :cut]
        if kwargs.get("normalize_embeddings", False):
            lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
            vectors = vectors / np.maximum(lengths, _LEAST_LENGTH)[:, None]
        return vectors


def runs_on_cpu(model: Any) -> bool:
    """Tell whether a model computes on this machine's cores."""
    return str(getattr(model, "device", "cpu")).startswith("cpu")
