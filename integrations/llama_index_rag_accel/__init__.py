"""LlamaIndex programs, accelerated without a change to them."""

from typing import TYPE_CHECKING

try:
    import llama_index.core as _  # noqa: F401
except ImportError as error:
    raise ImportError(
        "llama_index_rag_accel needs llama-index-core: pip install 'rag-accel[llama-index]'"
    ) from error

from llama_index_rag_accel import upstream as _upstream
from rag_accel import shutdown

if TYPE_CHECKING or (_missing := _upstream.missing_module()) is None:
    from llama_index_rag_accel.accelerate import accelerate
    from rag_accel.interception import activate

    if _gone := _upstream.missing_methods():
        _upstream.warn_of(_gone, "not all is accelerated")
else:
    from rag_accel.interception.plain import accelerate, activate

    _upstream.warn_of([_missing], "nothing is accelerated")

__all__ = ["accelerate", "activate", "shutdown"]
