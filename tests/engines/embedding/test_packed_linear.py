"""Packed linear weights: the same numbers, only where they pay, and never of a changed model."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rag_accel.engines.embedding import packed_linear
from rag_accel.engines.embedding.loading import load_model
from rag_accel.engines.embedding.packed_linear import PackedLinears, packed_linears
from rag_accel.engines.embedding.sentence_encoder import SentenceEncoder

TEXTS = ["one", "which of these words counts most here?", "a longer one " * 30]
LIMIT = 2**28


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let packing pay everywhere, so that a slow machine tests the same as a fast one."""
    monkeypatch.setattr(packed_linear, "_WORTH_IT", float("inf"))


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Note the shape of the rows of each packed product."""
    seen: list[tuple[int, ...]] = []
    product = packed_linear._product

    def noted(rows: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.append(tuple(rows.shape))
        return product(rows, *rest)

    monkeypatch.setattr(packed_linear, "_product", noted)
    return seen


@pytest.fixture
def layers() -> torch.nn.Sequential:
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(12, 7), torch.nn.GELU(), torch.nn.Linear(7, 5, bias=False)
    )


def test_a_packed_model_gives_the_vectors_of_the_model() -> None:
    model = load_model(None, "cpu")
    packed = packed_linears(model, LIMIT)
    assert packed is not None
    expected = model.encode(TEXTS)
    with packed.used():
        found = model.encode(TEXTS)
    assert np.abs(found - expected).max() <= 1e-6
    assert np.array_equal(model.encode(TEXTS), expected)


@pytest.mark.parametrize("shape", [(12,), (1, 12), (9, 12), (2, 3, 12), (0, 12), (2, 0, 12)])
def test_every_shape_of_input_is_computed(
    layers: torch.nn.Sequential, shape: tuple[int, ...], products: list[tuple[int, ...]]
) -> None:
    packed = _packed(layers)
    products.clear()
    rows = torch.randn(shape)
    with torch.inference_mode():
        expected = layers(rows)
        with packed.used():
            assert torch.allclose(layers(rows), expected, atol=1e-6)
    assert len(products) == (2 if rows.numel() else 0)


def test_other_threads_and_gradients_stay_with_torch(
    layers: torch.nn.Sequential, products: list[tuple[int, ...]]
) -> None:
    packed = _packed(layers)
    products.clear()
    with packed.used():
        layers(torch.ones(2, 12)).sum().backward()
        other = threading.Thread(target=_run, args=(layers,))
        other.start()
        other.join()
    assert layers[0].weight.grad is not None
    assert products == []


def _scale_in_place(layers: torch.nn.Sequential) -> None:
    with torch.no_grad():
        layers[0].weight.mul_(2)


def _scale_behind_the_counter(layers: torch.nn.Sequential) -> None:
    layers[0].weight.data.mul_(2)


def _put_other_data(layers: torch.nn.Sequential) -> None:
    layers[0].weight.data = layers[0].weight.data * 2


def _put_another_parameter(layers: torch.nn.Sequential) -> None:
    layers[0].weight = torch.nn.Parameter(layers[0].weight.detach() * 2)


def _put_another_layer(layers: torch.nn.Sequential) -> None:
    layers[0] = torch.nn.Linear(12, 7)


def _load(layers: torch.nn.Sequential) -> None:
    layers.load_state_dict({name: 2 * one for name, one in layers.state_dict().items()})


def _hook(layers: torch.nn.Sequential) -> None:
    layers[0].register_forward_hook(lambda *called: 2 * called[2])


@pytest.mark.parametrize(
    "change",
    [
        _scale_in_place,
        _scale_behind_the_counter,
        _put_other_data,
        _put_another_parameter,
        _put_another_layer,
        _load,
        _hook,
    ],
)
def test_a_model_that_was_changed_gives_its_own_numbers(
    layers: torch.nn.Sequential, change: Callable[[torch.nn.Sequential], None]
) -> None:
    packed = _packed(layers)
    before = _run(layers)
    change(layers)
    expected = _run(layers)
    assert not torch.allclose(expected, before, atol=1e-3)
    with packed.used():
        assert torch.allclose(_run(layers), expected, atol=1e-6)


def test_layers_it_does_not_know_stay_with_torch(products: list[tuple[int, ...]]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, dtype=torch.float64), torch.nn.GELU())
    assert packed_linears(model, LIMIT) is None
    assert products == []


def test_a_model_larger_than_the_limit_is_left_alone(layers: torch.nn.Sequential) -> None:
    total = sum(layer.weight.nbytes for layer in (layers[0], layers[2]))
    assert packed_linears(layers, total - 1) is None
    assert packed_linears(layers, total) is not None


def test_nothing_is_packed_where_it_does_not_pay(
    layers: torch.nn.Sequential, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_linear, "_WORTH_IT", 0.0)
    assert packed_linears(layers, LIMIT) is None


def test_nothing_is_packed_where_the_numbers_differ(
    layers: torch.nn.Sequential, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = packed_linear._product
    monkeypatch.setattr(packed_linear, "_product", lambda *given: product(*given) * 1.001)
    assert packed_linears(layers, LIMIT) is None


def test_nothing_is_packed_where_torch_has_no_such_kernel(
    layers: torch.nn.Sequential, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(weight: torch.Tensor) -> Any:
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute")

    monkeypatch.setattr(packed_linear, "_pack", missing)
    assert packed_linears(layers, LIMIT) is None


@pytest.mark.parametrize("limit", [0, LIMIT])
def test_an_encoder_packs_once_and_only_if_it_may(
    limit: int, products: list[tuple[int, ...]]
) -> None:
    model = load_model(None, "cpu")
    encoder = SentenceEncoder(model, packed_limit=limit)
    prepared = encoder.prepare(TEXTS, "query")
    found = prepared.encode([0, 1, 2])
    assert bool(products) == bool(limit)
    assert np.abs(found - model.encode(TEXTS)).max() <= 1e-6


def _packed(layers: torch.nn.Sequential) -> PackedLinears:
    packed = packed_linears(copy.copy(layers), LIMIT)
    assert packed is not None
    return packed


def _run(layers: torch.nn.Sequential) -> torch.Tensor:
    with torch.inference_mode():
        return layers(torch.linspace(-1, 1, 24).view(2, 12))
