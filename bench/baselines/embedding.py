"""Name every opponent of our embedding, make it, and find the settings that suit it best.

The settings that ``embedding.json`` holds were chosen by hand, from comparisons of a few of each
with 64 callers on two cores; ``tuned`` tries all ``candidates``.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from langchain_core.embeddings import Embeddings

from bench.baselines.calling import MicroBatcher, OneByOne, TextEmbedder
from bench.baselines.embedding_runtimes import OnnxRuntime, OpenVinoRuntime, Runtime, TorchRuntime
from bench.baselines.infinity import ENVIRONMENT, Infinity
from rag_accel.errors import ConfigError
from rag_accel_demo.load import Load, Shape, run_load, torch_threads

Settings = Mapping[str, Any]

RUNTIMES = ("torch", "onnxruntime", "openvino")
CALLINGS = ("unbatched", "semaphore", "micro-batcher")
INFINITY = "infinity-emb"
SETTINGS = Path(__file__).with_name("embedding.json")
_NEEDS = {"torch": ("torch",), "onnxruntime": ("onnxruntime", "onnx"), "openvino": ("openvino",)}
_WARM_UP = 64
_TUNING_ROUNDS = 2


class Arm(Protocol):
    """An opponent under load."""

    def run(self, texts: Sequence[str], users: int, shape: Shape) -> Load:
        """Let ``users`` callers embed the texts, one a call."""
        ...

    def close(self) -> None:
        """End what it started."""
        ...


def names() -> list[str]:
    """Return every opponent's name."""
    own = [f"{runtime}, {calling}" for runtime in RUNTIMES for calling in CALLINGS]
    return [*own, INFINITY]


def missing() -> dict[str, str]:
    """Return the opponents that cannot be run here, with what they lack."""
    found: dict[str, str] = {}
    for name in names():
        if name == INFINITY:
            if not ENVIRONMENT.exists():
                found[name] = f"no {ENVIRONMENT} (make peers)"
            continue
        lacks = [one for one in _NEEDS[name.split(",")[0]] if importlib.util.find_spec(one) is None]
        if lacks:
            found[name] = f"no {', '.join(lacks)}"
    return found


def committed() -> dict[str, Settings]:
    """Return the settings that suit each opponent best."""
    found: dict[str, Settings] = json.loads(SETTINGS.read_text(encoding="utf-8"))
    if found.keys() != set(names()):
        raise ConfigError(
            "settings for other opponents",
            where=str(SETTINGS),
            found=", ".join(sorted(found)),
            valid=", ".join(names()),
            hint="run the full form of embedding_concurrency with --set tune=1",
        )
    return found


@contextmanager
def arm(name: str, settings: Settings, model: Any, path: str) -> Iterator[Arm]:
    """Give an opponent, warm.

    Args:
        name: one of ``names``.
        settings: one of ``candidates``.
        model: a ``SentenceTransformer``.
        path: its folder.
    """
    made = Infinity(path, **settings) if name == INFINITY else _Local(name, settings, model)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def embeddings(name: str, settings: Settings, model: Any) -> Iterator[Embeddings]:
    """Give an opponent that runs in this process as LangChain embeddings, for a store's queries."""
    made = _Local(name, settings, model)
    try:
        yield _Queries(made.embedder)
    finally:
        made.close()


class _Queries(Embeddings):
    def __init__(self, embedder: TextEmbedder) -> None:
        self._embedder = embedder

    def embed_query(self, text: str) -> list[float]:
        return self._embedder.invoke(text)

    async def aembed_query(self, text: str) -> list[float]:
        return await self._embedder.ainvoke(text)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return list(map(self._embedder.invoke, texts))


def candidates(name: str, cores: int) -> list[Settings]:
    """Return the settings among which an opponent's best is looked for."""
    if name == INFINITY:
        return [
            {"batch": batch, "threads": threads}
            for batch in (16, 32, 64)
            for threads in sorted({1, cores})
        ]
    runtime, calling = name.split(", ")
    computing = _ways_to_compute(runtime, cores)
    if calling == "unbatched":
        return computing
    if calling == "semaphore":
        return [{**one, "most": most} for one in computing for most in (cores, 2 * cores)]
    return [
        {**one, "workers": workers, "most": most, "part": part, "by_length": by_length}
        for one in computing
        for workers in sorted({1, cores})
        for most, part, by_length in _CUTS
    ]


#: Texts that a micro-batcher takes, those of a batch, and whether it cuts by length.
_CUTS = (
    (16, 16, False),
    (32, 16, True),
    (32, 32, False),
    (64, 16, True),
    (64, 32, True),
)


def tuned(
    name: str, cores: int, model: Any, path: str, texts: Sequence[str], callers: int
) -> Settings:
    """Return the settings of the highest rate; the better of two rounds counts."""
    found = candidates(name, cores)
    rates = [0.0] * len(found)
    for _ in range(_TUNING_ROUNDS):
        for place, settings in enumerate(found):
            with arm(name, settings, model, path) as made:
                rate = made.run(texts, callers, "tasks").throughput_rps
            rates[place] = max(rates[place], rate)
    return found[rates.index(max(rates))]


def keep(settings: Mapping[str, Settings]) -> None:
    """Write settings that were found; those of opponents that are missing here stay."""
    known = {**committed(), **settings}
    SETTINGS.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def _ways_to_compute(runtime: str, cores: int) -> list[Settings]:
    if runtime != "openvino":
        return [{"threads": threads} for threads in sorted({1, cores})]
    return [{"threads": cores, "streams": streams} for streams in sorted({1, cores})]


class _Local:
    """An opponent in this process, with its own number of torch threads."""

    def __init__(self, name: str, settings: Settings, model: Any) -> None:
        runtime, calling = name.split(", ")
        is_torch = runtime == "torch"
        self._threads = settings["threads"] if is_torch else 1
        with torch_threads(self._threads):
            self.embedder = _called(calling, settings, _runtime(runtime, settings, model))
            run_load(self.embedder, ["a text to warm up"] * _WARM_UP, _WARM_UP, "threads")

    def run(self, texts: Sequence[str], users: int, shape: Shape) -> Load:
        """Let ``users`` callers embed the texts, one a call."""
        with torch_threads(self._threads):
            return run_load(self.embedder, texts, users, shape)

    def close(self) -> None:
        """End its workers."""
        self.embedder.close()


def _runtime(name: str, settings: Settings, model: Any) -> Runtime:
    if name == "torch":
        return TorchRuntime(model)
    if name == "onnxruntime":
        return OnnxRuntime(model, settings["threads"])
    return OpenVinoRuntime(model, settings["threads"], settings["streams"])


def _called(calling: str, settings: Settings, runtime: Runtime) -> OneByOne | MicroBatcher:
    if calling == "micro-batcher":
        own = {name: settings[name] for name in ("most", "workers", "part", "by_length")}
        return MicroBatcher(runtime, **own)
    return OneByOne(runtime, settings.get("most"))
