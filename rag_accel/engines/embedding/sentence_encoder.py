"""Run a ``SentenceTransformer`` on micro-batches with the results of its own ``encode``.

``encode`` spends 0.7 to 0.9 ms per call on top of the model (it walks all parameters twice), a
tenth of a short query, and cannot bound a batch in tokens without tokenising twice. So where a
model is the plain class on one device, the public parts that ``encode`` is made of are called
directly: ``preprocess`` once for all texts of a step, the model itself per micro-batch on slices
of those features, then truncation and normalisation. Anything else goes through ``encode``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol

from rag_accel.config import EmbeddingRuntime
from rag_accel.engines.embedding.runtime import Compiled
from rag_accel.engines.embedding.runtimes import runtime_for
from rag_accel.engines.embedding.sentence_model import (
    encode_arguments,
    is_plain_model,
    prompt_of,
)
from rag_accel.engines.torch_threads import on_threads

Role = Literal["query", "document"]

_DIRECT = frozenset({"normalize_embeddings", "prompt", "prompt_name", "truncate_dim"})
_CHARACTERS_PER_TOKEN = 4


class PreparedTexts(Protocol):
    """Hold texts that are ready to run; ``lengths`` are tokens, exact or estimated."""

    @property
    def lengths(self) -> Sequence[int]:
        """Return one length per text."""
        ...

    @property
    def overlaps(self) -> bool:
        """Tell whether what was started computes by itself, without the thread that started it."""
        ...

    def start(self, rows: Sequence[int], threads: int) -> Callable[[], Any]:
        """Encode some of the texts on so many threads; what is returned gives the vectors.

        Those are ``[len(rows), dim]``. Where nothing overlaps, the thread that asks computes.
        """
        ...


class PreparedSentences(PreparedTexts, Protocol):
    """Hold texts whose tokens have vectors, too."""

    def start_tokens(self, rows: Sequence[int], threads: int) -> Callable[[], Sequence[Any]]:
        """Do the same for a tensor ``[tokens, dim]`` for each of the texts, without padding."""
        ...


class SentenceEncoder:
    """Encode texts of both roles with one model.

    Args:
        model: a ``SentenceTransformer``, or anything with its ``encode``.
        query_kwargs: arguments of ``encode`` for queries.
        document_kwargs: the same for documents.
        runtime: what may run the model, as of ``SentenceTransformerEngine``.
        threads: most threads of a micro-batch.
    """

    def __init__(
        self,
        model: Any,
        query_kwargs: Mapping[str, Any] | None = None,
        document_kwargs: Mapping[str, Any] | None = None,
        *,
        runtime: EmbeddingRuntime = "torch",
        threads: int = 1,
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
        self.runtime = runtime_for(model, runtime, threads) if may else None

    @property
    def on_cpu(self) -> bool:
        """Tell whether the model computes on this machine's cores."""
        return runs_on_cpu(self.model)

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

    @property
    def is_compiled(self) -> bool:
        """Tell whether there is a compiled model, without a look at whether it is current."""
        return self.runtime is not None and self.runtime.state == "ready"

    def compiled(self) -> Compiled | None:
        """Return the compiled model if there is one that may be used now."""
        return self.runtime.current() if self.runtime is not None else None

    def give_up(self, error: Exception) -> None:
        """Run the model on torch from now on: compiled, it failed where the model did not."""
        if self.runtime is not None:
            self.runtime.give_up(error)

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


def runs_on_cpu(model: Any) -> bool:
    """Tell whether a model computes on this machine's cores."""
    return str(getattr(model, "device", "cpu")).startswith("cpu")


class _Texts:
    """Encode through ``model.encode``."""

    overlaps = False

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

    def start(self, rows: Sequence[int], threads: int) -> Callable[[], Any]:
        return on_threads(threads, partial(self._encode, rows, **self._kwargs))

    def start_tokens(self, rows: Sequence[int], threads: int) -> Callable[[], Sequence[Any]]:
        kwargs = {**self._kwargs, "output_value": "token_embeddings"}
        return on_threads(threads, partial(self._encode, rows, **kwargs))

    def _encode(self, rows: Sequence[int], **kwargs: Any) -> Any:
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
        self._model = encoder.model
        self._features = features
        self._kwargs = kwargs
        self._encoder = encoder
        self.overlaps = encoder.is_compiled
        self.lengths: Sequence[int] = features["attention_mask"].sum(dim=1).tolist()

    def start(self, rows: Sequence[int], threads: int) -> Callable[[], Any]:
        return partial(self._vectors, self._start(rows, threads))

    def start_tokens(self, rows: Sequence[int], threads: int) -> Callable[[], Sequence[Any]]:
        return partial(self._tokens, self._start(rows, threads))

    def _start(self, rows: Sequence[int], threads: int) -> Callable[[], dict[str, Any]]:
        features = self._slice(rows)
        compiled = self._encoder.compiled()
        # encode() does the same at each call; asking first is a tenth of the cost.
        modules = self._model.modules() if compiled is None else compiled.modules
        if any(module.training for module in modules):
            self._model.eval()
        plain = on_threads(threads, partial(self._model, features))
        if compiled is None:
            return plain
        try:
            started = compiled.start(features, threads)
        except Exception as error:
            return partial(self._ended, partial(_raise, error), plain)
        return plain if started is None else partial(self._ended, started, plain)

    def _ended(
        self, started: Callable[[], dict[str, Any]], plain: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """Return what was started, or where that fails what the model itself gives or raises."""
        try:
            return started()
        except Exception as error:
            found = plain()
            self._encoder.give_up(error)
            return found

    def _vectors(self, end: Callable[[], dict[str, Any]]) -> Any:
        import torch

        with torch.inference_mode():
            vectors = end()["sentence_embedding"]
            cut = self._kwargs.get("truncate_dim")
            cut = self._model.truncate_dim if cut is None else cut
            if cut is not None:
                vectors = vectors[..., :cut]
            if self._kwargs.get("normalize_embeddings", False):
                vectors = torch.nn.functional.normalize(vectors, p=2, dim=1)
            return vectors.to(device="cpu", dtype=torch.float32).numpy()

    def _tokens(self, end: Callable[[], dict[str, Any]]) -> Sequence[Any]:
        import torch

        with torch.inference_mode():
            found = end()
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


def _raise(error: Exception) -> dict[str, Any]:
    raise error


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
