"""The objects that are served: a chain that does nothing, and the demo's, both accelerated."""

from __future__ import annotations

from typing import Any

from bench.no_op import one_shot_chain
from langchain_rag_accel import accelerate
from rag_accel.accelerator import Accelerator
from rag_accel.config import Options
from rag_accel.system.files import user_cache
from rag_accel_demo.command import build_chain
from rag_accel_demo.material import prepare

NO_OP, RETRIEVAL = "no_op", "retrieval"
INPUTS = {NO_OP: "question", RETRIEVAL: "input"}
"""The input of each object, by the name of the function here that makes it."""


def no_op() -> Any:
    """Return prompt | no-op model | parser, accelerated."""
    return _accelerated(one_shot_chain())


def retrieval() -> Any:
    """Return the demo's chain over its documents, accelerated."""
    return _accelerated(build_chain(prepare(None, None, user_cache(), progress=False).store))


def value_of(name: str, question: str) -> Any:
    """Return what a question is for the object itself: a mapping, or the text."""
    return {INPUTS[name]: question} if name == NO_OP else question


def _accelerated(chain: Any) -> Any:
    # Every answer is worked out, also where two users ask the same.
    accelerator = Accelerator(options=Options.load(single_flight=False))
    return accelerate(chain, accelerator=accelerator)
