"""A folder of shards that several programs change, and that die while they do."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process_cluster import PlainCluster

from rag_accel.engine_api import (
    Document,
    EngineOutput,
    EngineRequest,
    IngestBatch,
    PrimitiveKind,
    SearchQuery,
    StepBudget,
    WorkId,
)
from rag_accel.engine_api.transient import is_transient
from rag_accel.engines.ray import RayShards, split_index, write_shards
from rag_accel.engines.ray.shards.shard_files import (
    ShardManifest,
    commit_manifest,
    next_manifest,
    read_manifest,
    remove_old_files,
)
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec
from rag_accel.errors import ConfigError, DocumentError, ShardsChangedError
from rag_accel.system.files import held_lock

DIMENSION = 4
SHARDS = 2
FIRST = 12


def documents(name: str, number: int) -> list[Document]:
    return [Document(f"{name}{n}", f"text {n} of {name}") for n in range(number)]


def vectors(number: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(number).standard_normal((number, DIMENSION), dtype=np.float32)


def fill(folder: Path) -> None:
    index = DocumentIndex(IndexSpec(DIMENSION))
    index.add(documents("first", FIRST), vectors(FIRST))
    write_shards(folder, split_index(index, SHARDS), "embedder")


class Program:
    """A program with shards of its own over a folder."""

    def __init__(self, folder: Path) -> None:
        self.cluster = PlainCluster()
        self.engine = RayShards(folder, cluster=self.cluster)

    def run(self, kind: PrimitiveKind, payload: Any) -> EngineOutput:
        self.engine.submit([EngineRequest(WorkId("w"), "r", kind, payload)])
        while True:
            for output in self.engine.step(StepBudget(0.05)):
                return output

    def ingest(self, name: str, number: int = 10) -> Exception | BaseException | None:
        batch = IngestBatch(tuple(documents(name, number)), vectors(number))
        return self.run(PrimitiveKind.INGESTION, batch).error

    def found(self) -> set[str]:
        query = SearchQuery(np.ones(DIMENSION, np.float32), 1000)
        hits = self.run(PrimitiveKind.SEARCHING, query).value
        ids = [hit.document.id for hit in hits]
        assert len(ids) == len(set(ids)), "a document in two shards"
        return set(ids)

    def before_the_decision(self, act: Callable[[], object]) -> None:
        """Let something happen once between what the shards prepare and the decision."""
        ingestion: Any = self.engine._ingestion
        prepare = ingestion._prepare

        def acting(*arguments: Any) -> Any:
            ingestion._prepare = prepare
            prepared = prepare(*arguments)
            act()
            return prepared

        ingestion._prepare = acting


def ids(*names: str, number: int = 10) -> set[str]:
    first = {document.id for document in documents("first", FIRST)}
    return first.union(*({document.id for document in documents(n, number)} for n in names))


def assert_tidy(folder: Path) -> None:
    """Assert that the folder has what its manifest names, and nothing else."""
    shards = read_manifest(folder).shards
    named = {name for files in shards for name in (files.index, files.orders)}
    there = {file.name for file in folder.iterdir()}
    assert there - {"manifest.lock"} == named | {"manifest.json"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fill(tmp_path / "shards")
    return tmp_path / "shards"


@pytest.fixture
def program(folder: Path) -> Iterator[Callable[[], Program]]:
    made: list[Program] = []

    def make() -> Program:
        made.append(Program(folder))
        return made[-1]

    yield make
    for one in made:
        one.engine.close()


Maker = Callable[[], Program]


def test_of_two_changes_of_one_version_the_first_is_kept_whole(
    folder: Path, program: Maker
) -> None:
    first, second = program(), program()
    errors: list[Any] = []
    second.before_the_decision(lambda: errors.append(first.ingest("a")))
    lost = second.ingest("b")
    assert errors == [None]
    assert isinstance(lost, ShardsChangedError)
    assert is_transient(lost)
    assert "version 2 of another program" in str(lost)
    assert first.found() == second.found() == program().found() == ids("a")
    assert_tidy(folder)


def test_a_program_answers_from_its_version_until_it_changes_the_folder(program: Maker) -> None:
    first, second = program(), program()
    assert second.ingest("b") is None
    assert first.found() == ids()
    assert first.ingest("a") is None
    assert first.found() == ids("a", "b")


def test_programs_that_ingest_at_once_lose_none_that_was_accepted(
    folder: Path, program: Maker
) -> None:
    programs = [program() for _ in range(2)]
    ends: dict[str, Any] = {}

    def ingest(place: int) -> None:
        for turn in range(4):
            name = f"p{place}-{turn}-"
            ends[name] = programs[place].ingest(name)

    threads = [threading.Thread(target=ingest, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    accepted = [name for name, error in ends.items() if error is None]
    assert accepted
    refused = [error for error in ends.values() if error is not None]
    assert all(isinstance(error, ShardsChangedError) for error in refused)
    assert program().found() == ids(*accepted)
    for place, one in enumerate(programs):
        assert one.ingest(f"last{place}-") is None
    assert program().found() == ids(*accepted, "last0-", "last1-")
    assert_tidy(folder)


def test_files_of_a_change_under_way_elsewhere_are_left_alone(folder: Path, program: Maker) -> None:
    first, second = program(), program()
    begun: list[set[str]] = []

    def begin_again() -> None:
        begun.append({file.name for file in folder.glob("shard-*.2-*")})
        bad = IngestBatch((Document("x", "text", {"odd": object()}),), vectors(1))
        assert isinstance(first.run(PrimitiveKind.INGESTION, bad).error, DocumentError)
        assert {file.name for file in folder.glob("shard-*.2-*")} == begun[0]

    second.before_the_decision(begin_again)
    assert second.ingest("b") is None
    assert begun[0]
    assert program().found() == ids("b")


def test_what_was_prepared_for_a_refused_change_is_removed(folder: Path, program: Maker) -> None:
    one = program()
    batch = (*documents("a", 20), Document("x", "text", {"odd": object()}))
    end = one.run(PrimitiveKind.INGESTION, IngestBatch(batch, vectors(21)))
    assert isinstance(end.error, DocumentError)
    assert_tidy(folder)
    assert one.found() == ids()


def test_a_shard_that_starts_while_its_files_are_replaced_reads_the_newer_ones(
    folder: Path, program: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rag_accel.engines.ray.shards import hosted_shard

    first = program()
    read = hosted_shard.read_shard
    ingested: list[Any] = []

    def reading(*arguments: Any) -> Any:
        monkeypatch.setattr(hosted_shard, "read_shard", read)
        ingested.append(first.ingest("a"))
        return read(*arguments)

    monkeypatch.setattr(hosted_shard, "read_shard", reading)
    shard = hosted_shard.HostedShard(folder, 0)
    assert ingested == [None]
    assert shard._manifest == read_manifest(folder)
    shard.close()


def test_a_folder_of_older_names_is_opened_and_changed(folder: Path, program: Maker) -> None:
    manifest = read_manifest(folder)
    text = (folder / "manifest.json").read_text()
    for place, files in enumerate(manifest.shards):
        for name, old in (
            (files.index, f"shard-{place}.1.index"),
            (files.orders, f"shard-{place}.1.orders.npy"),
        ):
            (folder / name).rename(folder / old)
            text = text.replace(name, old)
    (folder / "manifest.json").write_text(text)
    (folder / "manifest.lock").unlink()
    one = program()
    assert one.found() == ids()
    assert one.ingest("a") is None
    assert one.found() == program().found() == ids("a")
    assert_tidy(folder)


def test_a_manifest_is_only_replaced_by_a_change_that_was_made_from_it(folder: Path) -> None:
    first = read_manifest(folder)
    commit_manifest(folder, first, next_manifest(first, {}, 1))
    second = read_manifest(folder)
    with pytest.raises(ShardsChangedError, match="version 2"):
        commit_manifest(folder, first, next_manifest(first, {}, 2))
    with pytest.raises(ShardsChangedError):
        commit_manifest(folder, None, first)
    assert read_manifest(folder) == second


def test_one_of_many_changes_of_a_manifest_is_taken(folder: Path) -> None:
    manifest = read_manifest(folder)
    together = threading.Barrier(8)
    taken: list[int] = []

    def change(number: int) -> None:
        together.wait()
        try:
            commit_manifest(folder, manifest, next_manifest(manifest, {}, number))
        except ShardsChangedError:
            return
        taken.append(number)

    threads = [threading.Thread(target=change, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [manifest.next_order + number for number in taken] == [read_manifest(folder).next_order]


def test_a_program_that_keeps_the_lock_is_not_waited_for_for_ever(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rag_accel.engines.ray.shards.shard_files._LOCK_S", 0.0)
    manifest = read_manifest(folder)
    after = next_manifest(manifest, {}, 1)
    with (
        held_lock(folder / "manifest.lock", 0.0),
        pytest.raises(ShardsChangedError, match="is locked"),
    ):
        commit_manifest(folder, manifest, after)
    commit_manifest(folder, manifest, after)
    assert read_manifest(folder) == after


def test_a_manifest_that_took_its_name_counts_though_a_flush_failed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(directory: Path) -> None:
        raise OSError("flush")

    monkeypatch.setattr("rag_accel.system.files._sync_directory", fail)
    manifest = read_manifest(folder)
    commit_manifest(folder, manifest, next_manifest(manifest, {}, 1))
    assert read_manifest(folder).version == 2


@pytest.mark.parametrize(
    ("name", "stays"),
    [
        ("shard-0.1-00.index", False),
        ("shard-0.2-00.orders.npy", False),
        ("shard-0.2.index", False),
        (".shard-0.2-00.index.abcdefgh.rag.tmp", False),
        ("shard-0.3-00.index", True),  # the next version may be under way
        (".shard-0.3-00.index.abcdefgh.rag.tmp", True),
        ("shard-1.1-00.index", True),  # of another shard
        ("shard-01.txt", True),
        ("notes.txt", True),
    ],
)
def test_only_files_that_no_manifest_can_name_are_removed(
    folder: Path, name: str, *, stays: bool
) -> None:
    first = read_manifest(folder)
    second: ShardManifest = next_manifest(first, {}, 0)
    (folder / name).touch()
    remove_old_files(folder, second, 0)
    assert (folder / name).exists() == stays
    for files in second.shards:
        assert (folder / files.index).exists()


def test_of_two_writers_of_one_folder_one_writes_its_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rag_accel.engines.ray.shards import shard_files

    commit, folder = shard_files.commit_manifest, tmp_path / "shards"

    def committing(*arguments: Any) -> None:
        monkeypatch.setattr(shard_files, "commit_manifest", commit)
        fill(folder)
        commit(*arguments)

    monkeypatch.setattr(shard_files, "commit_manifest", committing)
    with pytest.raises(ConfigError, match="already"):
        fill(folder)
    assert_tidy(folder)


#: Ingests in a fresh process, which dies at the step of the given number; see below.
_KILLED = """
import os, sys
from pathlib import Path
from test_shared_shards import Program, fill, ids
from rag_accel.engines.ray.shards.shard_files import read_manifest

def killed_at(step, root):
    left = [step]
    def counted(call):
        def run(*arguments, **named):
            left[0] -= 1
            if left[0] == 0:
                os._exit(9)
            return call(*arguments, **named)
        return run
    for name in ("fsync", "replace", "unlink"):
        setattr(os, name, counted(getattr(os, name)))
    return Program(root).ingest("a") is None and left[0] > 0

root = Path(sys.argv[1])
outcomes = []
for step in range(1, 1000):
    folder = root / str(step)
    fill(folder)
    child = os.fork()
    if child == 0:
        os._exit(7 if killed_at(step, folder) else 1)
    _, status = os.waitpid(child, 0)
    outcomes.append((step, os.waitstatus_to_exitcode(status)))
    if outcomes[-1][1] != 9:
        break
print(outcomes)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_program_killed_at_any_step_of_a_change_leaves_all_or_nothing(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    ended = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([here, *sys.path])},
    )
    outcomes: list[tuple[int, int]] = eval(ended.stdout)
    assert [code for _, code in outcomes] == [9] * (len(outcomes) - 1) + [7], ended.stderr
    versions: list[int] = []
    for step, _ in outcomes:
        folder = tmp_path / str(step)
        versions.append(read_manifest(folder).version)
        one = Program(folder)
        try:
            assert one.found() == (ids("a") if versions[-1] == 2 else ids())
            assert one.ingest("b") is None
            assert one.found() == (ids("a", "b") if versions[-1] == 2 else ids("b"))
            assert_tidy(folder)
        finally:
            one.engine.close()
    assert set(versions) == {1, 2}
