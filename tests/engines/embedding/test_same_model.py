"""Whatever makes a model another one is noticed before its compiled form is used."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rag_accel.engines.embedding.same_model import ModelWatch  # noqa: E402


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
        self.register_buffer("scale", torch.ones(8))
        self.eps = 1e-5
        self.factors = {"default": [1]}
        self._active_adapter = ["one"]
        self.config = SimpleNamespace(_attention="own")
        self._cache = 0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.inner(rows) * self.scale


class Doubled(Block):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(rows)


def tree() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(50, 8), Block(), Block())


def hook(*args: object) -> None:
    """Do nothing; that it may is enough."""


CHANGES: dict[str, Callable[[torch.nn.Module], object]] = {
    "written in place": lambda m: torch.nn.init.zeros_(m[1].inner.weight),
    "trained": lambda m: [p.grad is None and p.detach().add_(1e-3) for p in m[2].parameters()],
    "other data": lambda m: setattr(m[1].inner.weight, "data", torch.zeros(8, 8)),
    "another weight": lambda m: setattr(m[1].inner, "bias", torch.nn.Parameter(torch.zeros(8))),
    "no bias": lambda m: setattr(m[1].inner, "bias", None),
    "a buffer written": lambda m: m[2].scale.fill_(2),
    "another buffer": lambda m: setattr(m[2], "scale", torch.zeros(8)),
    "loaded": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
    "another type": lambda m: m.double(),
    "another layer": lambda m: setattr(m[1], "inner", torch.nn.Linear(8, 8)),
    "a layer more": lambda m: m.append(torch.nn.Identity()),
    "a layer inside": lambda m: m[1].add_module("more", torch.nn.Identity()),
    "a hook": lambda m: m[1].inner.register_forward_hook(hook),
    "a hook before": lambda m: m[2].register_forward_pre_hook(hook),
    "other code": lambda m: setattr(m[1], "forward", torch.neg),
    "another class": lambda m: setattr(m[1], "__class__", Doubled),
    "a setting": lambda m: setattr(m[1], "eps", 0.5),
    "a setting removed": lambda m: delattr(m[1], "eps"),
    "an entry of a setting": lambda m: m[1].factors["default"].append(2),
    "arrays without equality": lambda m: m[1].factors.update(default=[torch.zeros(3)]),
    "another adapter": lambda m: m[1]._active_adapter.__setitem__(0, "other"),
    "a configuration": lambda m: setattr(m[2].config, "_attention", "other"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_changed_model_is_not_the_same(change: Callable[[torch.nn.Module], object]) -> None:
    model = tree()
    watch = ModelWatch(model)
    assert watch.is_same()
    change(model)
    assert not watch.is_same()


def test_running_a_model_changes_nothing() -> None:
    model = tree()
    watch = ModelWatch(model)
    with torch.inference_mode():
        model(torch.arange(5))
    model.eval()
    model[1]._cache, model[2].made_later = 1, "a cache"
    model[1].factors = {"default": [1]}  # an equal value
    assert watch.is_same()


def test_a_hook_for_all_modules_counts() -> None:
    watch = ModelWatch(tree())
    handle = torch.nn.modules.module.register_module_forward_hook(hook)
    assert not watch.is_same()
    handle.remove()
    assert watch.is_same()


@pytest.mark.parametrize(
    "write",
    [
        lambda weight: weight.data.mul_(2),
        lambda weight: np.multiply(found := weight.detach().numpy(), 2, out=found),
    ],
    ids=["data", "NumPy"],
)
def test_a_write_past_torchs_counter_is_not_seen(write: Callable[[torch.Tensor], object]) -> None:
    """COMPATIBILITY.md names this limit; once torch counts such writes, that sentence goes."""
    model = tree()
    watch, before = ModelWatch(model), model[1].inner.weight.clone()
    write(model[1].inner.weight)
    assert torch.equal(model[1].inner.weight, 2 * before)
    assert watch.is_same()


def test_weights_that_count_no_changes_cannot_be_watched() -> None:
    with torch.inference_mode():
        model = tree()
    with pytest.raises(RuntimeError):
        ModelWatch(model)
