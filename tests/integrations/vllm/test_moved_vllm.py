"""A vLLM whose interface has moved is named when it loads the connector."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

import pytest

from rag_accel.errors import ConfigError


def test_a_vllm_of_another_interface_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = ModuleType("vllm")
    moved.__path__ = []  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", moved)
    monkeypatch.setitem(sys.modules, "vllm.config", ModuleType("vllm.config"))
    monkeypatch.delitem(sys.modules, "vllm_rag_accel.connector", raising=False)
    with pytest.raises(ConfigError, match=r"vLLM 0\.32") as caught:
        import_module("vllm_rag_accel.connector")
    assert "VllmConfig" in str(caught.value)
