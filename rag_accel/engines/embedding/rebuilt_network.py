"""The network of a model, built again from its configuration and traced: a program of its own.

``compile_process`` runs this file by its path in a fresh, isolated interpreter. So it imports
nothing of rag_accel, and its heavy imports wait until its folder has said where they are; both
processes call ``describe`` and the child compares the results. Tracing keeps its state in the
process, for all threads and for ever; here that ends with the process. The folder holds
``spec.json`` and ``weights.safetensors``; added are ``model.xml`` and ``model.bin``, or
``failed.txt`` with the reason.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import select
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

SPEC, WEIGHTS, GRAPH, FAILED = "spec.json", "weights.safetensors", "model.xml", "failed.txt"
#: exit status of a child that could not get memory
OUT_OF_MEMORY = 4
#: exit status of a child that says in ``FAILED`` what is wrong
REFUSED = 3
#: how C++, torch and the system say that there is none
_NO_MEMORY = ("bad_alloc", "can't allocate memory", "Cannot allocate memory")
#: how often a child looks whether its parent lives, in seconds
_LOOK_S = 0.5
#: how often it tries to remove a folder that grows meanwhile
_MOST_TRIES = 100
_PLAIN = (str, int, float, bool, type(None))
#: Larger collections are described by their length.
_MOST = 64
#: What a configuration says about where it came from, not about the network.
_ORIGIN = frozenset({"_name_or_path", "name_or_path", "transformers_version", "_commit_hash"})


class NotRebuiltError(Exception):
    """The error of a network that its configuration does not build; the message says where."""


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


def main(folder: Path) -> int:
    """Build, compare, trace and save the network of a folder; return an exit status."""
    spec = json.loads((folder / SPEC).read_text())
    _end_with(spec["parent"], folder)
    # After the standard library, which no file of the user's may shadow.
    sys.path.extend(spec["path"])
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    try:
        _convert(folder, spec)
    except MemoryError:
        return OUT_OF_MEMORY
    except Exception as error:
        if any(word in str(error) for word in _NO_MEMORY):
            return OUT_OF_MEMORY
        text = str(error) if isinstance(error, NotRebuiltError) else f"not traced: {error}"
        (folder / FAILED).write_text(text)
        return REFUSED
    return 0


def _end_with(parent: int, folder: Path) -> None:
    """End this process, and remove its folder, as soon as its parent has ended.

    Then the pipe to it is closed, unless a forked process holds it too: that has another parent.
    """

    def watch() -> None:
        while os.getppid() == parent and not select.select([0], [], [], _LOOK_S)[0]:
            pass
        _clear(folder)
        os._exit(REFUSED)

    threading.Thread(target=watch, daemon=True).start()


def await_start(parent: int, folder: Path) -> None:
    """Wait until the parent has filled the folder; if it ends before, remove it and end, too."""
    while os.getppid() == parent:
        if select.select([0], [], [], _LOOK_S)[0]:
            if os.read(0, 1):
                return
            break
    _clear(folder)
    os._exit(REFUSED)


def _clear(folder: Path) -> None:
    """Remove a folder, also while the main thread puts something into it."""
    for _ in range(_MOST_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return


def _limit_memory(more_bytes: int) -> None:
    """Bound the further memory of this process, and let it leave no core file."""
    try:
        resource = importlib.import_module("resource")
        has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        wanted = has + more_bytes
        if hard == resource.RLIM_INFINITY or wanted < hard:
            resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    except (ImportError, OSError, ValueError):
        return  # a system without such limits


def _convert(folder: Path, spec: Mapping[str, Any]) -> None:
    warnings = importlib.import_module("warnings")
    warnings.simplefilter("ignore")
    torch = importlib.import_module("torch")
    ov = importlib.import_module("openvino")
    decoders = importlib.import_module("openvino.frontend.pytorch.ts_decoder")
    torch.set_num_threads(1)
    parts = _built(torch, spec)
    _limit_memory(spec["memory_bytes"])
    require_same(spec["modules"], json.loads(json.dumps(describe(parts, _words(parts)))))
    _fill(torch, parts, folder, spec["tensors"])
    inputs: list[str] = spec["inputs"]
    twin = _from_embeddings(torch, parts, inputs, spec["outputs"])
    ids = torch.ones((2, 3), dtype=torch.int64)
    with torch.no_grad():
        rows = torch.rand((2, 3, spec["dim"]), generator=torch.Generator().manual_seed(0))
        example = (rows, *(torch.ones_like(ids) for _ in inputs))
        decoder = decoders.TorchScriptPythonDecoder(twin, example_input=example)
    frontend = ov.frontend.FrontEndManager().load_by_framework("pytorch")
    model = frontend.convert(frontend.load(decoder))
    places, *others = (input_.get_node() for input_ in model.inputs)
    places.set_partial_shape(ov.PartialShape([-1, -1, spec["dim"]]))
    for other in others:
        other.set_partial_shape(ov.PartialShape([-1, -1]))
        other.set_element_type(ov.Type.i64)
    model.validate_nodes_and_infer_types()
    ov.save_model(model, folder / GRAPH, compress_to_fp16=False)


def _words(parts: Any) -> Any:
    return parts[0].get_input_embeddings()


def _built(torch: Any, spec: Mapping[str, Any]) -> Any:
    """Build the modules without memory for their weights."""
    config = _found(spec["config_class"]).from_dict(spec["config"])
    with torch.device("meta"):
        transformer = _found(spec["class"])._from_config(
            config, attn_implementation=spec["attention"], dtype=torch.float32
        )
        rest = [_found(name)(**_arguments(given)) for name, given in spec["rest"]]
    return torch.nn.ModuleList([transformer, *rest]).eval()


def _found(name: str) -> Any:
    module, _, kind = name.rpartition(".")
    return getattr(importlib.import_module(module), kind)


def _arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of a module of sentence-transformers: a name of an activation made one."""
    name = given.get("activation_function")
    return {**given, "activation_function": _found(name)()} if name is not None else dict(given)


def _fill(torch: Any, parts: Any, folder: Path, names: Mapping[str, str]) -> None:
    """Put the weights into their places, which are the same in both processes.

    The word embeddings have none: their rows come in from outside. They are zeros that no page of
    memory is taken for.
    """
    weights = importlib.import_module("safetensors.torch").load_file(folder / WEIGHTS)
    for module in _words(parts).modules():
        for name, tensor in module._parameters.items():
            zeros = torch.zeros(tensor.shape, dtype=tensor.dtype)
            module._parameters[name] = torch.nn.Parameter(zeros, requires_grad=False)
    for name, tensor in list(tensors(parts)):
        if tensor.device.type != "meta":
            continue
        if name not in names:
            raise NotRebuiltError(f"it has no {name}, which its configuration asks for")
        value = weights[names[name]]
        if value.shape != tensor.shape or value.dtype != tensor.dtype:
            raise NotRebuiltError(f"its {name} has another shape or type than configured")
        owner, _, last = name.rpartition(".")
        module = parts.get_submodule(owner)
        if last in module._parameters:
            module._parameters[last] = torch.nn.Parameter(value, requires_grad=False)
        else:
            module._buffers[last] = value
    unknown = names.keys() - {name for name, _ in tensors(parts)}
    if unknown:
        raise NotRebuiltError(f"its configuration knows no {min(unknown)}")


def _from_embeddings(torch: Any, parts: Any, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """Return a module that takes rows of word embeddings instead of the ids of their tokens."""

    class FromEmbeddings(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = parts

        def forward(self, rows: Any, *others: Any) -> tuple[Any, ...]:
            named = dict(zip(inputs, others, strict=True))
            first, *rest = self.parts
            tokens = first(inputs_embeds=rows, **named).last_hidden_state
            features = {**named, "token_embeddings": tokens}
            for module in rest:
                features = module(features)
            return tuple(features[name] for name in outputs)

    return FromEmbeddings().eval()


if __name__ == "__main__":
    # At once: libraries may crash where they are torn down, and what was made is saved.
    await_start(int(sys.argv[2]), Path(sys.argv[1]))
    os._exit(main(Path(sys.argv[1])))
