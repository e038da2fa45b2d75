"""Attributes of spans that the object of a call has at hand: names and numbers, never a text.

Nothing here imports a framework or a client; their objects are known by their attributes.
"""

from __future__ import annotations

import ntpath
import re
from functools import lru_cache
from typing import Any, Final, cast

MODEL: Final = "gen_ai.request.model"
PROVIDER: Final = "gen_ai.provider.name"
DEVICE: Final = "rag_accel.device"
TOP_K: Final = "gen_ai.retrieval.top_k"
DIMENSIONS: Final = "gen_ai.embeddings.dimension.count"

OURS: Final = "rag_accel"
"""The provider of models that an engine of this library computes here."""

_MODEL_NAMES = ("model_name", "model", "model_id", "deployment_name", "name_or_path")
_TOP_K_NAMES = ("similarity_top_k", "top_k", "k")
_NAMES = {*_MODEL_NAMES, *_TOP_K_NAMES, "name", "device", "search_kwargs", "dimensions"}

#: the package of a model's class; in it the name of the provider
_PACKAGE = re.compile(
    r"(?:langchain_(?!core|community|classic)|langchain_community\.\w+\.|neo4j_graphrag\.\w+\."
    r"|llama_index\.(?:llms|embeddings|postprocessor)\.)([a-z_]+?)(?:_llm|_like)?(?:\.|$)"
)
#: that name, and the one of the conventions
_PROVIDERS = {
    **{name: name for name in ("anthropic", "cohere", "deepseek", "groq", "ollama", "openai")},
    **dict.fromkeys(("aws", "bedrock", "bedrock_converse"), "aws.bedrock"),
    **dict.fromkeys(("google_genai", "google_generativeai", "gemini"), "gcp.gemini"),
    **dict.fromkeys(("google_vertexai", "vertex", "vertexai"), "gcp.vertex_ai"),
    **{"azure_openai": "azure.ai.openai", "mistralai": "mistral_ai", "xai": "x_ai"},
    **{"perplexity": "perplexity", "ibm": "ibm.watsonx.ai"},
}
_OUR_ENGINES = re.compile(r"rag_accel\.engines\.(llm\.(local|vllm)|embedding\.engine|devices)\b")
_OUR_LLMS = re.compile(r"rag_accel\.engines\.llm\b")
_OUR_CLIENT = re.compile(r"rag_accel\.engines\.(llm\.remote|devices\.remote)\b")


def attributes_of(obj: Any) -> dict[str, Any]:
    """Return the attributes of spans of an object's calls; those that are unknown are missing."""
    cls = cast("type[Any]", type(obj))
    found: dict[str, Any] = {MODEL: model_of(obj), PROVIDER: _provider_of(cls)}
    device = _read(obj, "device")
    found[DEVICE] = str(device) if isinstance(device, str) or _is_torch_device(device) else ""
    given = _read(obj, "search_kwargs")
    keywords = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    counts = [keywords.get("k"), *(_read(obj, name) for name in _TOP_K_NAMES)]
    found[TOP_K] = next(filter(_is_count, counts), None)
    dimensions = _read(obj, "dimensions")
    found[DIMENSIONS] = dimensions if _is_count(dimensions) else None
    return {name: value for name, value in found.items() if value}


def model_of(obj: Any) -> str:
    """Return the name of the model that an object calls or is; of a folder its last part."""
    cls = cast("type[Any]", type(obj))
    names = (*_MODEL_NAMES, "name") if _OUR_LLMS.match(cls.__module__) else _MODEL_NAMES
    for name in names:
        found = _read(obj, name)
        if isinstance(found, str) and found not in ("", "unknown"):  # as LlamaIndex says
            # A folder may say whose it is.
            is_path = found.startswith((".", "/", "~")) or found[1:2] == ":"
            return ntpath.basename(found.rstrip("/\\")) if is_path else found
    return ""


@lru_cache(256)
def _provider_of(cls: type) -> str:
    for base in cls.__mro__:
        if _OUR_CLIENT.match(base.__module__):
            return "openai"
        if _OUR_ENGINES.match(base.__module__):
            return OURS
        if (found := _PACKAGE.match(base.__module__)) is not None:
            is_azure = found[1] == "openai" and "Azure" in base.__name__
            return _PROVIDERS.get("azure_openai" if is_azure else found[1], "")
    return ""


def _is_torch_device(found: Any) -> bool:
    return type(found).__module__ == "torch" and type(found).__name__ == "device"


def _read(obj: Any, name: str) -> Any:
    """Return an attribute of an object or of its class: to miss one takes Pydantic 8 us."""
    own = getattr(obj, "__dict__", None)
    cls = cast("type[Any]", type(obj))
    has_one = name in _names_of(cls) or (isinstance(own, dict) and name in own)
    return read_safely(obj, name) if has_one else None


@lru_cache(256)
def _names_of(cls: type) -> frozenset[str]:
    return frozenset(_NAMES & {name for base in cls.__mro__ for name in vars(base)})


def read_safely(obj: Any, name: str) -> Any:
    """Return an attribute of an object of the program's; None without one."""
    try:
        return getattr(obj, name, None)
    except Exception:  # a property of the program's
        return None


def _is_count(found: Any) -> bool:
    return isinstance(found, int) and not isinstance(found, bool) and found > 0
