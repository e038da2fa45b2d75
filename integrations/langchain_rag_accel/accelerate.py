"""Accelerated LangChain objects, and how they run.

A chat model, LLM, retriever, embeddings object, vector store, compressor, knowledge graph, compiled
LangGraph or ``LLMGraphTransformer`` gives an instance of its own class that shares its state; any
other runnable gives a ``RunnableBinding``.
"""

from __future__ import annotations

from typing import Any, Final

from langchain_core.runnables import Runnable

from langchain_rag_accel.coverage import coverage, program_of
from langchain_rag_accel.integration import INTEGRATION
from langchain_rag_accel.leaf_table import EXPLANATION, LANGCHAIN, RECOGNISED
from langchain_rag_accel.parallel_calls import accelerate_transformer, is_graph_transformer
from langchain_rag_accel.runnables import AcceleratedRunnable, accelerate_graph
from rag_accel.accelerator import Accelerator
from rag_accel.interception.integration import Acceleration
from rag_accel.interception.leaf_table import SCHEDULED, leaf_class
from rag_accel.interception.twins import twin
from rag_accel_adapters.langchain.composites import ClassicChain
from rag_accel_adapters.langchain.walk import is_graph


def _make(obj: Any, accelerator: Accelerator | None) -> Any:
    if getattr(type(obj), SCHEDULED, False):
        return obj if accelerator is None else obj.scheduled_by(accelerator)
    if leaf_class(type(obj)).framework is LANGCHAIN and not isinstance(obj, ClassicChain):
        return twin(obj, accelerator)
    if is_graph(obj):
        return accelerate_graph(obj, accelerator)
    if is_graph_transformer(obj):
        return accelerate_transformer(obj, accelerator)
    if isinstance(obj, AcceleratedRunnable) and accelerator is None:
        return obj
    if isinstance(obj, Runnable):
        return AcceleratedRunnable.wrap(obj, accelerator)
    return None


def _explain(obj: Any, own: Accelerator | None) -> str:
    if isinstance(obj, AcceleratedRunnable):
        return obj.explain()
    return EXPLANATION.of(obj, own, program=program_of(obj))


def _prepare(obj: Any, own: Accelerator | None, timeout_s: float) -> bool:
    if isinstance(obj, AcceleratedRunnable):
        obj, own = obj.bound, obj.accelerator
    return RECOGNISED.prepare(LANGCHAIN, obj, own, timeout_s)


def _hint(obj: Any) -> str:
    """Return what to do with an object that cannot be accelerated."""
    framework = type(obj).__module__.partition(".")[0]
    if framework == "langgraph" and hasattr(obj, "compile"):
        return "accelerate the compiled graph, which .compile() returns"
    if framework in ("llama_index", "workflows"):
        return "use accelerate of llama_index_rag_accel: pip install 'rag-accel[llama-index]'"
    if callable(obj):
        return "wrap a function in RunnableLambda"
    return "accelerate the program that uses it, or call it inside activate()"


ACCELERATION = Acceleration(
    LANGCHAIN,
    make=_make,
    takes="a Runnable, chat model, LLM, retriever, embeddings, vector store, compressor, "
    "knowledge graph or LLMGraphTransformer",
    hint=_hint,
    explain=_explain,
    prepare=_prepare,
    coverage=coverage,
    program_of=program_of,
)
accelerate: Final = INTEGRATION.accelerate
explain: Final = INTEGRATION.explain
prepare: Final = INTEGRATION.prepare
