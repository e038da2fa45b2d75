"""Run MiniLM on torch, ONNX Runtime and OpenVINO: one batch of texts in, their vectors out.

ONNX Runtime and OpenVINO run the transformer alone; tokens, mean pooling and length 1 are done as a
user would who left sentence-transformers for them, with its tokenizer and NumPy. That holds for
models of MiniLM's kind, and ``require_same_vectors`` refuses any other.
"""

from __future__ import annotations

import copy
import importlib
import sys
import tempfile
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rag_accel.errors import EngineError

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_MAX_TOKENS = 256
#: Largest difference of a component that still is the same vector.
SAME = 1e-5

Vectors = NDArray[np.float32]


class Runtime(Protocol):
    """What is asked of a runtime."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return ``[len(texts), dim]``, computed as one batch."""
        ...


class TorchRuntime:
    """The ``encode`` of sentence-transformers itself."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return ``[len(texts), dim]``, computed as one batch."""
        return self._model.encode(list(texts), batch_size=len(texts), show_progress_bar=False)


class OnnxRuntime:
    """The transformer on ONNX Runtime.

    Args:
        model: a ``SentenceTransformer``.
        threads: threads of one call.
    """

    def __init__(self, model: Any, threads: int) -> None:
        onnx = importlib.import_module("onnxruntime")
        options = onnx.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Threads that spin for work take the cores from callers.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            _export(model, path)
            self._session = onnx.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        self._tokens = Tokens(model)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return ``[len(texts), dim]``, computed as one batch."""
        arrays = self._tokens.of(texts)
        (found,) = self._session.run(None, dict(zip(_INPUTS, arrays, strict=True)))
        return _pooled(found, arrays[1])


class OpenVinoRuntime:
    """The transformer on OpenVINO.

    Args:
        model: a ``SentenceTransformer``.
        threads: threads of all streams together.
        streams: calls that compute at the same time.
    """

    def __init__(self, model: Any, threads: int, streams: int) -> None:
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
        openvino = importlib.import_module("openvino")
        module, example = _traceable(model)
        with warnings.catch_warnings(action="ignore"):  # of tracing, to whoever traces
            graph = openvino.convert_model(module, example_input=example)
        self._compiled = openvino.Core().compile_model(
            graph,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": "f32",
                "INFERENCE_NUM_THREADS": threads,
                "NUM_STREAMS": streams,
            },
        )
        self._own = threading.local()
        self._tokens = Tokens(model)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return ``[len(texts), dim]``, computed as one batch."""
        if not hasattr(self._own, "request"):
            self._own.request = self._compiled.create_infer_request()
        arrays = self._tokens.of(texts)
        (found,) = self._own.request.infer(arrays, share_inputs=True).values()
        return _pooled(found, arrays[1])


class Tokens:
    """A tokenizer as the model's, in one call of the tokenizers library."""

    def __init__(self, model: Any) -> None:
        library = importlib.import_module("tokenizers")
        self._tokenizer = library.Tokenizer.from_str(model.tokenizer.backend_tokenizer.to_str())
        self._tokenizer.enable_truncation(model.max_seq_length or _MAX_TOKENS)
        self._tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")

    def of(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """Return ids, mask and types, each ``[len(texts), tokens]``."""
        found = self._tokenizer.encode_batch([text.replace("\n", " ") for text in texts])
        ids = np.array([one.ids for one in found], dtype=np.int64)
        mask = np.array([one.attention_mask for one in found], dtype=np.int64)
        return [ids, mask, np.zeros_like(ids)]


def require_same_vectors(name: str, found: Vectors, wanted: Vectors) -> None:
    """Check that an opponent computes what the plain program computes.

    Raises:
        EngineError: if a component differs by more than ``SAME``.
    """
    difference = float(np.abs(np.asarray(found) - np.asarray(wanted)).max())
    if not difference <= SAME:
        raise EngineError(
            "an opponent has other vectors",
            where=name,
            found=f"a difference of {difference:.1e}",
            valid=f"at most {SAME:.0e}",
            hint="compare with a model of MiniLM's kind only",
        )


def _pooled(found: Any, mask: NDArray[np.int64]) -> Vectors:
    weights = mask[..., None].astype(np.float32)
    vectors = (np.asarray(found) * weights).sum(axis=1) / weights.sum(axis=1)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _traceable(model: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the transformer as a module of three tensors, and an example of them."""
    torch = importlib.import_module("torch")

    class Transformer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.transformer = copy.deepcopy(model[0].model).eval()

        def forward(self, ids: Any, mask: Any, types: Any) -> Any:
            named = dict(zip(_INPUTS, (ids, mask, types), strict=True))
            return self.transformer(**named).last_hidden_state

    ids = torch.ones((2, 4), dtype=torch.int64)
    return Transformer(), (ids, torch.ones_like(ids), torch.zeros_like(ids))


def _export(model: Any, path: Path) -> None:
    torch = importlib.import_module("torch")
    module, example = _traceable(model)
    sizes = {name: {0: "texts", 1: "tokens"} for name in (*_INPUTS, "found")}
    module.transformer.set_attn_implementation("eager")
    with warnings.catch_warnings(action="ignore"):
        torch.onnx.export(
            module,
            example,
            str(path),
            input_names=list(_INPUTS),
            output_names=["found"],
            dynamic_axes=sizes,
            dynamo=False,
            opset_version=17,
        )
