"""A folder of shards that two programs with actors of their own change at the same time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worker_paths import worker_path

from rag_accel.engine_api import (
    Document,
    EngineRequest,
    PrimitiveKind,
    SearchQuery,
    StepBudget,
    WorkId,
)
from rag_accel.engines.ray import RayOptions, RayShards, split_index, write_shards
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

DIMENSION = 32
SHARDS = 2
ROUNDS = 3

#: Ingests what each line names, "NAME NUMBER", and answers with a line: "taken", or the error.
_PROGRAM = """
import sys
import numpy as np
import ray
from rag_accel.engine_api import (
    Document, EngineRequest, IngestBatch, PrimitiveKind, StepBudget, WorkId
)
from rag_accel.engines.ray import RayOptions, RayShards

address, folder, path, dimension = sys.argv[1:]
ray.init(
    address=address,
    log_to_driver=False,
    configure_logging=False,
    runtime_env={"env_vars": {"PYTHONPATH": path}},
)
engine = RayShards(folder, RayOptions(num_cpus=0.25))
print("ready", flush=True)
for line in sys.stdin:
    name, number = line.split()
    documents = tuple(Document(f"{name}{n}", f"text {n}") for n in range(int(number)))
    vectors = np.random.default_rng(0).standard_normal((int(number), int(dimension)))
    batch = IngestBatch(documents, vectors.astype(np.float32))
    engine.submit([EngineRequest(WorkId("w"), "r", PrimitiveKind.INGESTION, batch)])
    ends = []
    while not ends:
        ends = list(engine.step(StepBudget(0.1)))
    print("taken" if ends[0].error is None else type(ends[0].error).__name__, flush=True)
engine.close()
"""


class Program:
    """A process with shards of its own."""

    def __init__(self, address: str, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, address, str(folder), worker_path(), str(DIMENSION)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, name: str, number: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{name} {number}\n")
        self.process.stdin.flush()

    def told(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.communicate(timeout=60)


@pytest.fixture
def programs(cluster: Any, nodes: Any) -> Iterator[Callable[[Path], list[Program]]]:
    made: list[Program] = []

    def make(folder: Path) -> list[Program]:
        made.extend(Program(nodes.address, folder) for _ in range(2))
        assert [program.told() for program in made] == ["ready", "ready"]
        return made

    yield make
    for program in made:
        program.end()


def found(folder: Path) -> list[str]:
    """Return the ids of all documents, as a search of shards that start now finds them."""
    engine = RayShards(folder, RayOptions(num_cpus=0.25))
    query = SearchQuery(np.ones(DIMENSION, np.float32), 1_000_000)
    engine.submit([EngineRequest(WorkId("w"), "r", PrimitiveKind.SEARCHING, query)])
    outputs: list[Any] = []
    while not outputs:
        outputs = list(engine.step(StepBudget(0.1)))
    engine.close()
    return [hit.document.id for hit in outputs[0].value]


def test_of_two_programs_that_ingest_at_once_what_was_accepted_is_there_and_nothing_else(
    programs: Callable[[Path], list[Program]], tmp_path: Path
) -> None:
    folder = tmp_path / "shards"
    index = DocumentIndex(IndexSpec(DIMENSION))
    rows = np.random.default_rng(1).standard_normal((100, DIMENSION), dtype=np.float32)
    index.add([Document(f"first{n}", f"text {n}") for n in range(100)], rows)
    write_shards(folder, split_index(index, SHARDS), "embedder")
    pair = programs(folder)
    expected = {f"first{n}" for n in range(100)}
    for turn in range(ROUNDS):
        names = [f"round{turn}-program{place}-" for place in range(2)]
        for program, name in zip(pair, names, strict=True):
            program.begin(name, 1000)
        ends = [program.told() for program in pair]
        assert set(ends) <= {"taken", "ShardsChangedError"}
        assert "taken" in ends
        accepted = [name for name, end in zip(names, ends, strict=True) if end == "taken"]
        expected |= {f"{name}{n}" for name in accepted for n in range(1000)}
        for program, name in zip(pair, names, strict=True):
            program.begin(f"{name}after-", 10)
            assert program.told() == "taken"
            expected |= {f"{name}after-{n}" for n in range(10)}
        ids = found(folder)
        assert len(ids) == len(set(ids))
        assert set(ids) == expected
    left = {file.name for file in folder.iterdir()} - {"manifest.json", "manifest.lock"}
    assert len(left) == 2 * SHARDS
