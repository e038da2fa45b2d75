"""Works of a local language model: their reading from requests, and their outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rag_accel.engine_api import (
    EngineOutput,
    EngineRequest,
    GenerationInput,
    GenerationOutput,
    OutputKind,
    PrimitiveKind,
    PromptUse,
    TokenLogprob,
)
from rag_accel.engines.llm.local.batching.rows import Runner
from rag_accel.engines.llm.local.batching.sequence import TokenSequence
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.text.prompting import Prompting, check_room
from rag_accel.engines.llm.local.text.sampling import Choice, Sampler, read_options
from rag_accel.engines.llm.local.text.stopping import CompletionText, Detokenizer, stop_strings
from rag_accel.engines.llm.local.text.tokens import (
    CompletionTokens,
    DependencyInput,
    EncodingInput,
    TokenInput,
    TokenOutput,
)
from rag_accel.engines.option_checks import check_whole
from rag_accel.errors import EngineError
from rag_accel.kv.dependency.prompt import DepPrompt
from rag_accel.kv.segments import SegmentedPrompt


@dataclass(slots=True, eq=False)
class LocalWork:
    """A request under way. Equal only to itself.

    Args:
        request: as submitted.
        sequence: its tokens and where they are.
        sampler: chooses its tokens; unused where only a prompt is to be computed.
        completion: its text or tokens; None where only a prompt is to be computed.
        token_text: returns the text of one token, for reports of probabilities.
        segments: of its prompt, where the state of retrieved texts or of paths is used.
        weights: what computes it, as ``GenerationOutput`` says.
        only_encodes: whether it ends when its parts are computed and kept.
        num_tokens: returns how many tokens a text has alone.
    """

    request: EngineRequest
    sequence: TokenSequence
    sampler: Sampler
    completion: CompletionText | CompletionTokens | None
    token_text: Callable[[int], str]
    segments: SegmentedPrompt | None = None
    weights: str = "own"
    only_encodes: bool = False
    num_tokens: Callable[[str], int] = len
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])

    @property
    def is_complete(self) -> bool:
        """Tell whether the last token of its completion was chosen."""
        return self.completion is not None and self.completion.finish_reason is not None

    def take(self, choice: Choice) -> Iterator[EngineOutput]:
        """Append a chosen token; yield its text if it is streamed, and the end if it is one."""
        assert self.completion is not None
        self.sequence.generated.append(choice.token)
        if choice.logprob is not None:
            self.logprobs.append(TokenLogprob(self.token_text(choice.token), choice.logprob))
        piece = self.completion.add(choice.token)
        if piece and self.request.stream:
            yield self.report("partial", piece)
        if self.completion.finish_reason is not None:
            yield self.report("final", self._result(self.completion))

    def report(
        self, kind: OutputKind, value: object = None, error: BaseException | None = None
    ) -> EngineOutput:
        return EngineOutput(self.request.id, kind, value, error=error)

    def _num_document_tokens(self) -> int:
        """Return the tokens of texts next to a tree; counted last, when no token waits for it."""
        if self.segments is None:
            return 0
        return sum(map(self.num_tokens, self.segments.documents))

    def _result(self, completion: CompletionText | CompletionTokens) -> GenerationOutput:
        sequence = self.sequence
        size, prefix, chunks = len(sequence.prompt), sequence.from_prefix, sequence.from_chunks
        slots = range(0) if self.segments is None else self.segments.slots
        inline = 0 if slots in sequence.skipped else len(slots)
        use = PromptUse(
            size - prefix - chunks,
            prefix,
            chunks,
            sequence.recomputed,
            sequence.preprocessed,
            approximate=inline + sum(map(len, sequence.skipped)),
            documents=self._num_document_tokens(),
            tree=len(slots),
            from_tree=sequence.from_tree,
        )
        if isinstance(completion, CompletionTokens):
            return TokenOutput(
                prompt_tokens=size,
                completion_tokens=completion.num_tokens,
                finish_reason=completion.finish_reason or "stop",
                use=use,
                tokens=tuple(sequence.generated),
                weights=self.weights,
            )
        return GenerationOutput(
            text=completion.text,
            prompt_tokens=size,
            completion_tokens=completion.num_tokens,
            finish_reason=completion.finish_reason or "stop",
            use=use,
            logprobs=tuple(self.logprobs),
            weights=self.weights,
        )


class WorkReader:
    """A reader of requests: prompts into tokens, options into samplers and bounds.

    Args:
        runner: its pool and context bound a work.
        tokenizer: of transformers.
        prompting: of the same tokenizer; None where all prompts are token ids.
        eos: tokens that end a completion.
        options: bounds.
        sampling: options of the model's own where a request does not name them.
    """

    def __init__(
        self,
        runner: Runner,
        tokenizer: Any,
        prompting: Prompting | None,
        eos: Collection[int],
        options: LocalOptions,
        sampling: Mapping[str, Any],
    ) -> None:
        self._runner = runner
        self._tokenizer = tokenizer
        self._prompting = prompting
        self._eos = eos
        self._options = options
        self._sampling = sampling

    def prompt(
        self,
        request: EngineRequest,
        payload: GenerationInput,
        pays: Callable[[SegmentedPrompt], bool],
    ) -> LocalWork | None:
        """Read a request to compute a prompt or its beginning; None if there is nothing to compute.

        A prompt whose retrieved texts will take their kept state is computed up to the first text:
        what follows has to see that state. ``pays`` tells whether they will.

        Raises EngineError where it has no room or the template refuses it.
        """
        prompting, segments = self._of_messages(), self._segments(payload)
        is_part = request.kind is PrimitiveKind.PARTIAL_PREFILLING
        if segments is not None and segments.paths is not None and not pays(segments):
            segments = segments.without_chunks()
        if segments is not None and pays(segments):
            prompt = segments.before_texts
        elif is_part:
            prompt = prompting.beginning(payload.messages)
        else:
            prompt = prompting.whole(payload.messages, payload.tools)
        if not prompt:
            return None
        check_room(len(prompt), 1, self._runner.context)
        return self._work(request, prompt, 0, Sampler(read_options({})), None)

    def generation(self, request: EngineRequest, payload: GenerationInput) -> LocalWork:
        """Read a request for a completion.

        Raises EngineError where it has no room or the template refuses it, and ConfigError on bad
        options.
        """
        if isinstance(payload, TokenInput):
            return self._continuation(request, payload)
        given = {name: value for name, value in payload.options.items() if value is not None}
        sampling = read_options({**self._sampling, **given})
        wanted = payload.max_tokens
        if wanted is None:
            wanted = self._options.max_tokens_default
        check_whole("GenerationInput.max_tokens", wanted, 1)
        prompting, segments = self._of_messages(), self._segments(payload)
        prompt = segments.ids if segments else prompting.whole(payload.messages, payload.tools)
        max_new = check_room(len(prompt), wanted, self._runner.context)
        if isinstance(payload, DependencyInput) and payload.only_encoded:
            work = self._work(request, prompt, 0, Sampler(sampling), None)
            work.segments, work.only_encodes = segments, True
            return work
        cleans_up = bool(getattr(self._tokenizer, "clean_up_tokenization_spaces", False))
        completion = CompletionText(
            Detokenizer(self._text, cleans_up=cleans_up),
            stop=stop_strings(payload.stop),
            eos=self._eos,
            max_tokens=max_new,
        )
        work = self._work(request, prompt, max_new, Sampler(sampling, prompt), completion)
        work.segments = segments
        work.num_tokens = lambda text: len(prompting.alone(text))
        return work

    def encoding(self, request: EngineRequest, payload: EncodingInput) -> LocalWork:
        """Read a request to encode texts.

        Raises EngineError where one has no room, with its neighbours, in the context or the pool.
        """
        before = payload.prompt.head + tuple(
            id for neighbour in payload.neighbours for id in neighbour.ids
        )
        longest = max((chunk.ids for chunk in payload.prompt.chunks), key=len)
        ids = (*before, *longest)
        check_room(len(ids), 1, self._runner.context)
        work = self._work(request, ids, 0, Sampler(read_options({})), None)
        work.segments, work.only_encodes = payload.prompt, True
        return work

    def _continuation(self, request: EngineRequest, payload: TokenInput) -> LocalWork:
        segments = payload.segments
        if segments is not None and segments.paths is not None and not self._options.reuses_paths:
            segments = None
        if segments is not None and segments.chunks and not self._options.reuses_texts:
            segments = None
        ids = payload.ids if segments is None else segments.ids
        max_new = check_room(len(ids), payload.most, self._runner.context)
        completion = CompletionTokens(payload.ends, max_new)
        sampler = Sampler(read_options(payload.options), ids)
        work = self._work(request, ids, max_new, sampler, completion)
        work.segments = segments
        return work

    def _segments(self, payload: GenerationInput) -> SegmentedPrompt | None:
        """Return the parts of a prompt of which some may be reused; None where none are."""
        if isinstance(payload, DependencyInput):
            return self._of_nodes(payload.prompt)
        if self._options.kv_reuse == "exact" or not payload.chunk_spans:
            return None
        prompting, tools = self._of_messages(), payload.tools
        if not self._options.reuses_texts:
            return prompting.tree(payload.messages, payload.chunk_spans, tools)
        find = prompting.texts_and_paths if self._options.reuses_paths else prompting.segmented
        least = self._options.least_chunk_tokens
        return find(payload.messages, payload.chunk_spans, least, tools)

    def _of_nodes(self, prompt: DepPrompt) -> SegmentedPrompt:
        if not self._options.reuses_paths:
            raise EngineError(
                "this engine does not compute relation paths as a tree",
                where="local language model",
                found=f"kv_reuse={self._options.kv_reuse!r}",
                valid='kv_reuse="dependency", or with texts "fused+dependency"',
                hint='name it: LocalLLM(..., kv_reuse="dependency")',
            )
        return self._of_messages().of_nodes(prompt)

    def _of_messages(self) -> Prompting:
        if self._prompting is None:
            raise EngineError(
                "this engine has no tokenizer",
                where="local language model",
                found="a prompt of messages",
                valid="a prompt of token ids",
            )
        return self._prompting

    def _work(
        self,
        request: EngineRequest,
        prompt: tuple[int, ...],
        max_new: int,
        sampler: Sampler,
        completion: CompletionText | CompletionTokens | None,
    ) -> LocalWork:
        sequence = TokenSequence(
            prompt,
            max_new,
            request.request_id,
            request.namespace,
            request.arrived_at,
            request.depth,
        )
        self._check_pool(sequence)
        weights = self._options.weights
        return LocalWork(request, sequence, sampler, completion, self._token_text, weights=weights)

    def _check_pool(self, sequence: TokenSequence) -> None:
        if not self._runner.pool.fits(sequence.capacity):
            raise EngineError(
                "prompt and completion are larger than the pool of keys and values",
                where="local language model",
                found=f"{len(sequence.prompt)} tokens and max_tokens={sequence.max_new}",
                valid="fewer together",
                hint="retrieve fewer documents, lower max_tokens or give the pool more bytes",
            )

    def _text(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def _token_text(self, token: int) -> str:
        return self._tokenizer.decode([token])
