"""LlamaIndex programs, accelerated without a change to them."""

try:
    import llama_index.core as _  # noqa: F401
except ImportError as error:
    raise ImportError(
        "llama_index_rag_accel needs llama-index-core: pip install 'rag-accel[llama-index]'"
    ) from error

from llama_index_rag_accel.accelerate import accelerate
from rag_accel import shutdown
from rag_accel.interception import activate

__all__ = ["accelerate", "activate", "shutdown"]
