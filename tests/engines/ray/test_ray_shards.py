"""Exact search over shards: equal to one index, and changed as a whole or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process_cluster import BRINGS_WORK, PlainActor, PlainCluster

from rag_accel.engine_api import (
    Document,
    Engine,
    EngineOutput,
    EngineRequest,
    IngestBatch,
    PrimitiveKind,
    ScoredDocument,
    SearchQuery,
    StepBudget,
    WorkId,
)
from rag_accel.engines.ray import RayOptions, RayShards, split_index, write_shards
from rag_accel.engines.ray.shards.hosted_shard import ShardChange
from rag_accel.engines.ray.shards.shard_files import read_manifest
from rag_accel.engines.retrieval import DocumentIndex, IndexKind, IndexSpec, Metric
from rag_accel.errors import (
    ConfigError,
    DocumentError,
    EngineError,
    EngineLostError,
    EngineOutputError,
    IndexFileError,
)
from rag_accel.testing import EngineContract

DIMENSION = 6
LONG_S = 30.0


def documents(first: int, number: int, text: str = "text") -> list[Document]:
    return [Document(f"d{n}", f"{text} {n}", {"odd": n % 2}) for n in range(first, first + number)]


def vectors(first: int, number: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return vectors of few different numbers, so that many scores are equal."""
    rng = np.random.default_rng([seed, first])
    return rng.integers(-1, 2, (number, DIMENSION)).astype(np.float32)


def one_index(number: int = 60, metric: Metric = Metric.INNER_PRODUCT) -> DocumentIndex:
    index = DocumentIndex(IndexSpec(DIMENSION, metric))
    index.add(documents(0, number), vectors(0, number))
    return index


def search(number: int, vector: Any, k: int = 10, **fields: Any) -> EngineRequest:
    query = SearchQuery(vector, k, **fields)
    return EngineRequest(WorkId(f"s{number}"), "r", PrimitiveKind.SEARCHING, query)


def ingestion(name: str, batch: list[Document], rows: Any) -> EngineRequest:
    payload = IngestBatch(tuple(batch), rows)
    return EngineRequest(WorkId(name), "r", PrimitiveKind.INGESTION, payload)


def run(engine: RayShards, *work: EngineRequest) -> dict[str, EngineOutput]:
    engine.submit(work)
    return finish(engine, len(work))


def finish(engine: RayShards, number: int) -> dict[str, EngineOutput]:
    ends: dict[str, EngineOutput] = {}
    guard = threading.Timer(LONG_S, engine.interrupt)
    guard.start()
    try:
        while len(ends) < number:
            assert guard.is_alive(), f"only {ends}"
            ends.update({output.id: output for output in engine.step(StepBudget(0.05))})
    finally:
        guard.cancel()
    return ends


def told(found: tuple[ScoredDocument, ...] | list[ScoredDocument]) -> list[tuple[str, str, float]]:
    return [(hit.document.id, hit.document.text, hit.score) for hit in found]


class Sharded:
    """An index in shards, and the same documents in one index."""

    def __init__(self, folder: Path, shards: int, metric: Metric, options: RayOptions) -> None:
        self.folder = folder
        self.whole = one_index(metric=metric)
        write_shards(folder, split_index(self.whole, shards), "embedder")
        self.cluster = PlainCluster()
        self.engine = RayShards(folder, options, cluster=self.cluster)

    @property
    def actors(self) -> list[PlainActor]:
        return self.cluster.actors

    def equals(self, number: int = 40, **fields: Any) -> bool:
        """Tell whether searches find what they find in one index."""
        queries = vectors(1000, number, seed=1)
        work = [search(n, query, **fields) for n, query in enumerate(queries)]
        ends = run(self.engine, *work)
        k = fields.pop("k", 10)
        expected = self.whole.search(queries, k, **fields)
        return all(told(ends[f"s{n}"].value) == told(found) for n, found in enumerate(expected))

    def ingest(self, batch: list[Document], rows: Any) -> EngineOutput:
        end = run(self.engine, ingestion("i", batch, rows))["i"]
        if end.kind == "final":
            self.whole.add(batch, rows)
        return end


Maker = Callable[..., Sharded]


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Maker]:
    made: list[Sharded] = []

    def make(
        shards: int = 3,
        metric: Metric = Metric.INNER_PRODUCT,
        options: RayOptions | None = None,
    ) -> Sharded:
        made.append(Sharded(tmp_path / "shards", shards, metric, options or RayOptions()))
        return made[-1]

    yield make
    for sharded in made:
        sharded.engine.close()


class TestShardsContract(EngineContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "shards"
        write_shards(self.folder, split_index(one_index(), 2), "embedder")

    def make_engine(self) -> Engine:
        return RayShards(self.folder, cluster=PlainCluster())

    def make_request(self, number: int) -> EngineRequest:
        return replace(search(number, vectors(number, 1)[0]), id=WorkId(f"w{number}"))

    def make_bad_request(self) -> EngineRequest:
        return search(99, np.zeros(DIMENSION + 1, np.float32))


@pytest.mark.parametrize("metric", list(Metric))
@pytest.mark.parametrize("shards", [1, 2, 5])
def test_a_thousand_searches_equal_those_of_one_index(
    shard: Maker, metric: Metric, shards: int
) -> None:
    sharded = shard(shards, metric)
    assert sharded.equals(250)
    assert sharded.equals(250, where={"odd": 1})
    assert sharded.equals(250, k=45)  # more than any of several shards has
    assert sharded.equals(125, k=1000)
    assert sharded.equals(125, k=0)


def test_ingested_documents_are_found_as_in_one_index(shard: Maker) -> None:
    sharded = shard()
    replaced, new = documents(10, 20, "new text"), documents(60, 25)
    batch = [*new, *replaced, new[3]]  # the last of equal ids counts
    rows = np.concatenate([vectors(60, 25), vectors(10, 20, seed=7), vectors(3, 1, seed=8)])
    end = sharded.ingest(batch, rows)
    assert end.value == tuple(document.id for document in batch)
    assert sharded.engine.version == 2
    assert sharded.equals()
    assert sharded.equals(where={"odd": 0}, k=70)
    assert sharded.ingest(documents(85, 1), vectors(85, 1)).kind == "final"
    assert sharded.equals(k=86)
    names = {file.name for file in sharded.folder.iterdir()}
    manifest = read_manifest(sharded.folder)
    named = {name for files in manifest.shards for name in (files.index, files.orders)}
    assert names == named | {"manifest.json", "manifest.lock"}
    assert sum(files.count for files in manifest.shards) == 86


def test_new_documents_go_to_the_smallest_shards(shard: Maker) -> None:
    sharded = shard(4)
    sharded.ingest(documents(60, 8), vectors(60, 8))
    assert [files.count for files in read_manifest(sharded.folder).shards] == [17] * 4


def test_a_shard_that_dies_reads_its_files_and_answers_equally(shard: Maker) -> None:
    sharded = shard()
    sharded.ingest(documents(60, 9), vectors(60, 9))
    sharded.engine.submit([search(0, vectors(0, 1)[0])])
    sharded.actors[1].kill()
    assert finish(sharded.engine, 1)["s0"].kind == "final"
    assert sharded.equals()
    assert sharded.engine.health().is_ready


def test_a_change_that_one_shard_cannot_take_is_taken_by_none(shard: Maker) -> None:
    sharded = shard()
    bad = [*documents(0, 1, "other"), Document("d25", "x", {"odd": object()}), *documents(59, 1)]
    end = sharded.ingest(bad, vectors(1, 3))
    assert isinstance(end.error, DocumentError)
    assert sharded.engine.version == 1
    assert sharded.equals()
    # Only the second shard changes now: what the others had prepared must not come with it.
    assert sharded.ingest(documents(30, 1, "second"), vectors(2, 1)).kind == "final"
    assert sharded.equals(k=60)


def _dies(actor: PlainActor, when: Callable[[Any], bool], *, executes: bool) -> None:
    """Let an actor die once at a call of its engine, before or after it was executed."""
    host = actor.hosts[-1]
    engine: Any = host._thread.made.result()
    ended = engine._ended

    def dying(request: EngineRequest) -> EngineOutput:
        if not when(request.payload):
            return ended(request)
        if executes:
            ended(request)
        killer = threading.Thread(target=actor.kill)
        killer.start()
        while actor.hosts[-1] is host:  # its answer must not come before it is dead
            threading.Event().wait(0.001)
        raise EngineError("dead")

    engine._ended = dying


@pytest.mark.parametrize("executes", [False, True])
def test_a_shard_lost_before_the_decision_rolls_all_back(shard: Maker, executes: bool) -> None:
    sharded = shard()
    _dies(sharded.actors[1], lambda call: isinstance(call, ShardChange), executes=executes)
    end = sharded.ingest(documents(15, 30, "other"), vectors(15, 30, seed=3))
    assert isinstance(end.error, EngineLostError)
    assert sharded.engine.version == 1
    assert sharded.equals(k=60)
    assert sharded.ingest(documents(15, 30, "again"), vectors(15, 30, seed=4)).kind == "final"
    assert sharded.equals(k=60)


@pytest.mark.parametrize("executes", [False, True])
def test_a_shard_lost_after_the_decision_rolls_forward(shard: Maker, executes: bool) -> None:
    sharded = shard()
    _dies(
        sharded.actors[1],
        lambda call: type(call).__name__ == "ShardCommit",
        executes=executes,
    )
    assert sharded.ingest(documents(15, 30, "other"), vectors(15, 30, seed=3)).kind == "final"
    assert sharded.engine.version == 2
    assert sharded.equals(k=60)


def test_searches_among_changes_are_of_one_version(shard: Maker) -> None:
    sharded = shard()
    query = np.ones(DIMENSION, np.float32)
    versions = [0, 1, 2, 3, 4]
    expected = [told(sharded.whole.search(query[None], 60)[0])]
    for number in versions[1:]:
        sharded.whole.add(documents(0, 60, f"v{number}"), vectors(0, 60, seed=number))
        expected.append(told(sharded.whole.search(query[None], 60)[0]))
    seen: list[int] = []
    ingested = 0
    submitted = 0
    sharded.engine.submit([ingestion("i1", documents(0, 60, "v1"), vectors(0, 60, seed=1))])
    while ingested < 4:
        sharded.engine.submit([search(submitted, query, 60)])
        submitted += 1
        for output in sharded.engine.step(StepBudget(0.01)):
            if output.id.startswith("i"):
                assert output.kind == "final"
                ingested += 1
                n = ingested + 1
                batch = ingestion(f"i{n}", documents(0, 60, f"v{n}"), vectors(0, 60, seed=n))
                if n < 5:
                    sharded.engine.submit([batch])
            else:
                seen.append(expected.index(told(output.value)))
    sharded.engine.submit([search(submitted, query, 60)])
    rest = finish(sharded.engine, submitted + 1 - len(seen))
    for output in rest.values():
        seen.append(expected.index(told(output.value)))  # raises where versions are mixed
    assert expected.index(told(rest[f"s{submitted}"].value)) == 4
    assert len(seen) == submitted + 1


def test_a_folder_changed_by_another_program_is_seen(shard: Maker) -> None:
    sharded = shard()
    other = RayShards(sharded.folder, cluster=PlainCluster())
    try:
        batch = documents(60, 5), vectors(60, 5)
        assert run(other, ingestion("i", *batch))["i"].kind == "final"
    finally:
        other.close()
    sharded.whole.add(*batch)
    sharded.actors[0].kill()  # its next process has the new version, the others the old one
    while not all(part.is_ready for part in sharded.engine.health().parts):
        sharded.engine.step(StepBudget(0.01))
    assert sharded.equals(k=65)


def test_closing_ends_a_change_that_waits(shard: Maker) -> None:
    sharded = shard()
    gate = threading.Event()
    sharded.actors[0].before = lambda method: gate.wait(LONG_S) if method in BRINGS_WORK else None
    sharded.engine.submit([ingestion("i", documents(60, 3), vectors(60, 3))])
    threading.Timer(0.2, gate.set).start()
    sharded.engine.close()
    assert read_manifest(sharded.folder).version in (1, 2)


def test_a_shard_lost_for_good_is_named(shard: Maker) -> None:
    sharded = shard(options=RayOptions(max_restarts=0))
    sharded.actors[2].kill()
    ends = run(sharded.engine, search(0, vectors(0, 1)[0]))
    assert isinstance(ends["s0"].error, EngineLostError)
    assert "shard 2" in str(ends["s0"].error)
    assert sharded.engine.health().state == "lost"
    end = sharded.ingest(documents(60, 3), vectors(60, 3))
    assert isinstance(end.error, EngineLostError)


@pytest.mark.parametrize(
    ("work", "error"),
    [
        (search(0, np.zeros(DIMENSION + 1)), ConfigError),
        (search(0, np.full(DIMENSION, np.nan)), EngineOutputError),
        (search(0, np.zeros(DIMENSION), k="many"), ConfigError),  # type: ignore[arg-type]
        (search(0, np.zeros(DIMENSION), where=["odd"]), ConfigError),
        (ingestion("s0", documents(0, 2), vectors(0, 1)), ConfigError),
        (ingestion("s0", ["text"], vectors(0, 1)), ConfigError),  # type: ignore[list-item]
        (replace(search(0, None), payload="text"), EngineError),
    ],
)
def test_bad_work_is_an_error_of_its_own(
    shard: Maker, work: EngineRequest, error: type[Exception]
) -> None:
    sharded = shard()
    ends = run(sharded.engine, work, search(1, vectors(0, 1)[0]))
    assert isinstance(ends["s0"].error, error)
    assert ends["s1"].kind == "final"


def test_folders_without_usable_shards_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="without shards"):
        RayShards(tmp_path, cluster=PlainCluster())
    write_shards(tmp_path / "a", [one_index()], "embedder")
    with pytest.raises(ConfigError, match="already"):
        write_shards(tmp_path / "a", [one_index()], "embedder")
    (tmp_path / "a" / read_manifest(tmp_path / "a").shards[0].orders).write_bytes(b"rubbish")
    with pytest.raises(IndexFileError, match="orders"):
        RayShards(tmp_path / "a", cluster=PlainCluster())
    (tmp_path / "a" / "manifest.json").write_text('{"format": 9}')
    with pytest.raises(IndexFileError, match="another format"):
        RayShards(tmp_path / "a", cluster=PlainCluster())


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ([], "no shards"),
        ([one_index(3), DocumentIndex(IndexSpec(DIMENSION + 1))], "fit together"),
        ([one_index(3), one_index(4)], "in two shards"),
        ([DocumentIndex(IndexSpec(DIMENSION, kind=IndexKind.IVF))], "with clusters"),
    ],
)
def test_parts_that_are_no_shards_are_named(
    tmp_path: Path, parts: list[DocumentIndex], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        write_shards(tmp_path, parts, "embedder")


def test_shards_have_one_actor_each(tmp_path: Path) -> None:
    write_shards(tmp_path, [one_index()], "embedder")
    with pytest.raises(ConfigError, match="one actor"):
        RayShards(tmp_path, RayOptions(replicas=2), cluster=PlainCluster())
    with pytest.raises(ConfigError, match="no room"):
        RayShards(tmp_path, RayOptions(num_cpus=9), cluster=PlainCluster())
