"""The network of a sentence-transformers model, built again from its configuration and traced.

A program that ``compile_process`` runs in a child: its folder has the weights, ``WEIGHTS``. So
heavy imports wait until ``convert`` is called, and of rag_accel it imports only what a child may.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rag_accel.engines.compiled.child_program import GRAPH, NotRebuiltError, limit_memory
from rag_accel.engines.compiled.network_description import describe, require_same, tensors

WEIGHTS = "weights.safetensors"


def convert(folder: Path, spec: Mapping[str, Any]) -> None:
    """Build, compare, trace and save the network of a folder.

    Raises:
        NotRebuiltError: if it is not what the parent has described.
    """
    warnings = importlib.import_module("warnings")
    warnings.simplefilter("ignore")
    torch = importlib.import_module("torch")
    ov = importlib.import_module("openvino")
    decoders = importlib.import_module("openvino.frontend.pytorch.ts_decoder")
    torch.set_num_threads(1)
    parts = _built(torch, spec)
    limit_memory(spec["memory_bytes"])
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
