"""Checks that a model has not changed, and that two models are the same."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from operator import attrgetter, is_
from typing import Any

from rag_accel.engines.embedding.models import has_plain_encode, is_plain_model

#: What a module holds by name: one of these replaced is another model.
_TABLES = ("_modules", "_parameters", "_buffers")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
#: Attributes that results do not depend on, or that are looked at elsewhere.
_NO_SETTINGS = frozenset(
    {"name_or_path", "generation_config", "warnings_issued", "deprecation_warnings"}
)
#: How the usual library keeps which adapters are active.
_ADAPTERS = frozenset({"_active_adapter", "_disable_adapters"})
#: What a configuration says about where it came from, not about the network.
_ORIGIN = frozenset({"_name_or_path", "name_or_path", "transformers_version", "_commit_hash"})
_PLAIN, _COLLECTIONS = (str, int, float, bool, type(None)), (list, tuple, dict, set)
#: Larger collections are tables, such as a vocabulary: too long to compare each time.
_MOST = 64
#: Parts of a fast tokenizer that decide which tokens a text has. Of its vocabulary, which takes
#: some thirty milliseconds to write out, only the size is compared.
_PARTS = ("normalizer", "pre_tokenizer", "post_processor")
_ALL = range(3)
_version, _forward = attrgetter("_version"), attrgetter("forward")


class ModelWatch:
    """A watch for changes of a model that go through torch.

    Seen are modules, parameters and buffers that were replaced, added or removed, weights that
    were moved, cast or written in place, hooks, methods put over ``forward`` of a module or of its
    class, another class, other active adapters, and settings of modules and configurations. Not
    seen are weights written past torch's counter, as by ``weight.data.mul_(2)`` or through NumPy:
    to find those, all weights would have to be read.

    Args:
        model: the module tree.
        own_settings: whether settings of the root count, too, and not only those of its parts.
        tokenizer: what makes tokens for it, if that counts, too. Not seen is a vocabulary of the
            same size that was changed in place.

    Raises:
        RuntimeError: if a weight counts no changes, as inference tensors do.
    """

    def __init__(self, model: Any, *, own_settings: bool = True, tokenizer: Any = None) -> None:
        torch = importlib.import_module("torch")
        self._has_global_hook = torch.nn.modules.module._has_any_global_hook
        self._address = torch.Tensor.data_ptr
        self._tokenizer = tokenizer
        self.modules = tuple(model.modules())
        self._own: list[Any] = list(map(vars, self.modules))
        self._tables = [own[name] for own in self._own for name in _TABLES]
        self._hooks = [own[name] for own in self._own for name in _HOOKS]
        self._kinds = set(map(type, self.modules))
        held = [(table, *entry) for table in self._tables for entry in table.items()]
        weights = {id(value): value for *_, value in held if isinstance(value, torch.Tensor)}
        self._weights = list(weights.values())
        # They keep the memory that the weights had: no other tensor can come to that address.
        self._aliases = [weight.detach() for weight in self._weights]
        found = [
            *held,
            *_settings(self._own[not own_settings :], _NO_SETTINGS.union(vars(torch.nn.Module()))),
            *_settings([getattr(tokenizer, "__dict__", {})], _NO_SETTINGS),
            *_settings(_configurations(self._own), frozenset(), hidden=True),
        ]
        # Values are compared with copies, since they may be written in place; all else must be
        # the same objects.
        objects = [entry for entry in found if not _is_value(entry[2])]
        values = [entry for entry in found if _is_value(entry[2])]
        self._places, self._names, self._objects = ([entry[at] for entry in objects] for at in _ALL)
        self._owners, self._keys, plain = ([entry[at] for entry in values] for at in _ALL)
        self._values = list(map(_copied, plain))
        self._state = self._look()

    def is_same(self) -> bool:
        """Tell whether nothing has changed; from any thread."""
        # Loops without a line of Python for each entry: this runs for every micro-batch.
        try:
            return (
                all(map(is_, map(dict.get, self._places, self._names), self._objects))
                and list(map(dict.get, self._owners, self._keys)) == self._values
                and self._look() == self._state
                and not self._has_global_hook()
                and not any(self._hooks)
                and not any(map(dict.__contains__, self._own, repeat("forward")))
            )
        except Exception:  # such as arrays in a list, which have no equality
            return False

    def _look(self) -> list[Any]:
        return [
            list(map(len, self._tables)),
            list(map(_version, self._weights)),
            list(map(self._address, self._weights)),
            list(map(type, self.modules)),
            list(map(_forward, self._kinds)),
            None if self._tokenizer is None else _tokens_state(self._tokenizer),
        ]


def _settings(
    owners: Iterable[dict[str, Any]], without: frozenset[str], *, hidden: bool = False
) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield attributes by owner and name; those with an underscore where they count."""
    for own in owners:
        for name, value in list(own.items()):
            if name not in without and (hidden or name[0] != "_" or name in _ADAPTERS):
                yield own, name, value


def _configurations(modules: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    configs = {id(config): config for own in modules if (config := own.get("config")) is not None}
    return [vars(config) for config in configs.values() if hasattr(config, "__dict__")]


def _is_value(value: Any) -> bool:
    is_small = isinstance(value, _COLLECTIONS) and len(value) <= _MOST
    return is_small or isinstance(value, _PLAIN)


def _copied(value: Any) -> Any:
    """Return a collection with copies of those in it; other values as they are."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return list(map(_copied, value))
    return set(value) if isinstance(value, set) else value


def _tokens_state(tokenizer: Any) -> list[Any]:
    """Return a tokenizer's library and the state of its parts, some microseconds."""
    backend: Any = getattr(tokenizer, "_tokenizer", None)
    count: Any = getattr(backend, "get_vocab_size", int)
    return [backend, count(), *(_written(getattr(backend, name, None)) for name in _PARTS)]


def _written(part: Any) -> Any:
    """Return the state of a part; one that cannot be written out counts by its kind alone."""
    try:
        return None if part is None else part.__getstate__()
    except Exception:  # a part written in Python has no form of its own
        return type(part)


def watch_of(model: Any) -> Callable[[], Callable[[], bool]] | None:
    """Return a function that starts a watch of a model; None where no change would be seen.

    Seen is what ``ModelWatch`` sees of a ``SentenceTransformer`` and its tokenizer.
    """
    if not is_plain_model(model):
        return None

    def watch() -> Callable[[], bool]:
        try:
            seen = ModelWatch(model, tokenizer=getattr(model, "tokenizer", None))
        except RuntimeError:  # weights that count no changes
            return lambda: False
        return lambda: has_plain_encode(model) and seen.is_same()

    return watch


def difference(model: Any, other: Any) -> str | None:
    """Return the difference of two sentence-transformers models; None if they compute the same.

    Compared are the kinds of their modules, all weights bit by bit, the length at which texts are
    cut, truncation of vectors, and the vocabularies.
    """
    import torch

    if model is other:
        return None
    if [type(part) for part in model.modules()] != [type(part) for part in other.modules()]:
        return "other modules"
    weights, others = model.state_dict(), other.state_dict()
    if weights.keys() != others.keys():
        return "other weights"
    for name, weight in weights.items():
        if weight.dtype != others[name].dtype or not torch.equal(weight.cpu(), others[name].cpu()):
            return f"other weights ({name})"
    for setting in ("max_seq_length", "truncate_dim"):
        if getattr(model, setting, None) != getattr(other, setting, None):
            return f"another {setting}"
    return None if _vocabulary(model) == _vocabulary(other) else "another vocabulary"


def model_digest(model: Any) -> str:
    """Return a digest of a model's networks, settings, weights and buffers; reads all of them."""
    import torch

    digest, base = hashlib.sha256(), _NO_SETTINGS.union(vars(torch.nn.Module()))
    for part in (getattr(child, "model", child) for child in model.children()):
        for name, module in part.named_modules():
            settings = sorted(
                (key, _described(value)) for _, key, value in _settings([vars(module)], base)
            )
            digest.update(f"{name} {_described(type(module))} {settings}".encode())
    for tensor in tensors(model):
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def tensors(model: Any) -> Iterator[Any]:
    """Yield the parameters and buffers of a module tree, each once."""
    yield from model.parameters()
    yield from model.buffers()


def _described(value: Any) -> Any:
    """Return a value as text that is the same in every process."""
    if isinstance(value, _PLAIN):
        return repr(value)
    read: Any = None if isinstance(value, type) else getattr(value, "to_dict", None)
    if callable(read):
        table: Any = read()
        return sorted((key, _described(item)) for key, item in table.items() if key not in _ORIGIN)
    if isinstance(value, dict | list | tuple) and len(value) <= _MOST:
        entries = sorted(value.items(), key=str) if isinstance(value, dict) else enumerate(value)
        return [(str(key), _described(item)) for key, item in entries]
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _vocabulary(model: Any) -> Any:
    read = getattr(getattr(model, "tokenizer", None), "get_vocab", None)
    return None if read is None else read()
