"""Run a ``SentenceTransformer`` on micro-batches with the results of its own ``encode``.

``encode`` spends 0.7 to 0.9 ms per call on top of the model (it walks all parameters twice), a
tenth of a short query, and cannot bound a batch in tokens without tokenising twice. So where a
model is the plain class on one device, the public parts that ``encode`` is made of are called
directly: ``preprocess`` once for all texts of a step, the model itself per micro-batch on slices
of those features, then truncation and normalisation. Anything else goes through ``encode``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, Literal, Protocol

from rag_accel.engines.embedding.sentence_model import (
    encode_arguments,
    has_hooks,
    is_plain_model,
    prompt_of,
)

Role = Literal["query", "document"]

_DIRECT = frozenset({"normalize_embeddings", "prompt", "prompt_name", "truncate_dim"})
_CHARACTERS_PER_TOKEN = 4
#: Most bytes that a model's weights may take a second time, in the layout of a faster kernel.
PACKED_LIMIT = 256 * 2**20


class PreparedTexts(Protocol):
    """Hold texts that are ready to run; ``lengths`` are tokens, exact or estimated."""

    @property
    def lengths(self) -> Sequence[int]:
        """Return one length per text."""
        ...

    def encode(self, rows: Sequence[int]) -> Any:
        """Return the vectors of some of the texts: ``[len(rows), dim]``."""
        ...


class PreparedSentences(PreparedTexts, Protocol):
    """Hold texts whose tokens have vectors, too."""

    def token_vectors(self, rows: Sequence[int]) -> Sequence[Any]:
        """Return a tensor ``[tokens, dim]`` for each of some of the texts, without padding."""
        ...


class SentenceEncoder:
    """Encode texts of both roles with one model.

    Args:
        model: a ``SentenceTransformer``, or anything with its ``encode``.
        query_kwargs: arguments of ``encode`` for queries.
        document_kwargs: the same for documents.
        packed_limit: see ``SentenceTransformerEngine``.
    """

    def __init__(
        self,
        model: Any,
        query_kwargs: Mapping[str, Any] | None = None,
        document_kwargs: Mapping[str, Any] | None = None,
        *,
        packed_limit: int = PACKED_LIMIT,
    ) -> None:
        self.model = model
        self._kwargs: dict[Role, dict[str, Any]] = {
            "query": encode_arguments(query_kwargs, "query_kwargs"),
            "document": encode_arguments(document_kwargs, "document_kwargs"),
        }
        self._is_plain = is_plain_model(model)
        limit = getattr(model, "max_seq_length", None)
        self._max_length = limit if isinstance(limit, int) and limit > 0 else None
        self._packed_limit = packed_limit

    @property
    def on_cpu(self) -> bool:
        """Tell whether the model computes on this machine's cores."""
        return str(getattr(self.model, "device", "cpu")).startswith("cpu")

    def is_reentrant(self) -> bool:
        """Tell whether several threads may run the model at once: it is plain and has no hooks."""
        return self._is_plain and self.on_cpu and not has_hooks(self.model)

    def same_batch(self, role: Role) -> Role:
        """Return the role whose batches this role can join: roles with equal arguments share."""
        return "query" if self._kwargs["query"] == self._kwargs["document"] else role

    def dimension(self, role: Role) -> int | None:
        """Return how many components a vector of this role has, None where the model is silent."""
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

    def fast_kernels(self) -> AbstractContextManager[None]:
        """Let the calling thread run the model on the fastest kernels for its weights.

        Finding them out takes some ten milliseconds, the first time only.
        """
        return nullcontext() if self._packed is None else self._packed.used()

    @cached_property
    def _packed(self) -> Any:
        if not (self._packed_limit and self._is_plain and self.on_cpu):
            return None
        packing = importlib.import_module("rag_accel.engines.embedding.packed_linear")
        return packing.packed_linears(self.model, self._packed_limit)

    def prepare(self, texts: Sequence[str], role: Role) -> PreparedSentences:
        """Tokenise texts; raises what the model's tokenizer raises."""
        kwargs = self._kwargs[role]
        if self._is_plain and kwargs.keys() <= _DIRECT:
            prompt, is_known = prompt_of(self.model, kwargs)
            if is_known:
                features = self.model.preprocess(list(texts), prompt=prompt)
                if _is_sliceable(features, len(texts)):
                    return _Features(self, features, kwargs)
        return _Texts(self, texts, kwargs, [self.estimate(text) for text in texts])


class _Texts:
    """Encode through ``model.encode``."""

    def __init__(
        self,
        encoder: SentenceEncoder,
        texts: Sequence[str],
        kwargs: Mapping[str, Any],
        lengths: list[int],
    ) -> None:
        self._encoder = encoder
        self._texts = texts
        self._kwargs = kwargs
        self.lengths: Sequence[int] = lengths

    def encode(self, rows: Sequence[int]) -> Any:
        return self._encode(rows, **self._kwargs)

    def token_vectors(self, rows: Sequence[int]) -> Sequence[Any]:
        return self._encode(rows, **{**self._kwargs, "output_value": "token_embeddings"})

    def _encode(self, rows: Sequence[int], **kwargs: Any) -> Any:
        with self._encoder.fast_kernels():
            return self._encoder.model.encode(
                [self._texts[row] for row in rows],
                batch_size=len(rows),
                show_progress_bar=False,
                **kwargs,
            )


class _Features:
    """Encode slices of features that were tokenised together."""

    def __init__(
        self, encoder: SentenceEncoder, features: dict[str, Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._encoder = encoder
        self._model = encoder.model
        self._features = features
        self._kwargs = kwargs
        self.lengths: Sequence[int] = features["attention_mask"].sum(dim=1).tolist()
        # encode() does the same at each call; asking first is a tenth of the cost.
        if any(module.training for module in self._model.modules()):
            self._model.eval()

    def encode(self, rows: Sequence[int]) -> Any:
        import torch

        with torch.inference_mode():
            with self._encoder.fast_kernels():
                vectors = self._model(self._slice(rows))["sentence_embedding"]
            cut = self._kwargs.get("truncate_dim")
            cut = self._model.truncate_dim if cut is None else cut
            if cut is not None:
                vectors = vectors[..., :cut]
            if self._kwargs.get("normalize_embeddings", False):
                vectors = torch.nn.functional.normalize(vectors, p=2, dim=1)
            return vectors.to(device="cpu", dtype=torch.float32).numpy()

    def token_vectors(self, rows: Sequence[int]) -> Sequence[Any]:
        import torch

        with torch.inference_mode(), self._encoder.fast_kernels():
            found = self._model(self._slice(rows))
        masks = found["attention_mask"].bool()
        return [
            vectors[mask] for vectors, mask in zip(found["token_embeddings"], masks, strict=True)
        ]

    def _slice(self, rows: Sequence[int]) -> dict[str, Any]:
        import torch

        device = self._model.device
        if len(self.lengths) == 1:
            return {name: _moved(value, device) for name, value in self._features.items()}
        index = torch.as_tensor(rows)
        # Columns [first, last) hold a token of at least one row; the rest pads longer rows of
        # other micro-batches, on the right or on the left.
        used = self._features["attention_mask"][index].any(dim=0).nonzero().flatten()
        first, last = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 1)
        return {
            name: _moved(value[index, first:last] if _is_table(value) else value, device)
            for name, value in self._features.items()
        }


def _is_table(value: Any) -> bool:
    return getattr(value, "ndim", 0) > 0


def _moved(value: Any, device: Any) -> Any:
    return value.to(device) if hasattr(value, "to") else value


def _is_sliceable(features: Mapping[str, Any], count: int) -> bool:
    """Tell whether each tensor is ``[texts, tokens]``, so that rows and columns can be taken."""
    mask = features.get("attention_mask")
    if mask is None or getattr(mask, "ndim", 0) != 2 or mask.shape[0] != count:
        return False
    return all(value.shape == mask.shape for value in features.values() if _is_table(value))
