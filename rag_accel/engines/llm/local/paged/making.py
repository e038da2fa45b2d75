"""The making of a runner on paged attention from a model in memory."""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from rag_accel.engines.compiled.compile_process import CompileError, require_time
from rag_accel.engines.compiled.compiled_forms import (
    BackgroundTask,
    keep_past_fork,
    note_start,
    openvino,
)
from rag_accel.engines.llm.local.model.families import ModelShape
from rag_accel.engines.llm.local.model.runner import states_identity
from rag_accel.engines.llm.local.model.shared_weights import always
from rag_accel.engines.llm.local.paged.block_pool import BlockPool
from rag_accel.engines.llm.local.paged.graph import AttentionShape, paged_graph
from rag_accel.engines.llm.local.paged.int8_weights import Int8Rows, Int8Weights
from rag_accel.engines.llm.local.paged.runner import PagedForm, PagedRunner
from rag_accel.engines.llm.local.paged.sequences import MASK_INPUTS
from rag_accel.kv.rotation import rotation_of
from rag_accel.system.processor import has_feature

logger = logging.getLogger("rag_accel.llm")

#: Numbers of threads between one and all that a model is compiled for, at most: each form has
#: weights of its own.
MOST_BETWEEN = 1
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


def fewest_threads(dtype: torch.dtype) -> int:
    """Return the fewest threads for which a model of a dtype is compiled here.

    In a stream of one thread, the attention of OpenVINO 2026.4 in bfloat16 divides by zero on a
    processor with AMX, which ends the process.
    """
    return 2 if dtype == torch.bfloat16 and has_feature("amx_bf16") else 1


class WeightCopies:
    """The copies of a model's weights that its compiled forms hold.

    Args:
        each_bytes: the size of one.
    """

    def __init__(self, each_bytes: int) -> None:
        self._each_bytes = each_bytes
        #: for how many threads there is a form
        self.threads: list[int] = []

    def __str__(self) -> str:
        """Say what they take now, in a few words; from any thread."""
        held = [f"{threads} thread{'s'[: threads - 1]}" for threads in self.threads]
        size = len(held) * self._each_bytes >> 20
        return f"compiled for {' and '.join(held)}, with a copy of the weights each, {size} MiB"


class Compilation:
    """A model compiled for all threads, and for fewer where a step is granted no more.

    The compiled forms read the model's weights where they are; each keeps a copy of those that are
    multiplied, in an order of its own. With int8 weights the model itself is not kept: what it has
    of others in float32 or bfloat16 is freed with it.

    Args:
        model: of transformers, on the processor; kept, for its weights, unless some are int8.
        topology: its trace, as ``tracing.trace`` returns it.
        threads: the most of a forward.
        probed: the layer whose attention can be recorded; None for none.
        int8: weights that are taken in place of the model's; None for its own.
        is_same: tells whether the model has not changed since; from any thread.

    Raises:
        CompileError: in a forked child, where OpenVINO has no threads, of a changed model, or for
            fewer threads than it runs on.
        PagedGraphError: the trace does not fit, or the operator is another one.
    """

    def __init__(
        self,
        model: Any,
        topology: bytes,
        *,
        threads: int,
        probed: int | None = None,
        int8: Int8Weights | None = None,
        is_same: Callable[[], bool] = always,
    ) -> None:
        config = model.config
        self._dtype: torch.dtype = model.dtype
        self._frequencies = rotation_of(model)
        self._identify: Callable[[], str] = partial(states_identity, model)
        self._is_same = is_same
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
        names = {name for given in self._graph.inputs for name in given.names}
        #: whether rows can be told apart that one row of a sequence sees, and another does not
        self.has_masks = MASK_INPUTS[0] in names
        #: what the forms hold besides the model
        self.copies = WeightCopies(sum(weight.nbytes for weight in self._weights.values()))
        self._compiled: dict[int, Any] = {}
        #: the fewest threads of a form
        self.fewest = fewest_threads(self._dtype)
        keep_past_fork(self)
        self.compile(threads)

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
            GraphForms(self, pool),
            pool,
            layers=shape.layers,
            vocabulary=shape.vocabulary,
            heads=self._heads,
            probed=self._probed,
            identify=self._identify,
            copies=self.copies,
        )

    @property
    def threads(self) -> int:
        """Return the most threads of a forward."""
        return self._threads

    def form(self, threads: int, pool: BlockPool) -> PagedForm | None:
        """Return the form for a number of threads over a pool; None if there is none yet."""
        compiled = self._compiled.get(threads)
        return None if compiled is None else PagedForm(compiled, pool)

    def compile(self, threads: int) -> None:
        """Compile it for a number of threads; takes long.

        Raises:
            CompileError: in a forked child, while the process ends, or of a changed model.
        """
        note_start()
        require_time()
        self._require_same()
        if threads < self.fewest:
            raise CompileError("OpenVINO fails in bfloat16 with one thread on this processor")
        precision = PRECISIONS[self._dtype]
        settings = {
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": threads,
            "ENABLE_CPU_PINNING": False,
            **self._settings,
        }
        compiled = openvino().Core().compile_model(self._graph, "CPU", settings)
        self._require_same()
        self._compiled[threads] = compiled
        self.copies.threads.append(threads)

    def _require_same(self) -> None:
        """Check that a form is not made of other weights than the first one.

        No new request is taken while a model is changed. If the change is taken back, as where
        averaged weights are put in for a while, none of them may be left in a form.
        """
        if not self._is_same():
            raise CompileError("the model was changed after its engine was made")


class GraphForms:
    """The forms of a model over one pool: for all threads at once, for fewer when granted so many.

    Used by one thread. What compiles in the background knows the compilation alone, not the pool,
    whose memory goes with its runner.
    """

    def __init__(self, compilation: Compilation, pool: BlockPool) -> None:
        self._compilation = compilation
        self._pool = pool
        whole = compilation.form(compilation.threads, pool)
        assert whole is not None, "a model is compiled for all threads at once"
        self._made = {compilation.threads: whole}
        self._tasks: dict[int, BackgroundTask] = {}

    def find(self, threads: int) -> PagedForm:
        """Return the form for so many threads, or for fewer; that for all while there is none.

        Between one and all, numbers are powers of two.
        """
        most = self._compilation.threads
        fewest = self._compilation.fewest
        if max(threads, fewest) >= most:
            return self._made[most]
        wanted = max(1 << (max(1, threads).bit_length() - 1), fewest)
        if wanted in self._tasks and wanted not in self._made:
            self._take(wanted)
        elif wanted not in self._tasks and (wanted == fewest or self._has_room):
            self._start(wanted)
        fewer = [number for number in self._made if number <= wanted]
        return self._made[max(fewer, default=most)]

    def wait(self, timeout_s: float) -> None:
        """Wait for forms that are being compiled."""
        for task in self._tasks.values():
            task.wait(timeout_s)

    @property
    def _has_room(self) -> bool:
        return len(self._tasks.keys() - {self._compilation.fewest}) < MOST_BETWEEN

    def _take(self, threads: int) -> None:
        form = self._compilation.form(threads, self._pool)
        if form is not None:
            self._made[threads] = form

    def _start(self, threads: int) -> None:
        task = self._tasks[threads] = BackgroundTask(partial(_compile, self._compilation, threads))
        try:
            task.start()
        except RuntimeError as error:  # no thread to be had: no step fails for that
            _report(threads, error)


def _compile(compilation: Compilation, threads: int) -> None:
    try:
        compilation.compile(threads)
    except (CompileError, RuntimeError, MemoryError) as error:
        _report(threads, error)


def _report(threads: int, error: Exception) -> None:
    logger.warning("a model is not compiled for %d threads as well: %s", threads, error)


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
            "openvino": openvino().__version__,  # first, without its telemetry
            **{
                name: importlib.import_module(name).__version__
                for name in ("torch", "transformers")
            },
        },
    }
