"""vLLM's engine for this process, as an owned engine.

The engine keeps an asyncio loop in a thread of its own, and vLLM keeps the model in processes of
its own; methods here only hand work over to that loop and collect what came back.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag_accel.engine_api import (
    KINDS,
    Capability,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    GenerationInput,
    GenerationOutput,
    Handle,
    Health,
    PrimitiveKind,
    TokenLogprob,
    WorkId,
)
from rag_accel.engines.bases import OutboxEngine
from rag_accel.engines.http.loop_thread import LoopThread
from rag_accel.engines.llm.local.text.prompting import Prompting
from rag_accel.engines.llm.local.text.sampling import own_sampling
from rag_accel.engines.llm.local.text.stopping import end_tokens
from rag_accel.engines.llm.local.text.tokens import TokenOutput
from rag_accel.engines.llm.vllm.calls import CallReader, VllmCall
from rag_accel.engines.llm.vllm.client import VllmClient, VllmResult
from rag_accel.engines.llm.vllm.library import WHERE, VllmLibrary, load_library
from rag_accel.engines.llm.vllm.options import VllmOptions
from rag_accel.errors import ConfigError, EngineError, EngineLostError
from rag_accel.kv.folder import ChunkFolder
from rag_accel.kv.locate import parts_of

_LEAST_HANDED = 64
_KINDS = frozenset(kind for kind, spec in KINDS.items() if spec.prefills) | {PrimitiveKind.DECODING}


@dataclass(slots=True, eq=False)
class _VllmJob:
    """One submitted request while it is in flight. Equal only to itself."""

    id: WorkId
    namespace: str
    #: None where there is nothing to compute
    call: VllmCall | None
    #: places of the prompt that were computed ahead for it
    early: range = range(0)
    task: asyncio.Task[None] | None = None


@dataclass(frozen=True, slots=True)
class _CallReport:
    job: _VllmJob
    text: str = ""
    result: VllmResult | None = None
    error: BaseException | None = None
    is_end: bool = True


@dataclass(slots=True)
class _PrefilledBeginning:
    """A prompt's beginning that vLLM has computed; its blocks stay as long as vLLM has room."""

    namespace: str
    early: range


class VllmEngine(OutboxEngine[_VllmJob, _CallReport]):
    """An engine for DECODING and PREFILLING on a model that vLLM runs.

    Prompts are cut and ended as by ``LocalLLMEngine``, and given to vLLM as tokens. A PREFILLING
    kind has a prompt computed, and ends with a handle that pins nothing: vLLM finds the beginning
    in its own cache or computes it again. Where texts are reused it computes the prompt's head.

    Final value: ``GenerationOutput``, with ``use``, and for a ``TokenInput`` a ``TokenOutput``;
    where ``stream`` is set, text comes as ``partial`` first. Cancelled work leaves vLLM at once.
    Work is due by deadline, arrival and depth, and vLLM takes what is due first.

    Args:
        model: a folder, or a name on the hub.
        dtype: ``float32`` or ``bfloat16``, or another one of vLLM's; None for the checkpoint's.
        template: a chat template in place of the tokenizer's.
        options: bounds.
        library: vLLM's classes; those of the installed package by default.

    Raises:
        ConfigError: the model, an option or the installed vLLM is refused.
        ImportError: vLLM is missing; says what to install.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        dtype: str | None = None,
        template: str | None = None,
        options: VllmOptions | None = None,
        library: VllmLibrary | None = None,
    ) -> None:
        self._options = options or VllmOptions()
        self._name = str(model)
        super().__init__(_profile(self._options), f"{WHERE}, {self._name}")
        library = library or load_library()
        tokenizer, ends, sampling = _settings(self._name)
        self._tokenizer = tokenizer
        self._client = VllmClient(library, self._name, dtype, self._options)
        self._thread = LoopThread("vllm-engine")
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)
        self._prefilled: dict[Handle, _PrefilledBeginning] = {}
        prompting = Prompting(tokenizer, template=template)
        try:
            self._thread.start()
            self._thread.call(self._client.start()).result()
        except BaseException:
            self.close()
            raise
        self._reader = CallReader(prompting, ends, self._client.context, self._options, sampling)

    def __repr__(self) -> str:
        return f"VllmEngine({self._name!r})"

    def health(self) -> Health:
        """Return whether vLLM's processes run; from any thread."""
        if self._client.is_lost:
            return Health(self._name, "lost", "vLLM's engine has ended")
        return Health(self._name)

    def release(self, handles: Sequence[Handle]) -> None:
        for handle in handles:
            self._prefilled.pop(handle, None)

    def forget(self, documents: Sequence[str], namespace: str = "") -> None:
        """Remove the states of texts of a namespace from the folder; from any thread.

        vLLM's processes drop those in memory before they use the folder again.

        Raises:
            OSError: the folder cannot be written.
        """
        if self._options.kv_folder is None or not self._options.reuses_texts:
            return
        folder = ChunkFolder(Path(self._options.kv_folder).expanduser())
        tenant = folder.namespace_digest(namespace)
        texts = {folder.text_digest(part) for text in documents for part in parts_of(text)}
        folder.purge(
            lambda header: header.tag.namespace == tenant and not texts.isdisjoint(header.tag.texts)
        )

    def close(self) -> None:
        """Drop requests in flight and end vLLM's processes and the thread; idempotent."""
        if not self._closed:
            self._closed = True
            self._jobs.clear()
            self._prefilled.clear()
            self._thread.close()  # cancels what runs there
            self._client.shut_down()

    def _job(self, request: EngineRequest) -> _VllmJob:
        payload = self._checked_payload(request, GenerationInput, self._jobs)
        early = range(0)
        if request.handle is not None:
            beginning = self._prefilled.get(request.handle)
            if beginning is None or beginning.namespace != request.namespace:
                valid = "a handle of this namespace, not yet released"
                raise self._refusal("unknown handle", request.handle, valid)
            early, beginning.early = beginning.early, range(0)
        return _VllmJob(request.id, request.namespace, self._reader.read(request, payload), early)

    def _start(self, jobs: Sequence[_VllmJob]) -> None:
        self._thread.post(self._launch, jobs)

    def _launch(self, jobs: Sequence[_VllmJob]) -> None:
        for job in jobs:
            job.task = asyncio.ensure_future(self._run(job))
            self._tasks.add(job.task)
            job.task.add_done_callback(self._tasks.discard)

    def _abort(self, jobs: Sequence[_VllmJob]) -> None:
        self._thread.post(_cancel, jobs)

    async def _run(self, job: _VllmJob) -> None:
        def emit(text: str) -> None:
            self._outbox.put([_CallReport(job, text, is_end=False)])

        result: VllmResult | None = None
        try:
            if job.call is not None:
                async with asyncio.timeout(self._options.work_timeout_s):
                    id = f"rag-accel-{next(self._numbers)}"
                    result = await self._client.run(job.call, id, emit)
        except TimeoutError:
            self._outbox.put([_CallReport(job, error=self._late())])
        except asyncio.CancelledError:
            # Cancelled work is forgotten already, and this report not seen; with the loop, it is.
            self._outbox.put([_CallReport(job, error=self._gone())])
            raise
        except Exception as error:
            self._outbox.put([_CallReport(job, error=self._client.describe(error))])
        else:
            self._outbox.put([_CallReport(job, result=result)])

    def _outputs_of(self, report: _CallReport) -> Sequence[EngineOutput]:
        job = report.job
        if self._jobs.get(job.id) is not job:
            return ()  # cancelled after it was reported
        if not report.is_end:
            return (EngineOutput(job.id, "partial", report.text),)
        del self._jobs[job.id]
        if report.error is not None:
            return (EngineOutput(job.id, "error", error=report.error),)
        call, result = job.call, report.result
        if call is None or result is None or call.only_prompt:
            handle = self._handle(job, result)
            return (EngineOutput(job.id, "final", handle=handle),)
        return (EngineOutput(job.id, "final", self._output(job, call, result)),)

    def _handle(self, job: _VllmJob, result: VllmResult | None) -> Handle:
        early = range(0)
        if job.call is not None and result is not None:
            early = range(result.cached, len(job.call.ids))
        handle = Handle(f"prefill-{next(self._numbers)}")
        self._prefilled[handle] = _PrefilledBeginning(job.namespace, early)
        return handle

    def _output(self, job: _VllmJob, call: VllmCall, result: VllmResult) -> GenerationOutput:
        use = call.use(result.cached, result.params, job.early)
        counts: dict[str, Any] = {
            "prompt_tokens": len(call.ids),
            "completion_tokens": len(result.tokens),
            "finish_reason": result.finish_reason,
            "use": use,
        }
        if call.is_tokens:
            return TokenOutput(**counts, tokens=result.tokens)
        logprobs: tuple[TokenLogprob, ...] = ()
        if call.wants_logprobs:
            pairs = zip(result.tokens, result.logprobs, strict=True)
            logprobs = tuple(
                TokenLogprob(self._tokenizer.decode([token]), logprob) for token, logprob in pairs
            )
        return GenerationOutput(result.text, **counts, logprobs=logprobs)

    def _late(self) -> EngineError:
        return EngineError(
            "vLLM has not ended a request in time",
            where=self._where,
            valid=f"within work_timeout_s={self._options.work_timeout_s:g} seconds",
            hint="give it more time, or the engine fewer requests",
        )

    def _gone(self) -> EngineError:
        return EngineLostError("the engine was closed while it worked", where=self._where)


def _cancel(jobs: Sequence[_VllmJob]) -> None:
    for job in jobs:
        if job.task is not None:
            job.task.cancel()


def _settings(model: str) -> tuple[Any, frozenset[int], Mapping[str, Any]]:
    """Return a model's tokenizer, the tokens that end a completion, and its own sampling options.

    Raises:
        ConfigError: it has no tokenizer or configuration.
    """
    try:
        transformers = importlib.import_module("transformers")
        tokenizer = transformers.AutoTokenizer.from_pretrained(model, trust_remote_code=False)
        config = transformers.AutoConfig.from_pretrained(model, trust_remote_code=False)
        try:
            generation = transformers.GenerationConfig.from_pretrained(model)
        except OSError:  # there is no such file
            generation = transformers.GenerationConfig.from_model_config(config)
    except (OSError, ValueError) as error:
        raise ConfigError(
            "the model's tokenizer or configuration cannot be read",
            where=f"{WHERE}, {model}",
            found=f"{type(error).__name__}: {error}",
            valid="a folder, or a name on the hub, of a causal language model",
        ) from error
    ends = end_tokens(generation) or end_tokens(tokenizer, config)
    return tokenizer, ends, own_sampling(generation)


def _profile(options: VllmOptions) -> EngineProfile:
    return EngineProfile(
        kinds=_KINDS,
        # More than vLLM computes at a time: of those that wait it takes what is due first.
        max_batch=max(_LEAST_HANDED, 4 * options.max_requests),
        max_threads=0,
        stepped=True,
        interruptible=True,
        capabilities=frozenset({Capability.STREAM, Capability.BOUNDS_ITS_WORK}),
    )
