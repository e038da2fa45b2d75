"""Fields of requests that only servers of vLLM's know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from rag_accel.engine_api import (
    EngineRequest,
    GenerationInput,
    GenerationOutput,
    PrimitiveKind,
)
from rag_accel.errors import ConfigError
from rag_accel.kv.keys import KvRecipe
from rag_accel.kv.reuse_request import ReuseRequest, ServedReuse
from rag_accel.kv.served_prompts import reuse_request_of

_WHERE = "VllmServerOptions"
#: Fields by which a request's own options decide what of its prompt is reused.
_OWN = frozenset({"cache_salt", "kv_transfer_params"})
#: Depths and tenths of a second of slack that are told apart.
_DEPTHS, _SLACKS = 64, 1_000_000
#: The priority of a prompt's beginning that is sent early: behind all that anyone waits for.
EARLY_PRIORITY = _DEPTHS * _SLACKS


@dataclass(frozen=True, slots=True)
class VllmServerOptions:
    """Options of requests to a server of vLLM's; any other is sent what it always was.

    Args:
        kv_reuse: ``exact``, ``full`` or ``fused``, for servers with ``vllm_rag_accel``; the last
            two are approximate. ``exact`` names no text.
        recompute_ratio: of ``fused``, the share of the texts' tokens that are computed again.
        kv_recipe: of ``full`` and ``fused``, as of ``LocalOptions``.
        priority: whether requests carry one, of their deadline and their remaining depth; for
            servers with ``--scheduling-policy priority``; one that refuses it is sent none again.
        most_waiting: the most requests that may wait in the server before further ones wait here,
            where they can still be cancelled for nothing; None reads no metrics.

    Raises ConfigError on a value out of range.
    """

    kv_reuse: ServedReuse = "exact"
    recompute_ratio: float = 0.15
    kv_recipe: KvRecipe = "neighbours"
    priority: bool = False
    most_waiting: int | None = None

    def __post_init__(self) -> None:
        if self.kv_reuse not in get_args(ServedReuse):
            raise _refusal("kv_reuse", self.kv_reuse, ", ".join(get_args(ServedReuse)))
        if self.kv_recipe not in get_args(KvRecipe):
            raise _refusal("kv_recipe", self.kv_recipe, ", ".join(get_args(KvRecipe)))
        if not 0 <= self.recompute_ratio <= 1:
            raise _refusal("recompute_ratio", self.recompute_ratio, "0 to 1")
        if self.most_waiting is not None and not 0 <= self.most_waiting <= 1_000_000:
            raise _refusal("most_waiting", self.most_waiting, "0 to 1000000, or None")

    @property
    def asks(self) -> bool:
        """Tell whether a request needs to know what its server is."""
        return self.kv_reuse != "exact" or self.priority or self.most_waiting is not None

    def notes(self, output: GenerationOutput) -> dict[str, Any]:
        """Return what an answer says of its own making, by name; {} for one that is exact.

        ``kv_reuse`` is a report as of ``LocalOptions.report``.
        """
        use = output.use
        if self.kv_reuse == "exact" or use is None:
            return {}
        report = {
            "mode": self.kv_reuse,
            "ratio": self.recompute_ratio if self.kv_reuse == "fused" else 0.0,
            "reused_tokens": use.from_chunks,
            "recomputed_tokens": use.recomputed,
            "approximate_tokens": use.approximate,
            "exact": use.is_exact,
        }
        return {"kv_reuse": report}

    def texts_of(self, request: EngineRequest) -> ReuseRequest | None:
        """Return what the server is told of a request's texts; None of nothing."""
        payload: GenerationInput = request.payload
        if self.kv_reuse == "exact" or _OWN & set(payload.options):
            return None
        return reuse_request_of(
            payload,
            self.kv_reuse,
            namespace=request.namespace,
            ratio=self.recompute_ratio,
            recipe=self.kv_recipe,
        )

    def priority_of(self, request: EngineRequest, now: float) -> Mapping[str, Any]:
        """Return the field of a request's priority; {} without one.

        Args:
            request: its own options take precedence.
            now: on the clock of its deadline, in seconds.
        """
        if not self.priority or "priority" in request.payload.options:
            return {}
        if request.kind is PrimitiveKind.PARTIAL_PREFILLING:
            return {"priority": EARLY_PRIORITY}
        slack_s = None if request.deadline is None else request.deadline - now
        return {"priority": request_priority(request.depth, slack_s)}


def request_priority(depth: int, slack_s: float | None) -> int:
    """Return vLLM's priority of a request: lower ones are computed first, 0 is that of others.

    Requests with a deadline go first, the one with the least time left before all; of equal ones,
    and of those without, the one whose request has more left to do after it.

    Args:
        depth: longest remaining path to the request's end, in primitives.
        slack_s: seconds to its deadline; None for none.
    """
    deep = min(max(depth, 0), _DEPTHS - 1)
    if slack_s is None:
        return -deep
    tenths = min(max(int(slack_s * 10), 0), _SLACKS - 1)
    return (tenths - _SLACKS) * _DEPTHS - deep


def _refusal(name: str, found: object, valid: str) -> ConfigError:
    what = "option out of range"
    return ConfigError(what, where=f"{_WHERE}.{name}", found=repr(found), valid=valid)
