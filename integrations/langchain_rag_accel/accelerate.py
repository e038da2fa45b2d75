"""The verbs a user needs: to accelerate a LangChain object, and to see how it runs."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from langchain_core.runnables import Runnable

from langchain_rag_accel.explanation import explain_inside
from langchain_rag_accel.graph_transformers import accelerate_transformer, is_graph_transformer
from langchain_rag_accel.graphs import accelerate_graph
from langchain_rag_accel.leaf_table import LANGCHAIN
from langchain_rag_accel.option_readers import parts_of
from langchain_rag_accel.runnables import AcceleratedRunnable
from langchain_rag_accel.translation.runnable import TranslatedRunnable
from rag_accel.accelerator import Accelerator, default_accelerator
from rag_accel.config import Options
from rag_accel.errors import ConfigError
from rag_accel.interception import intercept
from rag_accel.interception.arguments import chosen
from rag_accel.interception.leaf_table import SCHEDULED, leaf_class
from rag_accel.interception.twins import twin
from rag_accel.interception.unread_options import check_options
from rag_accel_adapters.langchain.blocking_chains import ClassicChain
from rag_accel_adapters.langchain.langgraph_parts import is_graph

T = TypeVar("T")

intercept(LANGCHAIN)


def accelerate(
    obj: T, *, accelerator: Accelerator | None = None, options: Options | None = None
) -> T:
    """Return an object usable wherever ``obj`` is, whose work is scheduled.

    A chat model, LLM, retriever, embeddings object, vector store, compressor, knowledge graph,
    compiled LangGraph or ``LLMGraphTransformer`` gives an instance of its own class that shares its
    state; any other runnable gives a ``RunnableBinding``.

    Args:
        obj: the object; it stays as it is and may be used beside the result.
        accelerator: schedules the work; by default one that all objects of the process share.
        options: options of an accelerator made for this object alone.

    Raises:
        ConfigError: if ``obj`` is nothing LangChain can run, or both arguments are given, or
            one of another type.
        TranslationError: with ``mode="translate"``, if a part of a program is not understood, or
            if nothing of it can run translated and the options were given for it alone.
        UnreadOptionWarning: a given option that no part of the object reads, where the program has
            made warnings errors; otherwise it is a warning, once for an object and an option.
    """
    accelerator = chosen(accelerator, options)
    made = _made(obj, accelerator)
    if made is not obj:
        check_options(obj, accelerator, parts_of, options)
    return made


def _made(obj: T, accelerator: Accelerator | None) -> T:
    if getattr(type(obj), SCHEDULED, False):
        return obj if accelerator is None else cast("Any", obj).scheduled_by(accelerator)
    if leaf_class(type(obj)).framework is LANGCHAIN and not isinstance(obj, ClassicChain):
        return twin(obj, accelerator)
    if is_graph(obj):
        return accelerate_graph(obj, accelerator)
    if is_graph_transformer(obj):
        return accelerate_transformer(obj, accelerator)
    if isinstance(obj, AcceleratedRunnable) and accelerator is None:
        return obj
    if isinstance(obj, Runnable):
        mode = (accelerator.options if accelerator is not None else Options.load()).mode
        wrapper = TranslatedRunnable if mode == "translate" else AcceleratedRunnable
        return wrapper.wrap(obj, accelerator)
    raise ConfigError(
        "accelerate() does not know this object",
        found=f"{type(obj).__module__}.{type(obj).__qualname__}",
        valid="a Runnable, chat model, LLM, retriever, embeddings, vector store, compressor, "
        "knowledge graph or LLMGraphTransformer",
        hint=_hint(obj),
    )


def explain(obj: Any) -> str:
    """Return what is inside an accelerated object and how each part runs, one part a line."""
    if isinstance(obj, AcceleratedRunnable):
        return obj.explain()
    own = getattr(type(obj), "__rag_accel_own__", None)
    return explain_inside(obj, own or default_accelerator())


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
