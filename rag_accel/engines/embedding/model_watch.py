"""Watches for changes of a model, its settings and its tokenizer.

A compiled model must never be used once its weights have changed. A full comparison takes some
fifty microseconds for a hundred weights, so it is done whenever texts are prepared.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from operator import attrgetter, eq, is_
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.modules import module as torch_modules

_PLAIN = (str, int, float, bool, type(None))
#: Whether it trains is looked at elsewhere.
_NO_SETTINGS = frozenset({"training"})
#: Larger collections are tables, such as a vocabulary: too long to compare each time.
_MOST = 64


class Settings:
    """An object's attributes as they were, for comparison.

    Plain values and small collections are compared with copies, since these may be written in
    place; all others must be the same objects.

    Args:
        owner: the object.
    """

    def __init__(self, owner: Any) -> None:
        self._own = vars(owner)
        kept = {
            name: value
            for name, value in list(self._own.items())
            if name not in _NO_SETTINGS and not name.startswith("_")
        }
        self._values = {name: _copied(value) for name, value in kept.items() if _is_plain(value)}
        self._objects = {name: value for name, value in kept.items() if name not in self._values}

    def are_same(self) -> bool:
        """Tell whether none has changed."""
        now = self._own.get
        try:
            return all(map(is_, map(now, self._objects), self._objects.values())) and all(
                map(eq, map(now, self._values), self._values.values())
            )
        except Exception:  # such as arrays in a list, which have no equality: who wrote them knows
            return False


def _is_plain(value: Any) -> bool:
    is_small = isinstance(value, list | tuple | dict | set) and len(value) <= _MOST
    return is_small or isinstance(value, _PLAIN)


def _is_collection(value: Any) -> bool:
    return isinstance(value, list | tuple | dict | set)


def _copied(value: Any) -> Any:
    """Return a collection with copies of those in it; other values as they are."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return list(map(_copied, value))
    return set(value) if isinstance(value, set) else value


#: Components of each weight that are compared, spread evenly.
_SAMPLES = 16
#: What a module holds by name: one of these replaced is another model.
_TABLES = ("_modules", "_parameters", "_buffers")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
#: Numbers of as many bytes: a NaN equals itself, and NumPy knows no bfloat16.
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_version = attrgetter("_version")
_forward = attrgetter("forward")
#: What every module has, looked at above, and the place that a model was loaded from.
_BASE = frozenset({*vars(torch.nn.Module()), "name_or_path"})


class ModelWatch:
    """A watch for changes of a module tree, its weights and its code.

    Seen are modules, parameters and buffers that were replaced, added or removed, hooks, methods
    put over ``forward`` of a module or of its class, another class, settings of every module that
    do not begin with an underscore, and weights written in place: by torch's own counter, by their
    address, and for writes past both (``weight.data.mul_(2)``) by a sample of each weight's
    components. Not seen is such a write to a few components that are not among them, sixteen of
    each weight: to read all of them would take longer than to run the model. Of weights on a CUDA
    device they are neighbours, which are read together; of those on other devices there is none.

    Args:
        model: the module tree.

    Raises:
        RuntimeError: if a weight counts no changes, as inference tensors do.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.modules = tuple(model.modules())
        self._own = tuple(map(vars, self.modules))
        self._tables = tuple(own[name] for own in self._own for name in _TABLES)
        self._sizes = list(map(len, self._tables))
        entries = [(table, *entry) for table in self._tables for entry in table.items()]
        self._places = tuple(table for table, _, _ in entries)
        self._names = tuple(name for _, name, _ in entries)
        self._values = tuple(value for _, _, value in entries)
        self._hooks = tuple(own[name] for own in self._own for name in _HOOKS)
        self._settings = tuple(map(Settings, model.children()))
        self._classes = tuple(map(type, self.modules))
        self._kinds = tuple(set(self._classes))
        self._forwards = tuple(map(_forward, self._kinds))
        outer = {id(model), *map(id, model.children())}
        inner = [module for module in self.modules if id(module) not in outer]
        settings = [
            (own, name, value)
            for own in map(vars, inner)
            for name, value in own.items()
            if name not in _BASE and not name.startswith("_")
        ]
        simple = [setting for setting in settings if not _is_collection(setting[2])]
        self._holders = tuple(own for own, _, _ in simple)
        self._keys = tuple(name for _, name, _ in simple)
        self._held = tuple(value for _, _, value in simple)
        self._small = [
            (own, name, _copied(value))
            for own, name, value in settings
            if _is_collection(value) and len(value) <= _MOST
        ]
        weights = {id(value): value for value in self._values if isinstance(value, torch.Tensor)}
        self._weights = tuple(weights.values())
        # They keep the memory that the weights had: no other tensor can come to that address.
        self._aliases = tuple(weight.detach() for weight in self._weights)
        self._versions = list(map(_version, self._weights))
        self._addresses = list(map(torch.Tensor.data_ptr, self._weights))
        self._watched = list(map(_spread, self._aliases))
        self._on_devices = _runs_by_device(self._aliases)
        self._sample = self._look()

    def is_same(self) -> bool:
        """Tell whether nothing has changed; from any thread."""
        # Loops without a line of Python for each entry: this runs for every micro-batch.
        return (
            all(map(is_, map(dict.get, self._places, self._names), self._values))
            and list(map(len, self._tables)) == self._sizes
            and list(map(_version, self._weights)) == self._versions
            and list(map(torch.Tensor.data_ptr, self._weights)) == self._addresses
            and all(settings.are_same() for settings in self._settings)
            and self._has_same_settings()
            and not self._runs_other_code()
            and self._look() == self._sample
        )

    def _has_same_settings(self) -> bool:
        try:
            return all(map(is_, map(dict.get, self._holders, self._keys), self._held)) and all(
                own.get(name) == value for own, name, value in self._small
            )
        except Exception:  # such as arrays in a list, which have no equality
            return False

    def _runs_other_code(self) -> bool:
        return (
            not all(map(is_, map(type, self.modules), self._classes))
            or not all(map(is_, map(_forward, self._kinds), self._forwards))
            or bool(torch_modules._has_any_global_hook())
            or any(self._hooks)
            or any(map(dict.__contains__, self._own, repeat("forward")))
        )

    def _look(self) -> bytes:
        here = [np.concatenate(self._watched)] if self._watched else []
        there = [torch.cat(runs).cpu().numpy() for runs in self._on_devices]
        return b"".join(part.tobytes() for part in (*here, *there))


#: Parts of a fast tokenizer that decide which tokens a text has. Its vocabulary is not looked at,
#: which takes some thirty milliseconds to write out; how many tokens were added to it is.
_PARTS = ("normalizer", "pre_tokenizer", "post_processor")


class TokenizerWatch:
    """A check of whether texts still become the tokens that they became; some microseconds.

    Seen are the longest text, the sides of truncation and padding, lower case, another tokenizer,
    another number of tokens, and the normaliser, splitter and template of a fast tokenizer. Not
    seen is a vocabulary of the same size that was changed in place.

    Args:
        model: a ``SentenceTransformer``.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        # They are kept, so that no other object can come to their places.
        self._tokenizer, self._backend, self._state = self._look()

    def is_same(self) -> bool:
        """Tell whether nothing has changed; from any thread."""
        tokenizer, backend, state = self._look()
        is_own = tokenizer is self._tokenizer and backend is self._backend
        return is_own and state == self._state

    def _look(self) -> tuple[Any, Any, tuple[Any, ...]]:
        tokenizer = getattr(self._model, "tokenizer", None)
        backend: Any = getattr(tokenizer, "_tokenizer", None)
        length = getattr(self._model, "max_seq_length", None)
        own = (
            getattr(tokenizer, name, None)
            for name in ("model_max_length", "truncation_side", "padding_side", "do_lower_case")
        )
        parts = (_written(getattr(backend, name, None)) for name in _PARTS)
        count: Any = getattr(backend, "get_vocab_size", None)
        size = None if count is None else count()
        return tokenizer, backend, (length, size, *own, *parts)


def _written(part: Any) -> Any:
    """Return the state of a part; one that cannot be written out counts by its kind alone."""
    try:
        return None if part is None else part.__getstate__()
    except Exception:  # a part written in Python has no form of its own
        return type(part)


def _spread(weight: torch.Tensor) -> NDArray[np.signedinteger]:
    """Return a view of the bits of some components, which shows later writes."""
    is_seen = weight.is_contiguous() and weight.device.type == "cpu"
    flat = weight.view(-1) if is_seen else weight.new_empty(0, device="cpu")
    bits = flat.view(_BITS[weight.element_size()])
    return bits[:: max(1, len(bits) // _SAMPLES)].numpy()


def _runs_by_device(weights: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return views of the bytes in the middle of each weight on a CUDA device, by device.

    Runs of neighbours are gathered by one kernel for a hundred weights, spread components by one
    kernel each.
    """
    found: dict[torch.device, list[torch.Tensor]] = {}
    for weight in weights:
        if weight.is_contiguous() and weight.device.type == "cuda":
            start = max(0, (weight.numel() - _SAMPLES) // 2)
            run = weight.view(-1)[start : start + _SAMPLES].view(torch.uint8)
            found.setdefault(weight.device, []).append(run)
    return list(found.values())
