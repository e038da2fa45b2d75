"""Calls of vLLM: their reading from requests, and their outputs' tokens by origin."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rag_accel.engine_api import (
    KINDS,
    PATIENCE_S,
    EngineRequest,
    GenerationInput,
    PrimitiveKind,
    PromptUse,
)
from rag_accel.engines.llm.local.text.prompting import Prompting, check_room
from rag_accel.engines.llm.local.text.sampling import read_options
from rag_accel.engines.llm.local.text.stopping import stop_strings
from rag_accel.engines.llm.local.text.tokens import DependencyInput, EncodingInput, TokenInput
from rag_accel.engines.llm.vllm.library import WHERE
from rag_accel.engines.llm.vllm.options import VllmOptions
from rag_accel.engines.option_checks import check_whole
from rag_accel.errors import EngineError
from rag_accel.kv.reuse_request import ENTRY, ReuseRequest, namespace_salt
from rag_accel.kv.segments import SegmentedPrompt

#: Seconds by which each primitive that follows makes work due sooner.
LEVEL_S = 0.05


@dataclass(frozen=True, slots=True)
class VllmCall:
    """A prompt as vLLM is given it.

    Args:
        ids: the prompt's tokens.
        sampling: arguments of ``SamplingParams`` by name.
        priority: lower is sooner.
        stream: whether text is wanted as it comes.
        only_prompt: whether nothing is generated for the caller.
        reuse: what is reused of its texts.
        salt: keeps its beginning apart from those of other salts.
        wants_logprobs: whether the tokens' probabilities are reported.
        is_tokens: whether the completion is reported as tokens.
    """

    ids: tuple[int, ...]
    sampling: Mapping[str, Any]
    priority: int
    stream: bool = False
    only_prompt: bool = False
    reuse: ReuseRequest | None = None
    salt: str | None = None
    wants_logprobs: bool = False
    is_tokens: bool = False

    def use(self, cached: int, params: Mapping[str, Any] | None, early: range) -> PromptUse:
        """Return the origin of the prompt's tokens.

        Args:
            cached: tokens that vLLM did not compute as a part of the whole prompt.
            params: what the connector says of them.
            early: places that were computed before for this call.
        """
        size = len(self.ids)
        cached = max(0, min(cached, size))
        if self.reuse is None or not self.reuse.is_approximate:
            ahead = len(range(early.start, min(early.stop, cached)))
            return PromptUse(computed=size - cached + ahead, from_prefix=cached - ahead)
        told = {} if params is None else params.get(ENTRY, {})
        reused, encoded, between, again = (
            int(told.get(f"{name}_tokens", 0))
            for name in ("reused", "encoded", "computed", "recomputed")
        )
        begin = max(0, cached - reused - encoded - between - again)
        ahead = max(0, self.reuse.head - begin)
        # The head is kept wherever a text behind it is, and exact.
        head = ahead if reused >= ahead else 0
        texts = _within(self.reuse.spans, begin, cached)
        others = cached - begin - texts - head
        prefix, chunks = begin + head, reused - head
        return PromptUse(
            computed=size - prefix - chunks,
            from_prefix=prefix,
            from_chunks=chunks,
            recomputed=again,
            # Texts that were computed in the prompt saw all before them. Of a beginning that vLLM
            # kept itself it does not say which tokens were.
            approximate=max(
                0,
                _within(self.reuse.spans, 0, cached) - again - max(0, between - max(0, others)),
            ),
        )


class CallReader:
    """A reader of requests.

    Args:
        prompting: of the model's tokenizer.
        ends: tokens that end a completion.
        context: most tokens of a prompt and its completion.
        options: bounds.
        sampling: options of the model's own where a request does not name them.
    """

    def __init__(
        self,
        prompting: Prompting,
        ends: Collection[int],
        context: int,
        options: VllmOptions,
        sampling: Mapping[str, Any],
    ) -> None:
        self._prompting = prompting
        self._ends = ends
        self._context = context
        self._options = options
        self._sampling = sampling

    def read(self, request: EngineRequest, payload: GenerationInput) -> VllmCall | None:
        """Read a request; None where there is nothing to compute.

        Raises:
            ConfigError: bad options.
            EngineError: it has no room, the template refuses it, or vLLM does not compute it.
        """
        if isinstance(payload, DependencyInput | EncodingInput):
            raise EngineError(
                "vLLM does not compute prompts of this kind",
                where=WHERE,
                found=type(payload).__name__,
                valid="messages, or token ids to be continued",
                hint="name the model as LocalLLM",
            )
        if KINDS[request.kind].prefills:
            return self._prompt(request, payload)
        if isinstance(payload, TokenInput):
            return self._continuation(request, payload)
        return self._generation(request, payload)

    def _prompt(self, request: EngineRequest, payload: GenerationInput) -> VllmCall | None:
        """Read a prompt that is computed ahead.

        Where texts are reused, a beginning in vLLM's own cache would not be found under the salt of
        the whole prompt: the head is computed and kept as a text is, which the connector finds.
        """
        reuse: ReuseRequest | None = None
        if self._options.reuses_texts:
            ids = self._prompting.head(payload.messages)
            if ids:
                reuse = ReuseRequest(spans=((0, len(ids)),), namespace=request.namespace)
        elif request.kind is PrimitiveKind.PARTIAL_PREFILLING:
            ids = self._prompting.beginning(payload.messages)
        else:
            ids = self._prompting.whole(payload.messages)
        if not ids:
            return None
        check_room(len(ids), 1, self._context, WHERE)
        return VllmCall(
            ids,
            {"max_tokens": 1, "temperature": 0.0, "detokenize": False},
            priority_of(request),
            only_prompt=True,
            reuse=reuse,
            salt=namespace_salt(request.namespace),
        )

    def _generation(self, request: EngineRequest, payload: GenerationInput) -> VllmCall:
        given = {name: value for name, value in payload.options.items() if value is not None}
        chosen = read_options({**self._sampling, **given})
        wanted = payload.max_tokens
        if wanted is None:
            wanted = self._options.max_tokens_default
        check_whole("GenerationInput.max_tokens", wanted, 1)
        segments = self._segments(payload)
        ids = segments.ids if segments else self._prompting.whole(payload.messages)
        sampling: dict[str, Any] = {
            "max_tokens": check_room(len(ids), wanted, self._context, WHERE),
            "temperature": chosen.temperature,
            "top_p": chosen.top_p,
            "top_k": chosen.top_k,
            "min_p": chosen.min_p,
            "repetition_penalty": chosen.repetition_penalty,
            "stop": list(stop_strings(payload.stop)),
            # The ends of LocalLLM, in place of those that vLLM reads.
            "ignore_eos": True,
            "stop_token_ids": sorted(self._ends),
        }
        if chosen.seed is not None:
            sampling["seed"] = chosen.seed & _MOST_SEED
        if chosen.logprobs:
            sampling["logprobs"] = 0
        reuse = self._reuse(request, segments)
        return VllmCall(
            ids,
            sampling,
            priority_of(request),
            stream=request.stream,
            reuse=reuse,
            salt=_salt(request, reuse),
            wants_logprobs=chosen.logprobs,
        )

    def _continuation(self, request: EngineRequest, payload: TokenInput) -> VllmCall:
        segments = payload.segments if isinstance(payload.segments, SegmentedPrompt) else None
        if not self._options.reuses_texts:
            segments = None
        ids = payload.ids if segments is None else segments.ids
        sampling = {
            "max_tokens": check_room(len(ids), payload.most, self._context, WHERE),
            "temperature": 0.0,
            "ignore_eos": True,
            "stop_token_ids": sorted(payload.ends),
            "detokenize": False,
        }
        reuse = self._reuse(request, segments)
        salt = _salt(request, reuse)
        return VllmCall(ids, sampling, priority_of(request), reuse=reuse, salt=salt, is_tokens=True)

    def _segments(self, payload: GenerationInput) -> SegmentedPrompt | None:
        if not self._options.reuses_texts or not payload.chunk_spans:
            return None
        return self._prompting.segmented(
            payload.messages, payload.chunk_spans, self._options.least_chunk_tokens
        )

    def _reuse(
        self, request: EngineRequest, segments: SegmentedPrompt | None
    ) -> ReuseRequest | None:
        if segments is None or not segments.chunks:
            return None
        fused = self._options.kv_reuse == "fused"
        return ReuseRequest(
            reuse=self._options.kv_reuse,
            spans=tuple((chunk.start, chunk.end) for chunk in segments.chunks),
            head=len(segments.head),
            namespace=request.namespace,
            ratio=self._options.recompute_ratio,
            asked=self._options.asked,
            question=_digest(segments.ids) if fused else "",
            recipe=self._options.kv_recipe,
        )


def priority_of(request: EngineRequest) -> int:
    """Return when work is due, in milliseconds on the scheduler's clock; vLLM takes lower first.

    A request without a deadline is due ``PATIENCE_S`` after its arrival, so that none waits for
    ever. Of one request, the work with the longest way to its end is due first.
    """
    due = request.arrived_at + PATIENCE_S
    if request.deadline is not None:
        due = min(due, request.deadline)
    return round((due - LEVEL_S * request.depth) * 1e3)


def _salt(request: EngineRequest, reuse: ReuseRequest | None) -> str | None:
    return namespace_salt(request.namespace) if reuse is None else reuse.salt()


def _digest(ids: Sequence[int]) -> str:
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()


def _within(spans: Sequence[tuple[int, int]], begin: int, end: int) -> int:
    return sum(max(0, min(stop, end) - max(start, begin)) for start, stop in spans)


#: vLLM takes seeds that are not negative for seeds.
_MOST_SEED = (1 << 63) - 1
