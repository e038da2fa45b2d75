"""The graph of a model with paged attention, over the weights that are in memory already.

What was traced is the model without its weights and with a mark in place of each attention, see
``tracing``. Here the weights become constants in the model's own memory, and the marks become the
operator, whose keys and values are inputs: arrays of a pool.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rag_accel.engines.llm.local.paged.int8_weights import Int8Rows
from rag_accel.engines.llm.local.paged.sequences import MASK_INPUTS

#: The beginning of the name of a mark, which then has the layer, the scale and the window, 0 for
#: none: what a trace has in place of an attention.
MARK = "rag_accel.attention"
#: The beginning of the name of a conversion of a weight to float32.
WIDENED = "rag_accel.widened"
#: The inputs that are said once for all layers, in the order they are made.
SHARED = (
    "past_lens",
    "subsequence_begins",
    "block_indices",
    "block_indices_begins",
    "max_context_len",
    "score_aggregation_window",
)
_SCALARS = ("max_context_len",)
#: The numbers of inputs that the operator has had, the newest first.
_COUNTS = range(28, 12, -1)


class PagedGraphError(Exception):
    """The refusal of a graph; the message says why."""


class TraceError(PagedGraphError):
    """The refusal of what was traced: it cannot be read, or is not of this model."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The sizes of a model's attention.

    Args:
        heads: the query heads of a layer.
        kv_heads: its key and value heads.
        dim: the components of a head.
    """

    heads: int
    kv_heads: int
    dim: int


def paged_graph(
    topology: bytes,
    weights: Mapping[str, torch.Tensor | Int8Rows],
    shape: AttentionShape,
    probed: int | None,
) -> Any:
    """Return an OpenVINO model whose constants are the weights; they must outlive it.

    Args:
        topology: the traced model, as ``tracing.trace`` returns it.
        weights: by the names of its inputs, contiguous, on the processor; some may be int8.
        shape: of its attention.
        probed: the layer whose attention can be recorded; None for none.

    Raises:
        TraceError: the traced model cannot be read, or does not fit the weights.
        PagedGraphError: the operator is another one.
    """
    openvino = importlib.import_module("openvino")
    try:
        xml, _, constants = topology.partition(b"\0")
        graph = openvino.Core().read_model(xml, constants)
        _fill(openvino, graph, weights)
        _attend(openvino, graph, shape, probed)
        graph.validate_nodes_and_infer_types()
    except (PagedGraphError, MemoryError):
        raise
    except Exception as error:  # of native code, in any way
        said = str(error).strip().splitlines()  # OpenVINO's begin with places in its source
        raise TraceError(said[-1] if said else type(error).__name__) from error
    return graph


def count_operator_inputs() -> int:
    """Return the number of inputs of the installed operator; builds one and compiles nothing.

    Raises:
        PagedGraphError: there is no such operator, or it takes other inputs than are given here.
    """
    openvino = importlib.import_module("openvino")
    inputs = _Inputs(openvino)
    states = [inputs.ops.parameter([1, 1, -1, 32], openvino.Type.f32).output(0) for _ in range(3)]
    made = _operator(openvino, states, AttentionShape(1, 1, 32), _Layer(0, 1.0, 0), inputs)
    return made.get_input_size()


def _fill(openvino: Any, graph: Any, weights: Mapping[str, torch.Tensor | Int8Rows]) -> None:
    """Replace the inputs that stand for weights by constants in the weights' memory."""
    for given in list(graph.inputs):
        node = given.get_node()
        weight = weights.get(node.get_friendly_name())
        if weight is None:
            continue
        name = node.get_friendly_name()
        stored = weight.rows if isinstance(weight, Int8Rows) else weight
        if list(node.get_output_partial_shape(0).to_shape()) != list(stored.shape):
            raise TraceError(f"its {name} has another shape than was traced")
        constant = openvino.op.Constant(shared_tensor(stored))
        constant.set_friendly_name(name)
        if isinstance(weight, Int8Rows):
            _replace(_widened(node), _scaled(openvino, constant, weight.scales))
        else:
            _replace(node, constant)
        graph.remove_parameter(node)


def _replace(node: Any, other: Any) -> None:
    for target in list(node.output(0).get_target_inputs()):
        target.replace_source_output(other.output(0))


def _widened(node: Any) -> Any:
    """Return what gives a weight in float32: its input, or the conversion behind it."""
    readers = [target.get_node() for target in node.output(0).get_target_inputs()]
    if len(readers) == 1 and readers[0].get_friendly_name().startswith(WIDENED):
        return readers[0]
    return node


def _scaled(openvino: Any, rows: Any, scales: torch.Tensor) -> Any:
    """Return rows of int8 by their scales, in the form that is kept as int8 when compiled."""
    operators = importlib.import_module("openvino.opset15")
    wide = operators.convert(rows, "f32")
    return operators.multiply(wide, openvino.op.Constant(shared_tensor(scales)))


def shared_tensor(memory: torch.Tensor) -> Any:
    """Return a tensor of OpenVINO in the memory of one of torch, which must outlive it."""
    openvino = importlib.import_module("openvino")
    if memory.dtype == torch.bfloat16:
        bits = memory.detach().view(torch.uint16).numpy()
        return openvino.Tensor(bits, openvino.Shape(list(bits.shape)), openvino.Type.bf16)
    return openvino.Tensor(memory.detach().numpy(), shared_memory=True)


def _attend(openvino: Any, graph: Any, shape: AttentionShape, probed: int | None) -> None:
    """Replace the marks by the operator."""
    inputs = _Inputs(openvino)
    results: list[Any] = []
    for mark in graph.get_ordered_ops():
        name = mark.get_friendly_name()
        if not name.startswith(MARK):
            continue
        _, layer, scale, window = name.split("|")
        paged = _operator(
            openvino,
            [mark.input_value(at) for at in range(3)],
            shape,
            _Layer(int(layer), float(scale), int(window)),
            inputs,
        )
        found = inputs.ops.reshape(
            paged.output(0), inputs.constant([1, -1, shape.heads, shape.dim], np.int64), False
        )
        for target in _after(mark, 2).output(0).get_target_inputs():
            target.replace_source_output(found.output(0))
        if int(layer) == probed:
            result = inputs.ops.result(paged.output(1))
            result.get_output_tensor(0).set_names({"scores"})
            results.append(result)
    graph.add_parameters(list(inputs.parameters.values()))
    graph.add_results(results)


@dataclass(frozen=True, slots=True)
class _Layer:
    number: int
    scale: float
    window: int


class _Inputs:
    """The inputs of the operators of a graph, each made once."""

    def __init__(self, openvino: Any) -> None:
        self.ops = importlib.import_module("openvino.opset15")
        self.parameters: dict[str, Any] = {}
        self._openvino = openvino

    def named(self, name: str, rank: int, kind: Any) -> Any:
        if name not in self.parameters:
            shape = self._openvino.PartialShape([-1] * rank)
            made = self.ops.parameter(shape, kind, name=name)
            made.get_output_tensor(0).set_names({name})
            self.parameters[name] = made
        return self.parameters[name].output(0)

    def drop(self, *names: str) -> None:
        """Forget inputs that nothing reads."""
        for name in names:
            self.parameters.pop(name, None)

    def constant(self, value: Any, kind: Any) -> Any:
        return self.ops.constant(np.array(value, dtype=kind)).output(0)


def _operator(
    openvino: Any, states: Sequence[Any], shape: AttentionShape, layer: _Layer, inputs: _Inputs
) -> Any:
    """Return the operator over queries, keys and values ``[1, head, row, dim]``."""
    kinds, constant = openvino.Type, inputs.constant
    heads = (shape.heads, shape.kv_heads, shape.kv_heads)
    flat = [
        inputs.ops.reshape(
            inputs.ops.transpose(state, constant([0, 2, 1, 3], np.int32)),
            constant([-1, number * shape.dim], np.int64),
            False,
        ).output(0)
        for state, number in zip(states, heads, strict=True)
    ]
    pool = [inputs.named(f"{name}.{layer.number}", 4, kinds.dynamic) for name in ("keys", "values")]
    shared = {name: inputs.named(name, int(name not in _SCALARS), kinds.i32) for name in SHARED}
    integers, floats = constant([], np.int32), constant([], np.float32)
    given = [
        *flat,
        *pool,
        *(shared[name] for name in SHARED[:4]),
        constant(layer.scale, np.float32),
        constant(layer.window, np.int32),
        floats,  # slopes of ALiBi
        shared["max_context_len"],
        shared["score_aggregation_window"],
        integers,  # blocks to rotate
        constant(np.zeros((0, 0)), np.int32),
        constant(np.zeros((0, 0)), np.float32),
        floats,  # threshold, block and stride of sparse attention
        constant(0, np.int32),
        constant(0, np.int32),
        constant(np.zeros((0, 0, 0, 0)), np.float32),  # sinks
        constant(0, np.int32),  # start, indices, begins and lengths of eviction by diversity
        integers,
        integers,
        integers,
        integers,  # kinds of tokens
        *(
            inputs.named(name, 1, kind)
            for name, kind in zip(MASK_INPUTS, (kinds.u8, kinds.i32), strict=True)
        ),
    ]
    made = _made(given)
    if made.get_input_size() < len(given):
        inputs.drop(*MASK_INPUTS)
    made.set_friendly_name(f"PagedAttention.{layer.number}")
    sizes = made.get_rt_info()
    sizes["num_k_heads"] = sizes["num_v_heads"] = shape.kv_heads
    sizes["k_head_size"] = sizes["v_head_size"] = shape.dim
    return made


def _made(given: Sequence[Any]) -> Any:
    """Return the operator with as many inputs as the installed one has."""
    operators = importlib.import_module("openvino._pyopenvino").op
    kind = getattr(operators, "_PagedAttentionExtension", None)
    if kind is None:
        raise PagedGraphError("this OpenVINO has no operator for paged attention")
    refused: list[str] = []
    for count in _COUNTS:
        try:
            return kind(list(given[:count]))
        except RuntimeError as error:
            refused += str(error).strip().splitlines()[-1:]
    reason = refused[0] if refused else "it says nothing"
    raise PagedGraphError(f"the operator for paged attention takes other inputs: {reason}")


def _after(node: Any, steps: int) -> Any:
    """Return the node so many steps behind one, each of which has one reader."""
    for _ in range(steps):
        (target,) = node.output(0).get_target_inputs()
        node = target.get_node()
    return node
