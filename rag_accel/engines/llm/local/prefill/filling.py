"""The filling of a folder with states of texts ahead of any prompt (FusionRAG section 3.1).

Texts are encoded as an engine encodes those of a prompt, so that a later prompt with the same
model, head and namespace finds them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from rag_accel.engine_api import EngineRequest, Message, PrimitiveKind, StepBudget, WorkId
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.model.families import ModelShape
from rag_accel.engines.llm.local.model.loading import LoadedModel, load
from rag_accel.engines.llm.local.options import DISK_BYTES, POOL_BYTES, LocalOptions
from rag_accel.engines.llm.local.prefill.fill_plan import (
    FillTask,
    FillText,
    corpus_of,
    tasks_behind,
)
from rag_accel.engines.llm.local.prefill.fill_prompt import FillPrompt, prompt_of
from rag_accel.engines.llm.local.reuse.chunk_store import disk_store
from rag_accel.engines.llm.local.text.prompting import Prompting
from rag_accel.engines.option_checks import check_least
from rag_accel.errors import ConfigError, EngineError
from rag_accel.kv.folder import ChunkFolder
from rag_accel.kv.neighbours import NeighbourOrder, check_neighbours
from rag_accel.kv.segments import SegmentedPrompt
from rag_accel.kv.write_through import WriteThroughStore
from rag_accel.system.processor import usable_cores

#: Texts that are encoded together, if no number is given.
FILL_BATCH = 16
#: The most tokens of a text's neighbours together, if no number is given.
NEIGHBOUR_TOKENS = 2048
#: Rows of a forward: nothing else waits for it.
_STEP_TOKENS = 2048
_STALL_S = 60.0
#: The most bytes of a file besides keys and values, most of them digests of neighbours.
_HEADER_BYTES = 4096
_WHERE = "filling of a folder"

#: Returns vectors ``[texts, dim]``, float32, of texts.
Embed = Callable[[Sequence[str]], Any]
#: Is told how many texts are done, and of how many.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class FillOptions:
    """Options of the filling of a folder.

    Args:
        neighbours: most texts of the corpus that each is encoded behind; 0 for the head alone.
        neighbour_order: ``nearest_last`` puts the most similar directly before the text;
            ``nearest_first`` is the paper's order.
        neighbour_tokens: most tokens of a text's neighbours together.
        namespace: of the programs that are to find the states.
        batch: texts that are encoded together; a fill that is killed loses at most these.
        pool_bytes: most bytes of keys and values while they are computed, and as many of those
            that were written last.
        disk_bytes: most bytes of the folder's files; other files in it go first.
        least_chunk_tokens: shorter texts are left out, as no program looks for them.

    Raises ConfigError on a value out of range.
    """

    neighbours: int = 0
    neighbour_order: NeighbourOrder = "nearest_last"
    neighbour_tokens: int = NEIGHBOUR_TOKENS
    namespace: str = ""
    batch: int = FILL_BATCH
    pool_bytes: int = POOL_BYTES
    disk_bytes: int = DISK_BYTES
    least_chunk_tokens: int = 8

    def __post_init__(self) -> None:
        check_neighbours(self.neighbours, self.neighbour_order)
        check_least("neighbour_tokens", self.neighbour_tokens, 0)
        check_least("batch", self.batch, 1)
        check_least("pool_bytes", self.pool_bytes, 1)
        check_least("disk_bytes", self.disk_bytes, 1)
        check_least("least_chunk_tokens", self.least_chunk_tokens, 1)


DEFAULT_OPTIONS = FillOptions()


@dataclass(frozen=True, slots=True)
class FillReport:
    """The counts of a fill.

    Args:
        head: what texts stand behind, as text.
        texts: how many were given.
        left_out: of those, texts that no program would look for: empty, short, or there twice.
        encoded: states that were computed behind the head alone.
        preprocessed: states that were computed behind neighbours, too.
        found: states that were in the folder already.
        tokens: of the states that were computed.
        nbytes: of their keys and values.
        seconds: of computing and writing.
    """

    head: str
    texts: int
    left_out: int
    encoded: int
    preprocessed: int
    found: int
    tokens: int
    nbytes: int
    seconds: float


def fill_folder(
    folder: str | Path,
    model: Any,
    texts: Sequence[str],
    *,
    prompt: Sequence[Message] | None = None,
    options: FillOptions = DEFAULT_OPTIONS,
    tokenizer: Any = None,
    dtype: str | None = None,
    template: str | None = None,
    embed: Embed | None = None,
    progress: Progress | None = None,
) -> FillReport:
    """Keep the states of texts in a folder, for programs that name it as ``kv_folder``.

    They must run the same model in the same dtype, with the same template, namespace and system's
    message; those that are to use neighbours name ``kv_recipe="neighbours"``. A state that is there
    is not computed again. Where a text's neighbours have become others, its new state is preferred
    from then on; the earlier one stays, for what it was, until the folder gives it up.

    Args:
        folder: made with mode 0700 where it is missing.
        model: a folder, a name on the hub, or a causal language model of transformers.
        texts: as they will stand in prompts.
        prompt: messages with ``{context}`` where the texts stand; by default one of a user's.
        options: how it is filled.
        tokenizer: the tokenizer of a model object.
        dtype: ``float32`` or ``bfloat16``; None for that of the checkpoint.
        template: a chat template in place of the tokenizer's.
        embed: vectors of texts, by which neighbours are chosen; needed if there are to be any.
        progress: is told after each batch how many of the states are done.

    Raises:
        ConfigError: there are no texts, a text has no room, or the model, the folder, the prompt or
            an option cannot be used.
        EngineError: a state could not be computed or written; those before it are kept.
    """
    given = [texts] if isinstance(texts, str) else list(texts)
    if not given:
        raise ConfigError("there are no texts", where=_WHERE, valid="at least one")
    if options.neighbours and embed is None:
        raise ConfigError("neighbours need vectors", where="embed", valid="a function of texts")
    ChunkFolder(Path(folder).expanduser())  # before a model is loaded for it
    reusing = LocalOptions(kv_reuse="full", pool_bytes=options.pool_bytes)
    loaded = load(model, tokenizer, dtype=dtype, options=reusing)
    prompting = Prompting(loaded.tokenizer, template=template)
    around = FillPrompt(prompting, prompt or prompt_of(), options.least_chunk_tokens)
    fill = _Fill(Path(folder), loaded, options, template, progress)
    try:
        return fill.run(given, [around.around(text) for text in given], embed)
    finally:
        fill.close()


class _Fill:
    """One filling of a folder, with the engine that computes for it."""

    def __init__(
        self,
        folder: Path,
        loaded: LoadedModel,
        options: FillOptions,
        template: str | None,
        progress: Progress | None,
    ) -> None:
        self._loaded = loaded
        self._options = options
        self._progress = progress or (lambda done, total: None)
        bounds = LocalOptions(
            kv_reuse="full",
            step_tokens=_STEP_TOKENS,
            stall_s=_STALL_S,
            kv_disk_bytes=options.disk_bytes,
        )
        self._disk, self._identity = disk_store(loaded.runner, bounds, folder)
        self._store = WriteThroughStore(options.pool_bytes, self._disk)
        self._engine = LocalLLMEngine(
            loaded.runner,
            loaded.tokenizer,
            eos=loaded.ends,
            template=template,
            options=bounds,
            kept=(self._store, self._identity),
        )
        self._done = self._total = self._tokens = 0
        self._seconds = 0.0

    def close(self) -> None:
        self._engine.close()

    def run(
        self, texts: Sequence[str], prompts: Sequence[SegmentedPrompt | None], embed: Embed | None
    ) -> FillReport:
        """Keep the states of texts; of equal ones the first counts."""
        corpus = corpus_of(prompts, self._identity, self._options.namespace, self._fits)
        alone = [FillTask(text, text.key) for text in corpus]
        behind = self._behind(corpus, embed)
        missing = self._missing([*alone, *behind])
        self._total = len(missing)
        self._progress(0, self._total)
        computed = [task for task in alone if task.key in missing]
        self._encode(computed)
        self._link([task for task in behind if task.key not in missing])
        self._encode([task for task in behind if task.key in missing])
        head = corpus[0].prompt.head if corpus else ()
        return FillReport(
            head=self._loaded.tokenizer.decode(head),
            texts=len(texts),
            left_out=len(texts) - len(corpus),
            encoded=len(computed),
            preprocessed=len(missing) - len(computed),
            found=len(alone) + len(behind) - len(missing),
            tokens=self._tokens,
            nbytes=self._store.written_bytes,
            seconds=self._seconds,
        )

    def _fits(self, tokens: int) -> bool:
        runner = self._loaded.runner
        return tokens < runner.context and runner.pool.fits(tokens)

    def _behind(self, corpus: Sequence[FillText], embed: Embed | None) -> list[FillTask]:
        if not self._options.neighbours or not corpus:
            return []
        assert embed is not None
        return tasks_behind(
            corpus,
            embed([text.segment.text for text in corpus]),
            self._options.neighbours,
            most_tokens=self._options.neighbour_tokens,
            order=self._options.neighbour_order,
            fits=self._fits,
        )

    def _missing(self, tasks: Sequence[FillTask]) -> set[bytes]:
        """Return the keys that are not in the folder, if all together have room there."""
        sizes = {task.key: self._disk.kept_bytes(task.key) for task in tasks}
        missing = [task for task in tasks if not sizes[task.key]]
        needed = sum(sizes.values())
        needed += sum(self._bytes(len(task.text.segment.ids)) for task in missing)
        if needed > self._options.disk_bytes:
            raise ConfigError(
                "the states have no room in the folder",
                where="disk_bytes",
                found=self._options.disk_bytes,
                valid=f"at least {needed}, and as much where programs name the folder",
            )
        return {task.key for task in missing}

    def _bytes(self, tokens: int) -> int:
        shape = ModelShape.of(self._loaded.config)
        size = self._loaded.runner.pool.dtype.itemsize
        return 2 * shape.layers * shape.heads * shape.dim * tokens * size + _HEADER_BYTES

    def _encode(self, tasks: Sequence[FillTask]) -> None:
        left = iter(tasks)
        while batch := list(islice(left, self._options.batch)):
            started = time.perf_counter()
            self._run(batch)
            self._link(batch)
            self._seconds += time.perf_counter() - started
            self._tokens += sum(len(task.text.segment.ids) for task in batch)
            self._done += len(batch)
            self._progress(self._done, self._total)

    def _run(self, batch: Sequence[FillTask]) -> None:
        dropped = self._disk.counts.dropped
        self._engine.submit([self._request(at, task) for at, task in enumerate(batch)])
        left = len(batch)
        while left:
            for output in self._engine.step(StepBudget(threads=usable_cores())):
                if output.error is not None:
                    raise output.error
                left -= 1
        if self._disk.counts.dropped > dropped:
            raise EngineError(
                "the state of a text could not be written",
                where=str(self._disk.folder.path),
                found=f"{self._disk.counts.dropped - dropped} of {len(batch)}",
                hint="look whether the disk is full; what was written is not computed again",
            )

    def _link(self, tasks: Iterable[FillTask]) -> None:
        """Let programs find the states of texts behind their neighbours."""
        for task in tasks:
            if task.neighbours:
                self._disk.link(task.text.others_key, task.key)

    def _request(self, at: int, task: FillTask) -> EngineRequest:
        request = EngineRequest(
            WorkId(f"fill-{self._done + at}"), "fill", PrimitiveKind.DECODING, task.payload
        )
        return replace(request, namespace=self._options.namespace)
