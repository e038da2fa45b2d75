"""Engines of vLLM's over tiny random models, made once, and one server for all tests."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
IS_THERE = importlib.util.find_spec("vllm") is not None
if IS_THERE:  # before vLLM and torch are imported
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here, and skip it where vLLM is not installed."""
    skip = pytest.mark.skip(reason="vLLM is not installed here: make test-vllm has it")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.timeout(300))
            if not IS_THERE:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of models, made by ``served_models``."""
    from served_models import make_models

    folder = tmp_path_factory.mktemp("models")
    make_models(folder)
    return folder


@pytest.fixture(scope="session")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the base URL of a server that is started as the documentation says."""
    from vllm_server import VllmServer

    folder = tmp_path_factory.mktemp("served")
    with VllmServer(models / "llama", folder / "kv", folder / "log") as started:
        yield started.base_url
