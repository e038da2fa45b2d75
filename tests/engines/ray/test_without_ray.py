"""Engines in actors where Ray is missing, or this process has joined no cluster."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace

import pytest

from rag_accel.engines.ray import RayEngine
from rag_accel.errors import ConfigError


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_extra_is_named() -> None:
    with pytest.raises(ImportError, match=r"rag-accel\[ray\]") as raised:
        RayEngine("embedding", {"model": "/models/minilm"})
    assert raised.value.name == "ray"


def test_a_package_that_ray_itself_lacks_is_named_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(name: str) -> object:
        raise ModuleNotFoundError("No module named 'msgpack'", name="msgpack")

    monkeypatch.setattr("rag_accel.engines.ray.engine.importlib.import_module", lacking)
    with pytest.raises(ModuleNotFoundError, match="msgpack"):
        RayEngine("embedding")


def test_no_cluster_is_started_for_a_process_that_joined_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Any call beyond the question would start a cluster: this stand-in has none.
    ray = SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(ConfigError, match="connected to no Ray cluster") as raised:
        RayEngine("embedding", {"model": "/models/minilm"})
    assert 'ray.init(address="auto")' in str(raised.value)


def test_an_unknown_engine_is_named_before_a_cluster_is_looked_for() -> None:
    with pytest.raises(ConfigError, match="no_such_engine"):
        RayEngine("no_such_engine")
