"""Weights of an OpenVINO graph in int8, each row with a scale."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Operators that only change the form of a weight.
_PLAIN = ("Convert", "Reshape", "Transpose")


def to_eight_bits(graph: Any) -> None:
    """Replace each weight of a product by int8 with a scale for each of its rows, in place.

    Symmetric: the largest component of a row becomes 127. OpenVINO then multiplies in int8, with
    the other factor rounded when it is there.
    """
    operators = importlib.import_module("openvino.opset13")
    for product in graph.get_ordered_ops():
        if product.get_type_name() != "MatMul":
            continue
        constant = product.input(1).get_source_output().get_node()
        while constant.get_type_name() in _PLAIN:
            constant = constant.input(0).get_source_output().get_node()
        if constant.get_type_name() != "Constant" or len(constant.shape) != 2:
            continue
        rows, scales = _rounded(constant.get_data().astype(np.float32))
        whole = operators.convert(operators.constant(rows, dtype=np.int8), "f32")
        scaled = operators.multiply(whole, operators.constant(scales))
        for target in list(constant.output(0).get_target_inputs()):
            target.replace_source_output(scaled.output(0))


def _rounded(weight: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return ``[out, in], int8`` and its scales ``[out, 1], float32``."""
    largest = np.abs(weight).max(axis=1, keepdims=True)
    scales = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    return np.rint(weight / scales).astype(np.int8), scales
