"""LlamaIndex's extractors of a property graph, whose calls of the model more workers make.

Each ``acall`` is given here a second time, as llama-index-core 0.14.25 has it, with another number
of workers. What a worker does stays upstream's, and so do the spans, the progress bar, the order
of results, and which error leaves.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from llama_index.core.async_utils import run_jobs

from llama_index_rag_accel.concurrency.independent_calls import IndependentCalls
from rag_accel.interception.leaf_table import plain_class

_TRANSFORMATIONS = "llama_index.core.indices.property_graph.transformations"
_SIMPLE = f"{_TRANSFORMATIONS}.simple_llm.SimpleLLMPathExtractor"
_SCHEMA = f"{_TRANSFORMATIONS}.schema_llm.SchemaLLMPathExtractor"


async def _extracted(
    desc: str,
    run_all: Any,
    extractor: Any,
    nodes: Sequence[Any],
    show_progress: bool = False,
    **kwargs: Any,
) -> Any:
    workers = run_all.at_once(extractor.num_workers, [extractor.llm])
    jobs = [extractor._aextract(node) for node in nodes]
    return await run_jobs(jobs, workers=workers, show_progress=show_progress, desc=desc)


def _may_have_more(extractor: Any) -> bool:
    """Tell whether an extractor's number of workers is no limit that its user has chosen.

    Less than the class has by itself is one: the model's server takes no more, say. Without any
    worker upstream waits for ever, or raises.
    """
    own = _default_workers(plain_class(type(extractor)))
    return own is not None and extractor.num_workers >= max(own, 1)


def _default_workers(cls: type) -> int | None:
    """Return how many workers a class has that is made without a number; ``None`` if unknown."""
    for base in cls.__mro__:
        if "__init__" in vars(base):
            known = inspect.signature(base.__init__).parameters.get("num_workers")
            if known is not None:
                return known.default if type(known.default) is int else None
    return None


def _are_apart(nodes: Any = (), show_progress: bool = False, **kwargs: Any) -> bool:
    """Tell whether there are several nodes, and none is extracted from while another is changed."""
    if type(nodes) not in (list, tuple):
        return False
    several = cast("Sequence[Any]", nodes)
    apart = {id(getattr(node, "metadata", None)) for node in several}
    return len(several) > 1 and len(apart) == len(several)


def _extracting(name: str, desc: str, digest: str, helper: str) -> IndependentCalls:
    return IndependentCalls(
        partial(_extracted, desc),
        digest,
        ("_aextract", helper),
        frozenset({name}),
        applies=_may_have_more,
        are_several=_are_apart,
    )


#: By the full name of the method, what is known of each extractor.
EXTRACTORS: Mapping[str, IndependentCalls] = {
    f"{_SIMPLE}.acall": _extracting(
        _SIMPLE, "Extracting paths from text", "abd02dc859449ecb", "790b80a4f1361a8d"
    ),
    f"{_SCHEMA}.acall": _extracting(
        _SCHEMA, "Extracting paths from text with schema", "4dd8993bc72de9d2", "3d8a073d82e5fdc8"
    ),
}
