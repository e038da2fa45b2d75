"""Calls of components that hold a local language model, each as work of the model's engine."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar, cast

from rag_accel.accelerator import Accelerator, RequestIdentity, Work, default_accelerator
from rag_accel.accelerator.preparation import EngineAt
from rag_accel.engine_api import GenerationInput, GenerationOutput, Message, PrimitiveKind
from rag_accel.engines.llm.local.local_llm import LocalLLM
from rag_accel.engines.llm.local.text.tools import AnswerPieces, check_tools, read_calls
from rag_accel.engines.llm.named import NamedLLM, RunnableLLM
from rag_accel.engines.llm.remote.early_prompts import have_refused
from rag_accel.engines.llm.remote.remote_llm import RemoteLLM, RemoteModel
from rag_accel.engines.llm.vllm.vllm_llm import VllmLLM
from rag_accel.errors import ConfigError
from rag_accel.interception.identity import identity_for
from rag_accel.interception.leaf_call import note_leaf
from rag_accel.kv.prompt_chunks import locate_chunks
from rag_accel.leaves.early_answers import AskedPrompt
from rag_accel.leaves.early_beginnings import NotedPrompt
from rag_accel.leaves.submitted_work import SubmittedWork
from rag_accel.scheduler.messages import EngineName

#: calls handed over before the first of them is waited for
MOST_AHEAD = 64


def component_llm(given: Any, tokenizer: Any, **named: Any) -> NamedLLM:
    """Return a component's model: its own arguments over those of a given one.

    Args:
        given: a ``LocalLLM``, ``RemoteLLM`` or ``VllmLLM``, or the model of a ``LocalLLM``.
        tokenizer: of a model object.
        named: bounds by name; None for those that are not named.

    Raises:
        ConfigError: an unknown bound, or a value out of range.
    """
    if not isinstance(given, VllmLLM | RemoteLLM):
        return LocalLLM.of(given, tokenizer, **named)
    if tokenizer is not None:
        raise ConfigError(
            "servers and vLLM load the tokenizer of their model",
            where="tokenizer",
            found=type(tokenizer).__name__,
            valid="a component without it",
        )
    return given.with_named(**named)


@dataclass(frozen=True, slots=True)
class LocalCalls:
    """The calls of one component.

    Args:
        llm: its model; components that come to the same on an accelerator share an engine.
        holder: the component; the engine lives as long as one that has called it.
        accelerator: schedules the work; None for the current run's, or the process default.
    """

    llm: NamedLLM
    holder: Any
    accelerator: Accelerator | None

    @property
    def model(self) -> RunnableLLM:
        """Return what a call here is run with."""
        identity = identity_for(self.accelerator)
        accelerator = self.accelerator if identity is None else identity.accelerator
        return (accelerator or default_accelerator()).local_llms.model(self.llm)

    @property
    def takes_tools(self) -> bool:
        """Tell whether the model's prompts can offer tools; its weights are not loaded."""
        return isinstance(self.llm, LocalLLM) and self.llm.takes_tools

    def check_tools(self, request: GenerationInput, choice: Any = None) -> None:
        """Check a call's tools and the turns that call them.

        Args:
            request: the call.
            choice: which of the tools is to be called, as OpenAI names it.

        Raises:
            ConfigError: the model takes none, or not these; none can be forced.
        """
        where = type(self.holder).__name__
        if choice not in (None, "auto"):
            raise ConfigError(
                "a local model chooses for itself whether it calls a tool",
                where=f"{where}, tool_choice",
                found=repr(choice),
                valid="None | 'auto'",
                hint="offer the tool that you want alone, and ask for its call in the prompt",
            )
        if request.has_tools and not self.takes_tools:
            raise ConfigError(
                "the model's prompts take no tools",
                where=where,
                found="tools" if request.tools else "a tool message, or one with tool calls",
                valid="a LocalLLM whose chat template renders tools, such as Qwen's or Llama 3's",
                hint="give chat_template=, or have a server's own client call them: ChatOpenAI",
            )
        check_tools(request, where)

    def describe(self, accelerator: Accelerator) -> str:
        """Return which engine runs the calls on an accelerator."""
        local = accelerator.local_llms.model(self.llm)
        made = accelerator.engine_of(local)
        engine = made or "of its own, made with its first call"
        shared = "all that name this model and these bounds share its steps"
        kv_reuse = f"kv_reuse is {local.bounds.kv_reuse}"
        told = [f"engine {engine}", *local.describe_parts(), kv_reuse, shared]
        if made is not None and accelerator.begins_prompts(made):
            told.append("prompts are begun while a program searches, from its third run on")
        return "; ".join(told)

    def prepared_engine(self, accelerator: Accelerator) -> EngineAt | None:
        """Return the model's engine on an accelerator, loaded; None where servers run it."""
        if isinstance(self.llm, RemoteLLM):
            return None
        return accelerator, self._engine(accelerator)

    def _engine(self, accelerator: Accelerator) -> EngineName:
        local = accelerator.local_llms.model(self.llm)
        make = partial(local.make, accelerator.options)
        return accelerator.own(local, "llm", make, holder=self.holder)

    def generate(self, request: GenerationInput) -> GenerationOutput:
        identity = self._identity()
        work = self._work(identity, request)
        prompt = self._note_prompt(identity, work)
        found: GenerationOutput = identity.accelerator.leaves.compute(identity, work, prompt)
        return _take(prompt, read_calls(found) if request.tools else found)

    def submit(self, request: GenerationInput) -> SubmittedWork:
        """Submit a completion that is waited for later, as the only one."""
        identity = self._identity()
        return identity.accelerator.leaves.submit(identity, [self._work(identity, request)])

    async def agenerate(self, request: GenerationInput) -> GenerationOutput:
        """Do as ``generate`` without blocking the loop."""
        identity = self._identity()
        work = await self._awork(identity, request)
        prompt = self._note_prompt(identity, work)
        leaves = identity.accelerator.leaves
        found = cast("GenerationOutput", await leaves.acompute(identity, work, prompt))
        return _take(prompt, read_calls(found) if request.tools else found)

    def stream(self, request: GenerationInput) -> Iterator[str | GenerationOutput]:
        """Yield the text of a completion as it comes, and the completion last."""
        identity = self._identity()
        work = self._work(identity, request)
        prompt = self._note_prompt(identity, work, is_streamed=True)
        pieces = identity.accelerator.leaves.stream(identity, work)
        return _taken(_shown(request, prompt), pieces)

    async def astream(self, request: GenerationInput) -> AsyncIterator[str | GenerationOutput]:
        """Do as ``stream`` without blocking the loop."""
        identity = self._identity()
        work = await self._awork(identity, request)
        prompt = self._note_prompt(identity, work, is_streamed=True)
        pieces = identity.accelerator.leaves.astream(identity, work)
        return _ataken(_shown(request, prompt), pieces)

    def _note_prompt(
        self, identity: RequestIdentity, work: Work, *, is_streamed: bool = False
    ) -> NotedPrompt | None:
        """Record a program's prompt; None where none of the engine's is begun early.

        Records hold texts only, so that a prompt with tools would be begun as another.
        """
        call: GenerationInput = work.payload
        if call.has_tools:
            return None
        model = identity.accelerator.local_llms.model(self.llm)
        servers = model.servers if isinstance(model, RemoteModel) else ()
        may_be_early = not (is_streamed or call.chunk_spans) and self._is_settled(call)
        urls = tuple(server.base_url for server in servers)
        remake = partial(_remade, replace(call, messages=()), urls) if may_be_early else None
        asked = AskedPrompt(work.engine, call.messages, call, remake)
        return identity.accelerator.note_prompt(identity, asked)

    def _is_settled(self, call: GenerationInput) -> bool:
        """Tell whether a call's answer is no matter of chance."""
        temperature = call.options.get("temperature")
        if call.options.get("seed") is not None or temperature == 0:
            return True
        return temperature is None and isinstance(self.llm, LocalLLM)

    def _identity(self) -> RequestIdentity:
        identity = identity_for(self.accelerator)
        note_leaf(self.holder, (), "owned", "generate")
        # There is no plain way to run such a model, so it is scheduled even if nothing else is.
        return identity or (self.accelerator or default_accelerator()).anonymous()

    def _work(self, identity: RequestIdentity, request: GenerationInput) -> Work:
        accelerator = identity.accelerator
        local, engine = accelerator.local_llms.model(self.llm), self._engine(accelerator)
        if local.reuses_texts:
            request = locate_chunks(
                request,
                identity.retrieved.texts(),
                identity.retrieved.asked,
                paths_first=local.reuses_paths,
            )
        return Work(engine, PrimitiveKind.DECODING, request)

    async def _awork(self, identity: RequestIdentity, request: GenerationInput) -> Work:
        """Do as ``_work``; where the model has to be loaded first, off the loop."""
        accelerator = identity.accelerator
        if accelerator.is_held(accelerator.local_llms.model(self.llm), self.holder):
            return self._work(identity, request)
        return await accelerator.calls.start(partial(self._work, identity, request))


T = TypeVar("T")


def _remade(
    call: GenerationInput, servers: tuple[str, ...], messages: tuple[Message, ...]
) -> GenerationInput | None:
    """Return a call of another prompt; None where its servers have no room for it."""
    return None if have_refused(servers) else replace(call, messages=messages)


def _take(prompt: NotedPrompt | None, found: T) -> T:
    """Return an answer, or a piece of one, which a program's later prompts may hold."""
    if prompt is not None and isinstance(found, GenerationOutput):
        prompt.take(found.text)
    return found


Piece = str | GenerationOutput
Shown = Callable[[Piece], Iterable[Piece]]


def _shown(request: GenerationInput, prompt: NotedPrompt | None) -> Shown:
    """Return what makes pieces for the caller of a piece of an answer."""
    return AnswerPieces().of if request.tools else lambda piece: (_take(prompt, piece),)


def _taken(shown: Shown, pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Yield pieces of an answer; closing this closes them."""
    try:
        yield from chain.from_iterable(map(shown, pieces))
    finally:
        if isinstance(pieces, Generator):
            pieces.close()


async def _ataken(shown: Shown, pieces: AsyncIterator[Piece]) -> AsyncIterator[Piece]:
    """Yield pieces of an answer; closing this closes them."""
    try:
        async for piece in pieces:
            for part in shown(piece):
                yield part
    finally:
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()


class CallsAhead:
    """Sequential calls whose work is submitted together and shares steps.

    Nothing is handed over before the first call is made; ``close`` must follow the last.

    Args:
        calls: of the component that makes them.
        requests: in order; one that no call is made for is cancelled with the next call.
    """

    def __init__(self, calls: LocalCalls, requests: Iterable[GenerationInput]) -> None:
        self.calls = calls
        self._coming = iter(requests)
        self._handed: deque[tuple[GenerationInput, SubmittedWork]] = deque()

    def generate(self, request: GenerationInput) -> GenerationOutput:
        """Return a completion, of the work handed over for it if there is any."""
        self._hand_over()
        while self._handed:
            ahead, work = self._handed.popleft()
            if ahead == request:
                try:
                    found = cast("GenerationOutput", work.value(0))
                    return read_calls(found) if request.tools else found
                finally:
                    work.cancel()
            work.cancel()
            self._hand_over()
        return self.calls.generate(request)

    def close(self) -> None:
        """Cancel what was not called."""
        self._coming = iter(())
        while self._handed:
            self._handed.popleft()[1].cancel()

    def _hand_over(self) -> None:
        try:
            for request in islice(self._coming, MOST_AHEAD - len(self._handed)):
                self._handed.append((request, self.calls.submit(request)))
        except Exception:  # the call itself raises it again, in its turn
            self._coming = iter(())
