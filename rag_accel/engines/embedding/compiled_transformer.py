"""A sentence-transformers model compiled by OpenVINO, from its own weights.

torch runs a small transformer as some hundred and fifty operators, each called from Python;
compiled, it is one call that releases the interpreter lock, on kernels chosen for the processor.
Compiled is everything after the look-up of the word embeddings, with pooling and normalisation.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch

from rag_accel.engines.compiled.child_program import GRAPH
from rag_accel.engines.compiled.compile_process import convert, private_folder, require_time
from rag_accel.engines.compiled.compiled_forms import CompiledForms, openvino
from rag_accel.engines.compiled.eight_bits import to_eight_bits
from rag_accel.engines.compiled.network_description import describe, tensors
from rag_accel.engines.embedding import rebuilt_network
from rag_accel.engines.embedding.model_watch import ModelWatch
from rag_accel.engines.embedding.rebuilt_network import WEIGHTS
from rag_accel.engines.embedding.runtime import Output, Tables

#: Most bytes that the weights of all forms of a model may take besides its own.
COMPILED_LIMIT = 2**30
#: Forms that are always made: for all threads and for one.
_LEAST_FORMS = 2
_SETTINGS = {
    "f32": {"INFERENCE_PRECISION_HINT": "f32"},
    "bf16": {"INFERENCE_PRECISION_HINT": "bf16"},
    "int8": {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "128"},
}
_INPUTS = ("attention_mask", "token_type_ids")
_KNOWN = frozenset({"Pooling", "Normalize", "Dense", "LayerNorm", "Dropout"})
#: Packages whose classes are the same in another process.
_SOURCES = ("torch.nn.", "transformers.", "sentence_transformers.")
_ADAPTERS = ("peft.", "adapters.")
_LOOK_UP = torch.nn.Embedding.forward
OUTPUTS: tuple[Output, ...] = get_args(Output)


class NotCompilableError(Exception):
    """The refusal of a model that cannot be compiled; the message says why."""


class CompiledTransformer:
    """The compiled form of a ``SentenceTransformer``, valid as long as that does not change.

    Args:
        model: the model, on the CPU in float32.
        threads: most threads of one micro-batch; see ``CompiledForms`` for fewer.
        precision: ``f32``; ``bf16`` computes products in bfloat16 where the processor can; ``int8``
            holds weights and multiplies in eight bits. Only ``f32`` gives the model's own vectors.
        parallel: micro-batches of one thread each that compute at the same time.

    Raises:
        NotCompilableError: if something about the model is not known here.
        ImportError: without OpenVINO.
    """

    def __init__(self, model: Any, threads: int, precision: str = "f32", parallel: int = 1) -> None:
        transformer = _transformer_of(model)
        embedding = transformer.get_input_embeddings()
        weights = {id(w): w for w in model.parameters() if w is not embedding.weight}
        size = sum(weight.nbytes for weight in weights.values())
        _require_small(_LEAST_FORMS * size)
        self._model = model
        self._embedding = embedding
        # Before the conversion: what changes while it runs must show.
        self._watch = ModelWatch(model)
        if not self._watch.is_same():
            raise NotCompilableError("one of its modules has a hook or another forward")
        #: all modules of the model
        self.modules = self._watch.modules
        rest = _rest_of(model)
        self._excludes_prompts = not all(getattr(module, "include_prompt", True) for module in rest)
        self._inputs = _inputs_of(model)
        graph = _converted(transformer, rest, embedding, self._inputs)
        require_time()
        if precision == "int8":
            to_eight_bits(graph)
        most = COMPILED_LIMIT // max(1, size)
        self._forms = CompiledForms(graph, threads, most, _SETTINGS[precision], parallel)

    def is_current(self) -> bool:
        return self._watch.is_same()

    def prepare(self, texts: Sequence[str], prompt: str | None) -> Tables | None:
        """Tokenise texts for ``start``; None where the model itself has to run them."""
        if prompt and self._excludes_prompts:
            return None
        features = self._model.preprocess(list(texts), prompt=prompt)
        found = {
            name: value.numpy() for name, value in features.items() if getattr(value, "ndim", 0) > 0
        }
        is_known = found.keys() == {"input_ids", *self._inputs}
        return found if is_known and len({table.shape for table in found.values()}) == 1 else None

    def start(self, tables: Tables, threads: int, output: Output) -> Callable[[], Any] | None:
        """Start the model on ``[texts, tokens]`` tables; return what waits for one of its results.

        That is float32, ``[texts, dim]`` or ``[texts, tokens, dim]``. None if there is no form for
        so few threads yet.
        """
        form = self._forms.find(threads)
        if form is None:
            return None
        others = (tables[name] for name in self._inputs)
        return form.start([self._rows(tables["input_ids"]), *others], OUTPUTS.index(output))

    def _rows(self, ids: Any) -> Any:
        """Look word embeddings up; not by torch, whose threads spin for a while afterwards."""
        words = self._embedding
        if type(words).forward is _LOOK_UP and words.max_norm is None:
            return words.weight.detach().numpy().take(ids, axis=0)
        with torch.inference_mode():
            return words(torch.from_numpy(ids)).numpy()


def _transformer_of(model: Any) -> Any:
    """Return the module that is compiled, if all around it is as it is known here."""
    first, *_ = model.children()
    text = getattr(first, "modality_config", {}).get("text", {})
    output = text.get("method_output_name")
    if type(first).__name__ != "Transformer" or not hasattr(first, "model"):
        raise NotCompilableError(f"its first module is {type(first).__name__}")
    if text.get("method") != "forward" or output not in (
        "last_hidden_state",
        ("last_hidden_state",),
    ):
        raise NotCompilableError("its first module does not give the last hidden state")
    if first.module_output_name != "token_embeddings" or any((model.module_kwargs or {}).values()):
        raise NotCompilableError("its modules are wired in a way of its own")
    if first.model.dtype is not torch.float32:
        raise NotCompilableError(f"its weights are {first.model.dtype}")
    return first.model


def _rest_of(model: Any) -> list[Any]:
    """Return the modules after the first, if their code is known to depend on shapes alone."""
    rest = list(model.children())[1:]
    for module in rest:
        kind = type(module)
        if kind.__name__ not in _KNOWN or not kind.__module__.startswith("sentence_transformers."):
            raise NotCompilableError(f"it has a module {kind.__name__}")
    return rest


def _require_small(size: int) -> None:
    if size > COMPILED_LIMIT:
        raise NotCompilableError(
            f"its weights would take {size >> 20} MiB more, of at most {COMPILED_LIMIT >> 20}"
        )


def _inputs_of(model: Any) -> tuple[str, ...]:
    features = model.preprocess(["a"])
    tables = {name for name, value in features.items() if getattr(value, "ndim", 0) == 2}
    if not {"input_ids", "attention_mask"} <= tables or not tables <= {"input_ids", *_INPUTS}:
        raise NotCompilableError(f"its tokenizer gives {', '.join(sorted(tables))}")
    return tuple(name for name in _INPUTS if name in tables)


def _converted(
    transformer: torch.nn.Module,
    rest: Sequence[torch.nn.Module],
    embedding: torch.nn.Module,
    inputs: tuple[str, ...],
) -> Any:
    """Return the graph of a model, made by a process of its own from a copy of its weights."""
    parts = torch.nn.ModuleList([transformer, *rest])
    _require_known(parts, embedding)
    left_out = set(map(id, embedding.parameters()))
    first_names: dict[int, str] = {}
    weights: dict[str, torch.Tensor] = {}
    names: dict[str, str] = {}
    for name, tensor in tensors(parts):
        if id(tensor) in left_out:
            continue
        names[name] = first_names.setdefault(id(tensor), name)
        if names[name] == name:
            weights[name] = tensor.detach().contiguous()
    with torch.inference_mode():
        dim = embedding(torch.ones((1, 1), dtype=torch.int64)).shape[-1]
    spec = {
        **_recipe(transformer, rest),
        "modules": describe(parts, embedding),
        "tensors": names,
        "inputs": inputs,
        "outputs": OUTPUTS,
        "dim": dim,
    }
    with private_folder() as folder:
        size = sum(weight.nbytes for weight in weights.values())
        write = partial(_write, weights, folder / WEIGHTS)
        convert(rebuilt_network.__file__, folder, spec, size, write)
        # Mapped into memory, or read: valid when the folder has gone.
        return openvino().Core().read_model(folder / GRAPH)


def _write(weights: dict[str, torch.Tensor], path: Path) -> None:
    """Write weights to a file that nobody else can read."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    importlib.import_module("safetensors.torch").save_file(weights, path)
    path.chmod(0o600)


def _recipe(transformer: Any, rest: Sequence[Any]) -> dict[str, Any]:
    """Return the classes and configurations to rebuild the modules from, as JSON values."""
    config = transformer.config
    return {
        "class": _importable(type(transformer)),
        "config_class": _importable(type(config)),
        "config": json.loads(config.to_json_string(use_diff=False)),
        "attention": config._attn_implementation,
        "rest": [(_importable(type(module)), module.get_config_dict()) for module in rest],
    }


def _require_known(parts: torch.nn.Module, embedding: torch.nn.Module) -> None:
    """Raise unless all modules but the word embeddings are of classes that a child can import."""
    inside = set(map(id, embedding.modules()))
    for part in parts.modules():
        kind = type(part)
        if kind.__module__.startswith(_ADAPTERS):
            raise NotCompilableError(f"it has adapters ({kind.__module__}.{kind.__qualname__})")
        if id(part) not in inside:
            _importable(kind)


def _importable(kind: type) -> str:
    """Return the name that a class is imported by."""
    is_known = kind.__module__.startswith(_SOURCES)
    module = importlib.import_module(kind.__module__) if is_known else None
    if getattr(module, kind.__qualname__, None) is not kind:
        raise NotCompilableError(f"its class {kind.__module__}.{kind.__qualname__} is not known")
    return f"{kind.__module__}.{kind.__qualname__}"
