"""The program that traces a causal language model of transformers, in a process of its own.

``compile_process`` runs this file: torch keeps what was traced for ever, in a state that all
threads share. First it tries the operator on a model of two layers of the same shapes with random
weights: should the operator crash on this machine, this process ends and not the user's.

The weights are inputs of the traced model, so that one trace serves every checkpoint of a
configuration and takes little memory and no time to write. In place of each attention stands a mark
with queries, keys and values, see ``graph``.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: The name of the file that is left.
TRACE = "trace"
#: The name of the attention among those of transformers, in the process that traces.
NAME = "rag_accel_marked"
#: Layers and tokens of the model that is tried, the threads of a forward, and its keys and values.
_LAYERS, _VOCABULARY, _THREADS, _POOL_BYTES = 2, 256, 2, 1 << 26
#: Rows of the example, and those of them whose logits are asked for.
_ROWS, _ASKED = 7, (3, 6)
_INPUTS = ("input_ids", "position_ids", "asked")
#: Says that a conversion only undoes a smaller form of a weight: it is then kept in that form.
_MARKED_WIDENED = '<rt_info><attribute name="decompression" version="0" /></rt_info>\n<input>'


def convert(folder: Path, spec: Mapping[str, Any]) -> None:
    """Write the traced model to a folder, once the operator has been tried.

    Args:
        folder: gets the file ``TRACE``.
        spec: as for ``trace``, and ``package``, the folder of the package.

    Raises:
        Exception: the model cannot be traced, or the operator computes something else.
    """
    # The frame has left these packages empty; what is run here is this project's own.
    for name, place in ("rag_accel", ""), ("rag_accel.engines", "engines"):
        sys.modules[name].__path__ = [os.path.join(spec["package"], place)]
    from rag_accel.engines.compiled.child_program import limit_memory

    importlib.import_module("rag_accel.engines.llm.local.paged.making")  # takes address space
    warnings.simplefilter("ignore")
    limit_memory(spec["memory_bytes"])
    _try_operator(spec, folder)
    (folder / TRACE).write_bytes(trace(spec, folder / "model.xml"))


def _try_operator(spec: Mapping[str, Any], folder: Path) -> None:
    """Run a small model by the operator, and compare it with torch; raise ConfigError otherwise."""
    import torch

    from rag_accel.engines.llm.local.model.families import DTYPES
    from rag_accel.engines.llm.local.model.self_check import WINDOW, check_runner
    from rag_accel.engines.llm.local.paged.making import Compilation

    transformers = importlib.import_module("transformers")
    config: dict[str, Any] = {**spec["config"]}
    config |= {"num_hidden_layers": _LAYERS, "vocab_size": _VOCABULARY}
    config |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    if config.get("sliding_window") is not None:
        config["sliding_window"] = WINDOW  # so narrow that short prompts pass it
    if config.get("layer_types") is not None:  # both kinds, where the model has both
        kinds = list(dict.fromkeys(config["layer_types"]))
        config["layer_types"] = [kinds[at % len(kinds)] for at in range(_LAYERS)]
    made = getattr(transformers, spec["config_class"]).from_dict(config)
    torch.manual_seed(0)
    model = getattr(transformers, spec["class"])._from_config(made, dtype=torch.float32)
    model = model.to(DTYPES[spec["dtype"]]).eval()
    topology = trace({**spec, "config": config}, folder / "trial.xml")
    compilation = Compilation(model, topology, threads=_THREADS, probed=_LAYERS - 1)
    check_runner(model, compilation.runner(_POOL_BYTES), probed=_LAYERS - 1)


def trace(spec: Mapping[str, Any], path: Path) -> bytes:
    """Trace the model of a specification; return it as XML, a zero byte and its constants.

    Args:
        spec: ``class``, ``config_class`` and ``config`` of the model, by their names in
            transformers, and the ``dtype`` of its weights.
        path: of the XML, which is written meanwhile, next to the constants.
    """
    torch = importlib.import_module("torch")
    model = _empty(torch, spec)
    places = _open(torch, model)
    weights = {name: weight for _, _, name, weight in places}
    graph = _converted(torch, model, places, weights, int(model.config.num_attention_heads))
    openvino = importlib.import_module("openvino")
    _name(openvino, graph, weights, spec["dtype"])
    openvino.save_model(graph, path, compress_to_fp16=False)
    if spec["dtype"] == "bfloat16":
        _mark_widened(path)
    return path.read_bytes() + b"\0" + path.with_suffix(".bin").read_bytes()


def _empty(torch: Any, spec: Mapping[str, Any]) -> Any:
    """Return the model with weights that take no memory."""
    transformers = importlib.import_module("transformers")
    config = getattr(transformers, spec["config_class"]).from_dict(spec["config"])
    with torch.device("meta"):
        kind = getattr(transformers, spec["class"])
        model = kind._from_config(config, dtype=torch.float32).eval()
    model.tie_weights()
    rotary = model.get_decoder().rotary_emb
    model.get_decoder().rotary_emb = type(rotary)(config)  # with numbers in it
    return model


def _open(torch: Any, model: Any) -> list[tuple[Any, str, str, Any]]:
    """Take the weights out of the modules; return module, attribute, name and weight of each.

    A weight that stands in several places has its first name in all of them.
    """
    names: dict[int, str] = {}
    empty: dict[str, Any] = {}
    places: list[tuple[Any, str, str, Any]] = []
    for prefix, module in model.named_modules():
        for key, weight in list(module._parameters.items()):
            if weight is None:
                continue
            name = names.setdefault(id(weight), f"{prefix}.{key}")
            if name not in empty:
                empty[name] = torch.zeros(()).expand(weight.shape)
            places.append((module, key, name, empty[name]))
    for module, key, _, weight in places:
        del module._parameters[key]
        module.__dict__[key] = weight
    return places


def _converted(torch: Any, model: Any, places: Any, weights: Mapping[str, Any], heads: int) -> Any:
    openvino = importlib.import_module("openvino")
    library = torch.library.Library("rag_accel", "DEF")
    library.define(
        "marked(Tensor q, Tensor k, Tensor v, int layer, float scale, int window) -> Tensor"
    )
    library.impl(
        "marked",
        lambda q, k, v, layer, scale, window: q.transpose(1, 2).contiguous(),
        "CompositeExplicitAutograd",
    )
    transformers = importlib.import_module("transformers")
    transformers.AttentionInterface.register(NAME, _attention)
    transformers.AttentionMaskInterface.register(NAME, lambda *_, **__: None)
    model.set_attn_implementation(NAME)
    names = list(weights)

    class WithWeights(torch.nn.Module):
        def forward(self, input_ids: Any, position_ids: Any, asked: Any, *given: Any) -> Any:
            by_name = dict(zip(names, given, strict=True))
            for module, key, name, _ in places:
                module.__dict__[key] = by_name[name]
            found = model(
                input_ids=input_ids,
                position_ids=position_ids,
                use_cache=False,
                logits_to_keep=asked,
            )
            return found.logits

    extension = importlib.import_module("openvino.frontend.pytorch").ConversionExtension
    example = (
        torch.ones((1, _ROWS), dtype=torch.int64),
        torch.arange(_ROWS)[None],
        torch.tensor(_ASKED),
        *weights.values(),
    )
    with torch.no_grad():
        return openvino.convert_model(
            WithWeights().eval(),
            example_input=example,
            extension=[extension("rag_accel::marked", _marker(heads))],
        )


def _attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Any, None]:
    torch = importlib.import_module("torch")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    window = sliding_window or 0
    found = torch.ops.rag_accel.marked(query, key, value, module.layer_idx, scale, window)
    return found, None


def _marker(heads: int) -> Any:
    """Return the conversion of an attention to a mark: the states joined, and the queries of it."""
    from rag_accel.engines.llm.local.paged.graph import MARK

    numpy = importlib.import_module("numpy")
    ops = importlib.import_module("openvino.opset15")

    def constant(values: list[int]) -> Any:
        return ops.constant(numpy.array(values, dtype=numpy.int64))

    def convert(context: Any) -> list[Any]:
        states = [context.get_input(at) for at in range(3)]
        layer, scale, window = (context.get_values_from_const_input(at) for at in (3, 4, 5))
        mark = ops.concat(states, 1)
        mark.set_friendly_name(f"{MARK}|{int(layer)}|{float(scale)!r}|{int(window)}")
        queries = ops.slice(mark, constant([0]), constant([heads]), constant([1]), constant([1]))
        return [ops.transpose(queries, constant([0, 2, 1, 3])).output(0)]

    return convert


def _name(openvino: Any, graph: Any, weights: Mapping[str, Any], dtype: str) -> None:
    """Name the inputs, and give those of weights their shapes and their dtype."""
    from rag_accel.engines.llm.local.paged.graph import WIDENED

    operators = importlib.import_module("openvino.opset15")
    nodes = [given.get_node() for given in graph.inputs]
    for node, name in zip(nodes[: len(_INPUTS)], _INPUTS, strict=True):
        node.set_friendly_name(name)
        node.output(0).get_tensor().set_names({name})
    for node, (name, weight) in zip(nodes[len(_INPUTS) :], weights.items(), strict=True):
        shape = openvino.PartialShape(list(weight.shape))
        if dtype == "float32":
            node.set_partial_shape(shape)
            node.set_friendly_name(name)
            continue
        narrow = operators.parameter(shape, openvino.Type.bf16, name=name)
        wide = operators.convert(narrow, "f32")
        wide.set_friendly_name(f"{WIDENED}|{name}")
        for target in node.output(0).get_target_inputs():
            target.replace_source_output(wide.output(0))
        graph.remove_parameter(node)
        graph.add_parameters([narrow])
    graph.validate_nodes_and_infer_types()


def _mark_widened(path: Path) -> None:
    """Write into the file which conversions only widen a weight; Python has no call for it."""
    from rag_accel.engines.llm.local.paged.graph import WIDENED

    pattern = re.compile(rf'(<layer id="\d+" name="{re.escape(WIDENED)}\|[^>]*>.*?)<input>', re.S)
    text = path.read_text(encoding="utf-8")
    path.write_text(pattern.sub(rf"\g<1>{_MARKED_WIDENED}", text), encoding="utf-8")
