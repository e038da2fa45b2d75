"""Record where and when a suite ran: what a reader needs to judge its figures."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rag_accel.system.processor import cpu_model, usable_cores

PACKAGES = (
    *("rag-accel", "numpy", "torch", "transformers", "sentence-transformers", "tokenizers"),
    *("faiss-cpu", "langchain-core", "langchain-community", "langchain-huggingface"),
    "langgraph",
)

#: What must be the same where figures of two runs are put together or compared.
SAME_PLACE = ("cpu", "cores", "python", "versions", "variables", "quick")
#: What is not measured; a new result or a sentence of the README makes no other code.
_NOT_MEASURED = ("bench/results", "tests", "changes", "*.md")
#: The load average at which a machine is quiet, and how long ``wait_until_quiet`` waits for that.
MAX_LOAD, QUIET_LIMIT_S = 1.0, 600.0
_ROOT = Path(__file__).resolve().parent.parent

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM")


def read_environment(quick: bool) -> dict[str, Any]:
    """Return Python, versions, processor, cores, cards, load average, date (UTC), settings, code.

    ``commit`` and ``is_dirty`` are those of ``measured_code``, ``num_processes`` is 1.
    """
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": installed_versions(),
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "cards": cards(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "variables": settings(os.environ),
        "quick": quick,
        **measured_code(),
        "num_processes": 1,
    }


def cards() -> list[str]:
    """Return the names of the GPUs that the driver of NVIDIA's cards lists; none without it."""
    told = _said(None, "nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return (told or "").splitlines()


def wait_until_quiet() -> None:
    """Wait until little else runs, such as the suite before; not longer than ``QUIET_LIMIT_S``."""
    limit = time.monotonic() + QUIET_LIMIT_S
    while os.getloadavg()[0] > MAX_LOAD and time.monotonic() < limit:
        time.sleep(5.0)


def measured_code(root: Path = _ROOT) -> dict[str, Any]:
    """Return the last commit that changed what is measured, and whether files differ from it.

    Results, tests and documents do not count. Both are None where git knows nothing of ``root``.
    """
    paths = ["--", ".", *(f":(exclude){one}" for one in _NOT_MEASURED)]
    commit = _git(root, "log", "-1", "--format=%H", *paths)
    status = _git(root, "status", "--porcelain", *paths)
    if not commit or status is None:
        return {"commit": None, "is_dirty": None}
    return {"commit": commit, "is_dirty": bool(status)}


def _git(root: Path, *words: str) -> str | None:
    """Return what git says; None if it is missing or fails."""
    return _said(root, "git", *words)


def _said(root: Path | None, *words: str) -> str | None:
    try:
        ended = subprocess.run(words, cwd=root, check=False, capture_output=True, text=True)
    except OSError:
        return None
    return ended.stdout.strip() if ended.returncode == 0 else None


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
