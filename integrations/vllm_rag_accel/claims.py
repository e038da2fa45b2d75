"""The scheduler's half of the connector: what of a prompt is claimed, loaded and saved.

It knows requests and steps of vLLM by their attributes only, and nothing of tensors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from rag_accel.kv.keys import ChunkSource
from rag_accel.kv.reuse_request import (
    ReuseRequest,
    ReuseRequestError,
    is_approximate_salt,
    read_reuse_request,
    salt_refusal,
)
from vllm_rag_accel.prompt_texts import LEAST_TOKENS, TextFinder
from vllm_rag_accel.step_plan import (
    Layout,
    PromptLoad,
    PromptLoadReport,
    PromptPart,
    PromptSave,
    StepPlan,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClaimOptions:
    """The bounds of claims.

    Args:
        model: identifies the weights.
        step_rows: the most rows of the worker's own that are computed for one step: tokens between
            texts, texts whose states are missing, tokens chosen again. A request that comes with
            more has its last texts computed by the server.
        rows_refusal: tells why the worker computes none: a claim ends at the first gap. None if it
            does.
    """

    model: str
    step_rows: int
    rows_refusal: str | None = None


@dataclass(slots=True)
class _Prompt:
    """A request, with what is known of its texts.

    ``is_apart`` tells that it was refused under a salt whose blocks are not its own: it reads none.
    ``is_named`` tells that its texts were found by their tokens, and its head by them.
    """

    layout: Layout | None
    refused: str | None = None
    is_apart: bool = False
    is_named: bool = False
    cached: int = 0
    claimed: tuple[int, int] | None = None
    rows: int = 0
    report: PromptLoadReport | None = None


@dataclass(slots=True)
class _Saving:
    layout: Layout
    blocks: list[int]


class Claims:
    """The prompts of one engine whose texts are reused.

    Args:
        finder: the model's tokenizer.
        has: tells whether there is a state under a key.
        options: bounds.
    """

    def __init__(
        self, finder: TextFinder, has: Callable[[bytes], bool], options: ClaimOptions
    ) -> None:
        self._finder = finder
        self._has = has
        self._options = options
        self._prompts: dict[str, _Prompt] = {}
        self._to_load: dict[str, Any] = {}
        self._saving: dict[str, _Saving] = {}
        self._warned: set[str] = set()
        self._step_rows = 0
        self._answered: dict[str, dict[str, Any]] = {}

    def begun(self, request: Any) -> None:
        """Have a refused request computed as a whole where the server's cache is that of others."""
        if self._prompt(request).is_apart:
            request.skip_reading_prefix_cache = True

    def matched(self, request: Any, computed: int) -> int | None:
        """Return how many tokens behind those computed are claimed; None to be asked again.

        Args:
            request: vLLM's.
            computed: tokens that the server's own cache has.
        """
        prompt = self._prompt(request)
        prompt.cached = computed
        if prompt.layout is None:
            return 0
        layout = prompt.layout
        last = request.num_prompt_tokens - 1
        prompt.rows = 0
        if layout.reuse == "exact" or self._options.rows_refusal is not None:
            end = self._stored_end(layout)
            awaited = self._awaited(layout, max(end, computed), request.request_id)
            if awaited:
                return None
        else:
            end, prompt.rows = self._end_within(layout, computed)
            if self._step_rows and self._step_rows + prompt.rows > self._options.step_rows:
                return None
        end = min(end, last)
        if end <= computed:
            return 0
        prompt.claimed = (computed, end)
        return end - computed

    def allocated(self, request: Any, num_external: int) -> None:
        """Note that a request has its blocks; it is in the next step."""
        prompt = self._prompts.get(request.request_id)
        if prompt is None or prompt.layout is None:
            return
        if num_external > 0:
            self._step_rows += prompt.rows
            self._to_load[request.request_id] = request
        layout = prompt.layout
        if layout.save and layout.reuse == "exact" and request.request_id not in self._saving:
            self._saving[request.request_id] = _Saving(layout, [])

    def step(self, output: Any) -> StepPlan:
        """Return the loads and saves of a step.

        Args:
            output: vLLM's ``SchedulerOutput``.
        """
        self._answered.clear()
        plan = StepPlan()
        self._step_rows = 0
        for new in output.scheduled_new_reqs:
            self._begin(new.req_id, list(new.block_ids[0]), output, plan)
        cached = output.scheduled_cached_reqs
        for at, request in enumerate(cached.req_ids):
            blocks = cached.new_block_ids[at]
            if request in cached.resumed_req_ids:
                self._begin(request, list(blocks[0]), output, plan)
            elif blocks and request in self._saving:
                self._saving[request].blocks += blocks[0]
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for request, saving in list(self._saving.items()):
            scheduled = output.num_scheduled_tokens.get(request)
            if scheduled is None:
                continue
            parts = saving.layout.parts
            if computed[request] + scheduled >= parts[-1].stop:
                missing = tuple(part for part in parts if not self._has(part.key))
                if missing:
                    layout = replace(saving.layout, parts=missing)
                    plan.saves.append(PromptSave(request, saving.blocks, layout))
                del self._saving[request]
        return plan

    def loaded(self, reports: Iterable[PromptLoadReport]) -> None:
        """Learn what the worker has loaded."""
        for report in reports:
            prompt = self._prompts.get(report.request)
            answer = self._answered.pop(report.request, None)
            if prompt is not None:
                prompt.report = report
            elif answer is not None:
                answer |= _counts(report)

    def finished(self, request: Any) -> dict[str, Any] | None:
        """Forget a request; return what its answer says of its texts, None for one without.

        Of an answer that ends in its first step the counts are filled in by ``loaded``: vLLM tells
        of the loads of a step after the requests that it ends, and sends answers after both.
        """
        self._to_load.pop(request.request_id, None)
        self._saving.pop(request.request_id, None)
        prompt = self._prompts.pop(request.request_id, None)
        if prompt is None or (prompt.layout is None and prompt.refused is None):
            return None
        if prompt.refused is not None:
            is_exact = not (prompt.is_apart and prompt.cached)
            return {"rag_accel": {"refused": prompt.refused, "exact": is_exact}}
        assert prompt.layout is not None
        said = {
            "reuse": prompt.layout.reuse,
            "texts": len(prompt.layout.texts),
            **_counts(prompt.report or PromptLoadReport(request.request_id)),
        }
        if prompt.report is None:
            self._answered[request.request_id] = said
        return {"rag_accel": said}

    def _begin(self, request: str, blocks: list[int], output: Any, plan: StepPlan) -> None:
        if request in self._saving:
            self._saving[request].blocks = list(blocks)
        waiting = self._to_load.pop(request, None)
        if waiting is None:
            return
        prompt = self._prompts[request]
        assert prompt.claimed is not None
        assert prompt.layout is not None
        begin, end = prompt.claimed
        layout = prompt.layout
        if begin and prompt.is_named and layout.reuse != "exact":
            # Another prompt with these texts may have had a shorter head: what the server's cache
            # has of this one's may be approximate, and so is what is computed behind it.
            layout = replace(layout, save=False)
        scheduled = end + output.num_scheduled_tokens[request]
        ids = tuple(waiting.prompt_token_ids)
        plan.loads.append(PromptLoad(request, ids, blocks, begin, end, scheduled, layout))

    def _prompt(self, request: Any) -> _Prompt:
        found = self._prompts.get(request.request_id)
        if found is None:
            found = self._prompts[request.request_id] = self._read(request)
            if found.refused is not None and found.refused not in self._warned:
                if len(self._warned) < 64:
                    self._warned.add(found.refused)
                _log.warning("texts of a request are not reused: %s", found.refused)
        return found

    def _read(self, request: Any) -> _Prompt:
        salt = getattr(request, "cache_salt", None)
        try:
            found = self._cut(request, salt)
        except ReuseRequestError as error:
            found = _Prompt(None, str(error))
        except Exception as error:  # of the tokenizer; beyond here it would end the engine
            found = _Prompt(None, f"its texts cannot be cut: {type(error).__name__}")
        # Other prompts with the same texts may have been reused under the same salt.
        found.is_apart |= found.refused is not None and is_approximate_salt(salt)
        return found

    def _cut(self, request: Any, salt: object) -> _Prompt:
        """Return the parts of a request's prompt, or why its texts are not reused."""
        wanted = read_reuse_request(request.kv_transfer_params)
        refused = salt_refusal(wanted, salt)
        if refused is not None:
            return _Prompt(None, refused, is_apart=True)
        if wanted is None:
            return _Prompt(None)
        refused = self._refusal(request, wanted)
        if refused is not None:
            return _Prompt(None, refused)
        layout = self._layout(request.prompt_token_ids, wanted)
        if not layout.parts:
            return _Prompt(None, "none of them is in the prompt")
        return _Prompt(layout, is_named=not wanted.spans)

    def _refusal(self, request: Any, wanted: ReuseRequest) -> str | None:
        """Return why a request's texts are not reused, None if they may be."""
        if request.prompt_token_ids is None:
            return "the prompt has no tokens"
        if getattr(request, "lora_request", None) is not None:
            return "an adapter (LoRA) changes the model"
        if getattr(request, "mm_features", None):
            return "the prompt holds images or sound"
        if wanted.reuse == "fused" and self._options.rows_refusal is not None:
            return f"reuse 'fused' computes rows: {self._options.rows_refusal}"
        if wanted.spans and wanted.spans[-1][1] > request.num_prompt_tokens:
            return "a span reaches beyond the prompt"
        return None

    def _layout(self, ids: list[int], wanted: ReuseRequest) -> Layout:
        """Return the parts of a prompt.

        Those of exact reuse have no gap: each is kept behind the very tokens that stand before it.
        """
        if wanted.spans:
            head = wanted.head
            places = [
                PromptPart(
                    b"", self._finder.text(ids[start:stop]), tuple(ids[start:stop]), 0, start, stop
                )
                for start, stop in wanted.spans
                if stop - start >= LEAST_TOKENS
            ]
        else:
            found = self._finder.find(ids, wanted.texts)
            head = self._finder.head(ids, found[0].start, wanted.before) if found else 0
            places = [
                PromptPart(b"", one.text, one.ids, one.offset, one.start, one.stop) for one in found
            ]
        if not places:
            parts: list[PromptPart] = []
        elif wanted.is_approximate:
            alone = ChunkSource(self._options.model, wanted.namespace, tuple(ids[:head]))
            parts = [replace(part, key=alone.key(part.ids)) for part in places]
            if wanted.recipe == "neighbours":
                behind = alone.behind_others()
                parts = [replace(part, behind=behind.key(part.ids)) for part in parts]
            if head >= LEAST_TOKENS:
                parts.insert(0, self._exact_part(ids, 0, head, wanted.namespace))
        else:
            stops = [head, *(part.stop for part in places)]
            parts = [
                self._exact_part(ids, start, stop, wanted.namespace)
                for start, stop in pairwise([0, *stops])
                if start < stop
            ]
        return Layout(
            wanted.reuse,
            head,
            tuple(parts),
            wanted.namespace,
            wanted.ratio if wanted.reuse == "fused" else 0.0,
            wanted.asked,
            wanted.save,
        )

    def _exact_part(self, ids: list[int], start: int, stop: int, namespace: str) -> PromptPart:
        source = ChunkSource(self._options.model, namespace, tuple(ids[:start]))
        used = tuple(ids[start:stop])
        return PromptPart(source.key(used), self._finder.text(used), used, 0, start, stop)

    def _stored_end(self, layout: Layout) -> int:
        """Return up to which token stored parts follow each other without a gap."""
        end = 0
        for part in layout.parts:
            if part.start != end or not self._has(part.key):
                break
            end = part.stop
        return end

    def _end_within(self, layout: Layout, computed: int) -> tuple[int, int]:
        """Return up to which token the rows to compute are few enough, and their number."""
        rows, end, at = 0, computed, computed
        texts = found = 0
        for part in layout.parts:
            if part.stop <= computed:
                continue
            rows += max(0, part.start - at)
            if not (self._has(part.key) or (part.behind and self._has(part.behind))):
                rows += len(part.ids)
            texts += part.stop - part.start
            needed = rows + int(texts * layout.ratio)
            if needed > self._options.step_rows:
                break
            end = at = part.stop
            found = needed
        return end, found

    def _awaited(self, layout: Layout, end: int, request: str) -> bool:
        """Tell whether another request is computing the part that a claim would go on with."""
        wanted = next((part.key for part in layout.parts if part.start == end), None)
        return wanted is not None and any(
            wanted in {part.key for part in saving.layout.parts}
            for other, saving in self._saving.items()
            if other != request and saving.blocks
        )


def _counts(report: PromptLoadReport) -> dict[str, Any]:
    """Return the numbers of a report by the names that an answer has for them."""
    return {
        "reused_tokens": report.reused,
        "encoded_tokens": report.encoded,
        "computed_tokens": report.computed,
        "recomputed_tokens": report.recomputed,
        "load_ms": round(report.seconds * 1e3, 3),
    }
