"""Measure owned engines when they join, once for each kind of engine and machine."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from rag_accel.engine_api import (
    Document,
    Engine,
    EngineProfile,
    PrimitiveKind,
    RerankBatch,
    TextBatch,
)
from rag_accel.engines.measuring import Payload, measure
from rag_accel.engines.profile_store import ProfileStore
from rag_accel.machine import cpu_model

logger = logging.getLogger("rag_accel.profiles")

_SENTENCES = (
    "A batch of passages is measured before the first request comes so that the scheduler knows "
    "how long one takes and how many are worth computing together on the cores that it may use "
    "while other work waits for them and neither side has to guess what the other one costs"
)
_WORDS = tuple(_SENTENCES.split())


class EngineProfiler:
    """Say how engines are to be driven, from measurements where there are or can be any.

    Measured are engines with a ``speed_key`` that embed or rerank, in the calling thread, before
    they join: about 4 x 127 passages of some 65 tokens. What is found is kept on disk.

    Args:
        directory: where profiles are kept; empty to measure nothing and believe every engine.
        cores: what engines may use at most.

    Raises:
        ConfigError: the directory cannot be made.
    """

    def __init__(self, directory: str, cores: int) -> None:
        self._cores = cores
        self._store = (
            ProfileStore(Path(directory).expanduser(), _machine(cores)) if directory else None
        )

    def profile_of(self, engine: Engine) -> EngineProfile:
        """Return an engine's profile, with its measured latency and largest efficient batch.

        An engine that fails to be measured is believed: its error comes again where it belongs,
        with the first real work.
        """
        said = engine.profile
        kind = next(iter(said.kinds)) if len(said.kinds) == 1 else None
        payload = _PAYLOADS.get(kind) if kind is not None else None
        if self._store is None or kind is None or payload is None or not said.speed_key:
            return said
        measured = self._store.find(said.speed_key)
        if measured is None:
            threads = max(1, min(said.max_threads, self._cores))
            try:
                measured = measure(engine, kind, payload, threads=threads)
            except Exception as error:
                logger.warning("an engine could not be measured: %r", error)
                return said
            self._store.keep(said.speed_key, measured)
        return replace(said, latency=measured.latency, max_batch=measured.max_batch)


def _machine(cores: int) -> str:
    return f"{cpu_model()}, {cores} cores, Python {platform.python_version()}, torch {_torch()}"


def _torch() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "none"


def _passage(number: int) -> str:
    turn = number % len(_WORDS)
    return " ".join((str(number), *_WORDS[turn:], *_WORDS[:turn]))


def _texts(items: int) -> Payload:
    return TextBatch(tuple(map(_passage, range(items))), role="document")


def _ranking(items: int) -> Payload:
    documents = tuple(Document(str(number), _passage(number)) for number in range(items))
    return RerankBatch("How many passages are worth computing together?", documents)


_PAYLOADS: Mapping[PrimitiveKind, Callable[[int], Payload]] = {
    PrimitiveKind.EMBEDDING: _texts,
    PrimitiveKind.RERANKING: _ranking,
}
