"""Descriptions of the modules of a network, equal in two processes if both built the same.

The process that has the model describes it, the child describes what it has built from the
configuration and compares the two. Nothing here imports torch before it is called.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

from rag_accel.engines.compiled.child_program import NotRebuiltError

_PLAIN = (str, int, float, bool, type(None))
#: Larger collections are described by their length.
_MOST = 64
#: What a configuration says about where it came from, not about the network.
_ORIGIN = frozenset({"_name_or_path", "name_or_path", "transformers_version", "_commit_hash"})


def describe(module: Any, is_left_out: Any = None) -> list[list[Any]]:
    """Return name, class, code and attributes of each module of a tree, in terms of JSON.

    Args:
        module: the tree.
        is_left_out: a module of which nothing is told, nor of those in it.
    """
    torch = importlib.import_module("torch")
    own = vars(torch.nn.Module())
    left_out = set() if is_left_out is None else set(map(id, is_left_out.modules()))
    found: list[list[Any]] = []
    for name, part in module.named_modules(remove_duplicate=False):
        if id(part) in left_out:
            continue
        settings = {
            key: _described(value)
            for key, value in vars(part).items()
            if key not in own and not key.startswith("_") and key not in _ORIGIN
        }
        found.append([name, _name(type(part)), _described(type(part).forward), settings])
    return found


def tensors(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield all parameters and buffers by name, those that have several names several times."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def require_same(wanted: Sequence[Sequence[Any]], built: Sequence[Sequence[Any]]) -> None:
    """Compare two results of ``describe``.

    Raises:
        NotRebuiltError: if they differ; names the first module that does.
    """
    others = {name: rest for name, *rest in built}
    for name, *rest in wanted:
        if name not in others:
            raise NotRebuiltError(f"its configuration knows no module {name}")
        (kind, code, settings), (other_kind, other_code, other_settings) = rest, others[name]
        if kind != other_kind:
            raise NotRebuiltError(f"its module {name} is a {kind}, by its configuration another")
        if code != other_code:
            raise NotRebuiltError(f"forward of its class {kind} has been replaced")
        for key in sorted(settings.keys() | other_settings.keys()):
            if settings.get(key) != other_settings.get(key):
                raise NotRebuiltError(f"{key} of its module {name} is not as configured")
    if len(wanted) != len(built):
        raise NotRebuiltError("it lacks modules that its configuration asks for")


def _name(kind: Any) -> str:
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', '')}"


def _described(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, Mapping):
        return [f"{len(value)} entries", *(_pairs(value) if len(value) <= _MOST else ())]
    if isinstance(value, list | tuple):
        return [f"{len(value)} items", *(map(_described, value) if len(value) <= _MOST else ())]
    if callable(getattr(value, "to_dict", None)) and not isinstance(value, type):
        parts: dict[str, Any] = value.to_dict()
        kept = {key: part for key, part in parts.items() if key not in _ORIGIN}
        return [
            _name(type(value)),
            repr(getattr(value, "_attn_implementation", None)),
            *_pairs(kept),
        ]
    if isinstance(value, FunctionType):
        plain: Any = inspect.unwrap(value)
        code = getattr(plain, "__code__", None)
        made_of = b"" if code is None else code.co_code + repr(code.co_names).encode()
        return f"{_name(plain)} {hashlib.sha256(made_of).hexdigest()[:16]}"
    return _name(value) if isinstance(value, type) else _name(type(value))


def _pairs(table: Mapping[Any, Any]) -> list[Any]:
    return sorted([str(key), _described(value)] for key, value in table.items())
