"""The network of a sentence-transformers model, traced for OpenVINO.

A program that ``compile_process`` runs in a child: its folder has the modules as torch saves them,
``NETWORK``. So heavy imports wait until ``convert`` is called, and of rag_accel it imports only
what a child may.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rag_accel.engines.compiled.child_program import GRAPH, limit_memory

NETWORK = "network.pt"


def convert(folder: Path, spec: Mapping[str, Any]) -> None:
    """Load, trace and save the network of a folder."""
    warnings = importlib.import_module("warnings")
    warnings.simplefilter("ignore")
    torch = importlib.import_module("torch")
    ov = importlib.import_module("openvino")
    decoders = importlib.import_module("openvino.frontend.pytorch.ts_decoder")
    torch.set_num_threads(1)
    # Pickled by the parent, into a folder that nobody else can write to.
    parts = torch.load(folder / NETWORK, weights_only=False)
    limit_memory(spec["memory_bytes"])
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
