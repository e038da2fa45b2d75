"""Packed linear layers: the same numbers, only where they pay, and nothing else touched."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from rag_accel.engines.embedding import packed_linear
from rag_accel.engines.embedding.loading import load_model
from rag_accel.engines.embedding.packed_linear import pack_linear_layers

TEXTS = ["one", "which of these words counts most here?", "a longer one " * 30]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every packed layer pay, so that a slow machine tests the same as a fast one."""
    monkeypatch.setattr(packed_linear, "_WORTH_IT", float("inf"))


@pytest.fixture
def layers() -> torch.nn.Sequential:
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(12, 7), torch.nn.GELU(), torch.nn.Linear(7, 5, bias=False)
    )


@pytest.mark.usefixtures("always")
def test_a_packed_model_gives_the_vectors_of_the_model() -> None:
    model = load_model(None, "cpu")
    expected = model.encode(TEXTS)
    assert pack_linear_layers(model) > 30
    assert np.abs(model.encode(TEXTS) - expected).max() <= 1e-6


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("shape", [(12,), (1, 12), (9, 12), (2, 3, 12), (0, 12), (2, 0, 12)])
def test_every_shape_of_input_is_computed(
    layers: torch.nn.Sequential, shape: tuple[int, ...]
) -> None:
    plain = copy.deepcopy(layers)
    assert pack_linear_layers(layers) == 2
    rows = torch.randn(shape)
    with torch.inference_mode():
        assert torch.allclose(layers(rows), plain(rows), atol=1e-6)


@pytest.mark.usefixtures("always")
def test_layers_it_does_not_know_stay(layers: torch.nn.Sequential) -> None:
    class Own(torch.nn.Linear):
        pass

    hooked = torch.nn.Linear(4, 4)
    hooked.register_forward_hook(lambda *_: None)
    half = torch.nn.Linear(4, 4, dtype=torch.bfloat16)
    model = torch.nn.ModuleList([Own(4, 4), hooked, half, layers])
    kept = list(model)[:3]
    assert pack_linear_layers(model) == 2
    assert list(model)[:3] == kept


def test_nothing_is_replaced_where_it_does_not_pay(
    layers: torch.nn.Sequential, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_linear, "_WORTH_IT", 0.0)
    _expect_untouched(layers)


@pytest.mark.usefixtures("always")
def test_nothing_is_replaced_where_the_numbers_differ(
    layers: torch.nn.Sequential, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(layer: torch.nn.Linear) -> Any:
        return lambda rows: layer(rows) * 1.001

    monkeypatch.setattr(packed_linear, "_packed", wrong)
    _expect_untouched(layers)


@pytest.mark.usefixtures("always")
def test_nothing_is_replaced_where_torch_has_no_such_kernel(
    layers: torch.nn.Sequential, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(layer: torch.nn.Linear) -> Any:
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute")

    monkeypatch.setattr(packed_linear, "_packed", missing)
    _expect_untouched(layers)


def test_a_model_without_linear_layers_is_left_alone() -> None:
    assert pack_linear_layers(torch.nn.Sequential(torch.nn.GELU())) == 0


def _expect_untouched(layers: torch.nn.Sequential) -> None:
    before = list(layers.modules())
    assert pack_linear_layers(layers) == 0
    assert list(layers.modules()) == before
