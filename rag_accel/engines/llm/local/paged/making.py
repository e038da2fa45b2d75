"""The making of a runner on paged attention from a model in memory."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rag_accel.engines.compiled.background_task import BackgroundTask
from rag_accel.engines.compiled.compiled_forms import openvino
from rag_accel.engines.llm.local.model.families import ModelShape
from rag_accel.engines.llm.local.model.runner import states_identity
from rag_accel.engines.llm.local.paged.block_pool import BlockPool
from rag_accel.engines.llm.local.paged.graph import AttentionShape, paged_graph
from rag_accel.engines.llm.local.paged.int8_weights import Int8Rows, Int8Weights
from rag_accel.engines.llm.local.paged.runner import PagedForm, PagedRunner
from rag_accel.kv.rotation import rotation_of

#: What OpenVINO calls the dtypes of weights.
PRECISIONS = {torch.float32: "f32", torch.bfloat16: "bf16"}
#: The other factor of a product with int8 weights is rounded by so many components together.
#: SmolLM2 on 2 threads, seconds for 800 tokens of a prompt, ms a token of 1 and of 8 sequences, and
#: against its own weights the share of 220 tokens whose most probable one is the same and the KL
#: divergence:
#:
#:     float32   own weights      0.96  23.1  36.0
#:               not rounded (0)  1.08  11.8  32.5  0.973  0.004
#:               by 32            0.55  12.6  19.3  0.973  0.006
#:     bfloat16  own weights      0.54  18.3  23.3
#:               not rounded (0)  0.59  10.1  24.5  0.968  0.005
#:               by 32            0.49  11.7  22.7  0.964  0.008
#:
#: By 64 and 128 together nothing is faster, and KL is 0.009 and 0.014. Not rounded, prompts would
#: take longer than with the model's own weights.
INT8_SETTINGS = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 32}


class Compilation:
    """A model compiled for all threads, and for one where a step is granted no more.

    The compiled forms read the model's weights where they are; each keeps a copy of those that are
    multiplied, in an order of its own. With int8 weights the model itself is not kept: what it has
    of others in float32 or bfloat16 is freed with it.

    Args:
        model: of transformers, on the processor; kept, for its weights, unless some are int8.
        topology: the file of its trace.
        threads: the most of a forward.
        probed: the layer whose attention can be recorded; None for none.
        int8: weights that are taken in place of the model's; None for its own.
    """

    def __init__(
        self,
        model: Any,
        topology: Path,
        *,
        threads: int,
        probed: int | None = None,
        int8: Int8Weights | None = None,
    ) -> None:
        config = model.config
        self._dtype: torch.dtype = model.dtype
        self._frequencies = rotation_of(model)
        self._identify: Callable[[], str] = partial(states_identity, model)
        self._threads = threads
        self._probed = probed
        self._shape = ModelShape.of(config)
        self._heads = int(config.num_attention_heads)
        self._settings: Mapping[str, Any] = {}
        rounded: Mapping[str, Int8Rows] = {}
        if int8 is not None:
            rounded, self._settings = int8.rows, INT8_SETTINGS
            self._identify = partial(str, int8.identity)
        #: what the graph's constants are made of; it does not keep them
        self._weights: dict[str, torch.Tensor | Int8Rows] = {
            name: rounded[name] if name in rounded else weight.detach().contiguous()
            for name, weight in model.named_parameters()
        }
        attention = AttentionShape(self._heads, self._shape.heads, self._shape.dim)
        self._graph = paged_graph(topology, self._weights, attention, probed)
        self._compiled = {threads: self._compile(threads)}

    def runner(self, pool_bytes: int, context: int | None = None) -> PagedRunner:
        """Return a runner with a pool of its own.

        Args:
            pool_bytes: the most bytes of keys and values.
            context: the most tokens of a sequence; None for what the model was made for.

        Raises:
            ConfigError: the pool cannot be made.
        """
        shape = self._shape
        pool = BlockPool(
            layers=shape.layers,
            heads=shape.heads,
            dim=shape.dim,
            context=context or shape.context,
            limit_bytes=pool_bytes,
            dtype=self._dtype,
            frequencies=self._frequencies,
        )
        return PagedRunner(
            _Forms(self, pool),
            pool,
            layers=shape.layers,
            vocabulary=shape.vocabulary,
            heads=self._heads,
            probed=self._probed,
            identify=self._identify,
        )

    @property
    def threads(self) -> int:
        """Return the most threads of a forward."""
        return self._threads

    def form(self, threads: int, pool: BlockPool) -> PagedForm:
        """Return the form for a number of threads over a pool; takes long for a new number."""
        if threads not in self._compiled:
            self._compiled[threads] = self._compile(threads)
        return PagedForm(self._compiled[threads], pool)

    def _compile(self, threads: int) -> Any:
        precision = PRECISIONS[self._dtype]
        settings = {
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": threads,
            "ENABLE_CPU_PINNING": False,
            **self._settings,
        }
        return openvino().Core().compile_model(self._graph, "CPU", settings)


class _Forms:
    """The forms of a model over one pool: for all threads at once, for one when it is needed."""

    def __init__(self, compilation: Compilation, pool: BlockPool) -> None:
        self._compilation = compilation
        self._pool = pool
        self._whole = compilation.form(compilation.threads, pool)
        self._single: PagedForm | None = None
        self._task: BackgroundTask | None = None

    def find(self, threads: int) -> PagedForm:
        """Return the form for so many threads; that for all while the one for one is compiled."""
        if threads > 1 or self._compilation.threads == 1:
            return self._whole
        if self._single is not None:
            return self._single
        if self._task is None:
            self._task = BackgroundTask(self._make_single)
            self._task.start()
        return self._whole

    def wait(self, timeout_s: float) -> None:
        """Wait for a form that is being compiled."""
        if self._task is not None:
            self._task.wait(timeout_s)

    def _make_single(self) -> None:
        self._single = self._compilation.form(1, self._pool)


def trace_spec(model: Any) -> dict[str, Any]:
    """Return what a trace of a model depends on, as JSON values."""
    config = json.loads(model.config.to_json_string(use_diff=False))
    for name in ("_name_or_path", "transformers_version", "architectures"):
        config.pop(name, None)
    return {
        "class": type(model).__name__,
        "config_class": type(model.config).__name__,
        "config": config,
        "dtype": str(model.dtype).removeprefix("torch."),
        "versions": {
            name: importlib.import_module(name).__version__
            for name in ("openvino", "torch", "transformers")
        },
    }
