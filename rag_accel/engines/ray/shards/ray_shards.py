"""An exact index over shards in actors, as one engine."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rag_accel.clock import Clock
from rag_accel.engine_api import (
    Capability,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    Health,
    IngestBatch,
    LatencyModel,
    PrimitiveKind,
    ScoredDocument,
    SearchQuery,
    WorkId,
    worst_state,
)
from rag_accel.engines.ray.engine import Cluster, RayCluster, RayOptions, check_room
from rag_accel.engines.ray.shards.hosted_shard import (
    OtherVersion,
    ShardHits,
    ShardIngestion,
    ShardSearch,
)
from rag_accel.engines.ray.shards.shard_files import read_manifest
from rag_accel.engines.replicas.engine import ReplicasEngine
from rag_accel.engines.replicas.host import EngineSpec
from rag_accel.engines.replicas.parts_engine import PartJob
from rag_accel.engines.replicas.replica import HostedJob, Replica, ReplicaReport
from rag_accel.engines.retrieval.search_request import checked_search
from rag_accel.engines.retrieval.vectors.checks import checked_documents, checked_vectors
from rag_accel.errors import ConfigError, EngineError, EngineLostError


@dataclass(slots=True, eq=False)
class ShardedJob(PartJob[Replica]):
    """A search or an ingestion while it is under way. Equal only to itself."""

    query: SearchQuery | None = None
    batch: IngestBatch | None = None
    version: int = 0
    tries: int = 0
    hits: dict[int, ShardHits] = field(default_factory=dict[int, ShardHits])
    parts: list[ShardPart] = field(default_factory=list["ShardPart"])
    task: Future[Any] | None = None


@dataclass(slots=True, eq=False)
class ShardPart(HostedJob):
    """The part of a search that one shard answers, or a call of an ingestion (``answer``)."""

    place: int = field(default=0, kw_only=True)
    whole: ShardedJob | None = field(default=None, kw_only=True)
    answer: Future[Any] | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class ChangeEnd:
    """The end of an ingestion, or of a look for the shards' version (without a job)."""

    job: ShardedJob | None
    error: Exception | None = None


def merge_hits(parts: Iterable[ShardHits], k: int) -> tuple[ScoredDocument, ...]:
    """Return the ``k`` best of several shards; equal scores by the order of all documents."""
    ranked = heapq.merge(
        *(
            [
                (-found.score, order, found)
                for found, order in zip(h.documents, h.orders, strict=True)
            ]
            for h in parts
        ),
        key=lambda hit: hit[:2],
    )
    return tuple(found for _, _, found in itertools.islice(ranked, max(0, k)))


_SHARD = "rag_accel.engines.ray.shards.hosted_shard:HostedShard"
_MAX_BATCH = 128
_LATENCY = LatencyModel(base_s=0.002, per_item_s=0.0005)
#: How often a search is sent again because shards have different versions.
_TRIES = 5


class RayShards(ReplicasEngine[ShardedJob, ShardPart, "ReplicaReport | ChangeEnd"]):
    """An engine for SEARCHING and INGESTION on an index whose shards lie in actors, one in each.

    A search asks every shard and merges what they find. Ids, order, scores and ties are those of
    one flat index with the same documents, filters and a ``k`` beyond a shard's size included.

    All shards take an ingestion or none, and each answer is of one version of all of them: see
    ``hosted_shard.py``. The folder's files are the state; an actor that dies reads them again,
    and searches in flight there are sent again. Each ingestion writes the shards it changes as a
    whole, and for its time they are in memory twice: ingest in large batches. Of several engines
    that change a folder at the same time one does, and the others raise ``ShardsChangedError``.

    Final values: ``tuple[ScoredDocument, ...]`` of a search; of an ingestion the ids of its
    documents.

    Args:
        folder: that ``write_shards`` has filled; every node sees it under this name.
        options: the resources and bounds of each shard's actor. To have a shard on a node of its
            own, give each node a resource and let an actor need most of it.
        cluster: hosts the actors; by default the one that this process is connected to.
        clock: is that of ``EngineRequest.deadline``.

    Raises:
        ConfigError: no shards, replicas of them, no cluster, or one without room.
        EngineError: an actor has not read its shard in time.
        IndexFileError: a file is damaged.
        ImportError: Ray or FAISS is missing.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        options: RayOptions | None = None,
        *,
        cluster: Cluster | None = None,
        clock: Clock | None = None,
    ) -> None:
        options = options or RayOptions()
        name = f"RayShards({str(folder)!r})"
        if options.most_replicas > 1:
            raise ConfigError(
                "each shard has one actor",
                where="RayOptions.replicas",
                found=options.most_replicas,
                valid="1",
                hint="write more shards, or host a `retrieval` engine in a RayEngine",
            )
        super().__init__(name, _profile(), options, clock)
        self._folder = Path(folder).resolve()
        manifest = read_manifest(self._folder)
        self._dimension = manifest.dimension
        self._version = manifest.version
        self._stale: list[ShardedJob] = []
        self._changes = ThreadPoolExecutor(1, "ray-shards")
        self._ingestion = ShardIngestion(self._folder, self._ask)
        self._looking: Future[Any] | None = None
        cluster = cluster or RayCluster()
        number = len(manifest.shards)
        if options.require_resources:
            check_room(cluster.nodes(), options, number, name)
        try:
            for place in range(number):
                arguments = {"folder": str(self._folder), "place": place}
                spec = EngineSpec.of(_SHARD, arguments, name)
                self._host(f"shard {place}", partial(cluster.host, spec, options))
            self._wait_for_replicas()
        except BaseException:
            self.close()
            raise

    @property
    def version(self) -> int:
        """Return the version that new searches answer from; from any thread."""
        return self._version

    def health(self) -> Health:
        """Return the health of the shards, all of which are needed."""
        return self._health((shard.health() for shard in self._replicas), of_all=worst_state)

    def describe_parts(self) -> Sequence[str]:
        return [f"{shard.name}: {shard.state}" for shard in self._replicas]

    def _end_parts(self) -> None:
        """Drop searches, end a change under way as it stands, and end the actors."""
        self._stale.clear()
        super()._end_parts()
        self._changes.shutdown(cancel_futures=True)

    def _job(self, request: EngineRequest) -> ShardedJob:
        if request.kind is PrimitiveKind.INGESTION:
            batch = self._checked_payload(request, IngestBatch, self._jobs)
            return ShardedJob(request, batch=self._checked_batch(batch))
        self._checked_payload(request, SearchQuery, self._jobs)
        return ShardedJob(request, query=checked_search(request, self._dimension).query)

    def _checked_batch(self, batch: IngestBatch) -> IngestBatch:
        documents = tuple(checked_documents(batch.documents))
        vectors = checked_vectors(
            batch.vectors,
            self._dimension,
            lambda row: f"vector of document {documents[row].id!r}",
            len(documents),
        )
        return IngestBatch(documents, vectors)

    def _start(self, jobs: Sequence[ShardedJob]) -> None:
        for job in jobs:
            if job.batch is not None:
                job.task = self._changes.submit(self._change, job)
            else:
                self._scatter(job)
        self._send_waiting()

    def _abort(self, jobs: Sequence[ShardedJob]) -> None:
        """Forget searches; an ingestion that has begun goes on."""
        for job in jobs:
            if job.task is not None:
                job.task.cancel()
            for place, shard in enumerate(self._replicas):
                shard.cancel([part for part in job.parts if part.place == place])
        self._waiting = [part for part in self._waiting if part.whole not in jobs]
        self._stale = [job for job in self._stale if job not in jobs]

    def _scatter(self, job: ShardedJob) -> None:
        """Ask every shard in the present version."""
        assert job.query is not None, "only searches are scattered"
        job.version = self._version
        job.hits = {}
        search = ShardSearch(job.version, job.query)
        job.parts = [
            self._part(place, search, job.request, whole=job)
            for place in range(len(self._replicas))
        ]
        self._waiting += job.parts

    def _part(
        self,
        place: int,
        payload: Any,
        request: EngineRequest | None = None,
        *,
        whole: ShardedJob | None = None,
        answer: Future[Any] | None = None,
    ) -> ShardPart:
        kind = PrimitiveKind.INGESTION if request is None else request.kind
        sent = EngineRequest(
            WorkId(f"part-{place}"),
            "" if request is None else request.request_id,
            kind,
            payload,
            arrived_at=self._clock.now() if request is None else request.arrived_at,
            deadline=None if request is None else request.deadline,
        )
        return ShardPart(sent, work=self._work(sent), place=place, whole=whole, answer=answer)

    def _send_waiting(self) -> None:
        """Send parts to their shards; those of a shard that starts again wait for it."""
        waiting, self._waiting = self._waiting, []
        by_place: dict[int, list[ShardPart]] = {}
        for part in waiting:
            by_place.setdefault(part.place, []).append(part)
        for place, parts in by_place.items():
            shard = self._replicas[place]
            if shard.send(parts):
                continue
            if shard.state in ("lost", "closed"):
                self._fail([part.whole for part in parts if part.whole], _gone(shard))
            else:
                self._waiting += parts

    def _fail(self, jobs: Sequence[ShardedJob], error: BaseException) -> None:
        """Let jobs end in this step or the next, each in an error of its own."""
        self._abort([job for job in jobs if self._jobs.get(job.request.id) is job])
        super()._fail(jobs, error)

    def _tell(self, report: ReplicaReport) -> None:
        """Settle the calls of an ingestion here, and pass the rest on; on a shard's thread."""
        ends = [(part, output.value, output.error) for part, output in report.outputs]
        for part, value, error in [*ends, *((part, None, report.error) for part in report.lost)]:
            answer = getattr(part, "answer", None)
            if answer is not None and error is not None:
                answer.set_exception(error)
            elif answer is not None:
                answer.set_result(value)
        self._outbox.put([report])

    def _outputs_of(self, report: ReplicaReport | ChangeEnd) -> Iterable[EngineOutput]:
        outputs: list[EngineOutput] = []
        if isinstance(report, ChangeEnd):
            outputs += self._end_change(report)
        else:
            for part, output in report.outputs:
                if isinstance(part, ShardPart) and part.whole is not None:
                    outputs += self._gather(part.whole, part, output)
            for part in report.lost:
                if isinstance(part, ShardPart) and part.whole is not None:
                    self._send_again(part, part.whole, report)
        self._send_waiting()
        return outputs

    def _gather(self, job: ShardedJob, part: ShardPart, output: EngineOutput) -> list[EngineOutput]:
        """Take a shard's answer; return the whole one when it was the last."""
        if self._jobs.get(job.request.id) is not job or part not in job.parts:
            return []
        if output.error is not None:
            self._fail([job], output.error)
            return []
        if isinstance(output.value, OtherVersion):
            self._retry(job)
            return []
        job.hits[part.place] = output.value
        if len(job.hits) < len(self._replicas):
            return []
        del self._jobs[job.request.id]
        assert job.query is not None, "only searches have hits"
        return [EngineOutput(job.request.id, "final", merge_hits(job.hits.values(), job.query.k))]

    def _retry(self, job: ShardedJob) -> None:
        """Ask all shards again, in a version that each has."""
        self._abort([job])
        job.parts = []
        job.tries += 1
        if job.tries > _TRIES:
            error = EngineError(
                "the shards of an index have different versions",
                where=self._where,
                found=f"another one than {job.version} in {job.tries} tries",
                valid="one version in all shards",
                hint="other programs change the folder faster than these shards can read it",
            )
            self._fail([job], error)
        elif job.version != self._version:
            self._scatter(job)
        else:
            self._stale.append(job)
            if self._looking is None:  # behind a change under way, if there is one
                self._looking = self._changes.submit(self._change)

    def _send_again(self, part: ShardPart, job: ShardedJob, report: ReplicaReport) -> None:
        if self._jobs.get(job.request.id) is not job or part not in job.parts:
            return
        if part.resends >= self._options.resends:
            assert report.error is not None, "a report of lost work says why"
            self._fail([job], report.error)
            return
        fresh = self._part(part.place, part.request.payload, job.request, whole=job)
        fresh.resends = part.resends + 1
        job.parts[job.parts.index(part)] = fresh
        self._waiting.append(fresh)

    def _end_change(self, end: ChangeEnd) -> list[EngineOutput]:
        job = end.job
        if job is None:
            self._looking = None
            stale, self._stale = self._stale, []
            if end.error is not None:
                self._fail(stale, end.error)
                return []
            for search in stale:
                self._scatter(search)
            return []
        if self._jobs.get(job.request.id) is not job:
            return []
        del self._jobs[job.request.id]
        if end.error is not None:
            return [EngineOutput(job.request.id, "error", error=end.error)]
        assert job.batch is not None, "only ingestions end here"
        ids = tuple(document.id for document in job.batch.documents)
        return [EngineOutput(job.request.id, "final", ids)]

    def _change(self, job: ShardedJob | None = None) -> None:
        """Ingest the batch of a job, or look for the shards' version; on the thread of changes."""
        batch, failure = None if job is None else job.batch, None
        try:
            if batch is None:
                self._version = self._ingestion.refresh()
            else:
                self._version = self._ingestion.ingest(batch.documents, batch.vectors)
        except Exception as error:
            failure = error
            with contextlib.suppress(Exception):  # the next search or change tells of it
                self._version = self._version if batch is None else self._ingestion.refresh()
        self._outbox.put([ChangeEnd(job, failure)])

    def _ask(self, place: int, payload: Any) -> Future[Any]:
        """Send a call of an ingestion to a shard, on the thread of changes."""
        answer: Future[Any] = Future()
        shard = self._replicas[place]
        if not shard.send([self._part(place, payload, answer=answer)]):
            answer.set_exception(_gone(shard))
        return answer


def _gone(shard: Replica) -> EngineLostError:
    return EngineLostError(
        "a shard of an index takes no work",
        where=shard.name,
        found=shard.health().why or shard.state,
        hint="try again when Ray has started its actor again",
    )


def _profile() -> EngineProfile:
    return EngineProfile(
        kinds=frozenset({PrimitiveKind.SEARCHING, PrimitiveKind.INGESTION}),
        max_batch=_MAX_BATCH,
        latency=_LATENCY,
        max_threads=0,
        stepped=True,
        interruptible=True,
        pure=True,
        capabilities=frozenset({Capability.BOUNDS_ITS_WORK}),
    )
