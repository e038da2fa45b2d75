"""Graphs that were converted once in this process of tests, for all tests of the same weights.

A conversion imports torch in a child, which takes seconds; tests convert the same two models over
and over. What a child makes follows from what it is told and from the weights alone.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from rag_accel.engines.embedding.compile_process import convert
from rag_accel.engines.embedding.rebuilt_network import GRAPH, WEIGHTS

_kept: dict[str, Path] = {}


def use(monkeypatch: pytest.MonkeyPatch, into: Any) -> None:
    """Have a module that converts models take what was converted before."""
    monkeypatch.setattr(into, "convert", _from_cache(convert))


def _from_cache(real: Callable[..., None]) -> Callable[..., None]:
    def cached(folder: Path, spec: Mapping[str, Any], weights_bytes: int) -> None:
        told = json.dumps(spec, sort_keys=True, default=str).encode()
        key = sha256(told + sha256((folder / WEIGHTS).read_bytes()).digest()).hexdigest()
        if key not in _kept:
            real(folder, spec, weights_bytes)
            place = Path(tempfile.mkdtemp(prefix="rag-accel-tests-"))
            for path in folder.glob(f"{Path(GRAPH).stem}.*"):
                shutil.copy(path, place)
            _kept[key] = place
        for path in _kept[key].iterdir():
            shutil.copy(path, folder)

    return cached


def forget() -> None:
    """Delete all that is kept."""
    for place in _kept.values():
        shutil.rmtree(place, ignore_errors=True)
    _kept.clear()
