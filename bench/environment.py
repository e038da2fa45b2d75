"""Record where and when a suite ran: what a reader needs to judge its figures."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rag_accel.machine import cpu_model, usable_cores

PACKAGES = (
    *("rag-accel", "numpy", "torch", "transformers", "sentence-transformers", "tokenizers"),
    *("faiss-cpu", "langchain-core", "langchain-community", "langchain-huggingface"),
    "langgraph",
)

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM")


def read_environment(quick: bool) -> dict[str, Any]:
    """Return Python, versions, processor, cores, load average now, date (UTC) and settings."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": installed_versions(),
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "variables": settings(os.environ),
        "quick": quick,
    }


def installed_versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found: dict[str, str] = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that change what is measured."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if name in _THREAD_VARIABLES or name == "RAG_ACCEL" or name.startswith("RAG_ACCEL_")
    }
