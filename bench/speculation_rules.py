"""The rules of papers for when an answer begins before its search ends, as named arms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rag_accel.requests.speculation_record import Seen, SpeculationRecord
from rag_accel.scheduler.messages import Stakes

Rule = Callable[[SpeculationRecord, Seen], Stakes | None]


def _any(record: SpeculationRecord, seen: Seen) -> Stakes | None:
    """Begin with any result as long as the model has room."""
    return Stakes(1.0, seen.left_s)


def _unchanged(record: SpeculationRecord, seen: Seen) -> Stakes | None:
    """Begin with a result that has stayed for a tenth of the search, once 15 % of it are done."""
    is_settled = seen.done >= 0.15 and seen.unchanged >= 0.1
    return Stakes(1.0, seen.left_s) if is_settled else None


#: HedraRAG's section 4.3; RAGCache's section 5.3 also begins anew with each change
RULES: dict[str, Rule] = {"HedraRAG, RAGCache": _any, "unchanged for a tenth": _unchanged}


@contextmanager
def ruled(rule: Rule | None) -> Iterator[None]:
    """Let a rule decide in the block, without any bound on what is wasted; None for our own."""
    own = SpeculationRecord.rule
    if rule is not None:
        SpeculationRecord.rule = staticmethod(rule)
    try:
        yield
    finally:
        SpeculationRecord.rule = staticmethod(own)
