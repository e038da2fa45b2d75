"""The choice of the runner of a model: one rule, and one proof for each checkpoint.

The rule is paged attention wherever it can run the model, on processors. Decoding it takes a
quarter to a third of torch's time: tables at the end of docs/results/serving.md.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from rag_accel.engines.llm.local.batching.rows import Runner
from rag_accel.engines.llm.local.model.families import ModelShape
from rag_accel.engines.llm.local.model.proofs import is_proved, keep_proof
from rag_accel.engines.llm.local.model.runner import packed_runner
from rag_accel.engines.llm.local.model.self_check import (
    INT8_BOUND,
    PROOF_SLOTS,
    UNBOUNDED,
    check_equality,
    check_runner,
    check_trees,
)
from rag_accel.engines.llm.local.model.shared_weights import always, packed_copy
from rag_accel.engines.llm.local.options import LocalOptions, RunnerName
from rag_accel.engines.torch_threads import thread_count
from rag_accel.errors import ConfigError
from rag_accel.system.doctor import installed_version
from rag_accel.system.processor import cpu_model, usable_cores

if TYPE_CHECKING:
    from rag_accel.engines.llm.local.paged.making import Compilation
    from rag_accel.engines.llm.local.paged.runner import PagedRunner

logger = logging.getLogger("rag_accel.llm")

#: Weights below which a model stays on torch unless the user says otherwise: its steps take so
#: little that tracing it would not pay.
LEAST_WEIGHTS = 1 << 24
#: Libraries whose versions a proof holds for.
_LIBRARIES = ("rag-accel", "torch", "transformers", "openvino")


@dataclass(frozen=True, slots=True)
class Source:
    """A model of transformers that a runner is made of.

    Args:
        model: must not change while the runner is used.
        digest: of the files it was loaded from, by which its proof is kept; None of a model object,
            whose weights may be others.
        is_same: tells whether the model has not changed since; from any thread.
    """

    model: Any
    digest: str | None = None
    is_same: Callable[[], bool] = always


@dataclass(frozen=True, slots=True)
class ChosenRunner:
    """A runner, and why it is this one.

    Args:
        runner: computes rows of sequences.
        name: ``torch`` or ``paged``.
        reason: of the choice, in a few words.
        copies: tells, as a string, what the runner holds besides the model, which may grow.
    """

    runner: Runner
    name: RunnerName
    reason: str
    copies: object = ""

    def describe(self) -> str:
        """Say in a few words what runs the model, and why."""
        return self.description()()

    def description(self) -> Callable[[], str]:
        """Return what says so at any time; it does not keep the runner."""
        kind = "OpenVINO's paged attention" if self.name == "paged" else "torch"
        said, copies = f"runs on {kind}: {self.reason}", self.copies
        return lambda: "; ".join(filter(None, (said, str(copies))))


class _UnavailableError(Exception):
    """The finding that a model is not run by paged attention; the message says why."""


def choose_runner(
    source: Source, options: LocalOptions, *, context: int | None = None, waits: bool = True
) -> ChosenRunner:
    """Return the runner of a model that was proved equal to the model's own forward.

    Args:
        source: the model.
        options: name the runner, the weights, the pool and the threads, and what is reused.
        context: the most tokens of a sequence; None for what the model was made for.
        waits: whether to wait for a trace that is not kept, some ten seconds.

    Raises:
        ConfigError: the model was not proved equal, or what was asked for by name cannot be had.
    """
    reason = "as asked for"
    if options.runner != "torch":
        try:
            return _on_paged(source, options, context, waits)
        except _UnavailableError as error:
            _require_choice(options, error)
            logger.info("a language model runs on torch: %s", error)
            reason = str(error)
    model, most = source.model, context or ModelShape.of(source.model.config).context
    copy = packed_copy(model)

    def prove() -> None:
        check_equality(model)
        if options.reuses_paths:
            check_trees(model, packed_runner(copy, most, UNBOUNDED))

    _prove_once(prove, source, options, "torch", most)
    return ChosenRunner(packed_runner(copy, most, options.pool_bytes), "torch", reason)


def _require_choice(options: LocalOptions, error: _UnavailableError) -> None:
    """Raise ConfigError unless torch may run the model, too."""
    if options.weights != "own":
        raise ConfigError(
            f"the model is not run with {options.weights} weights",
            where="weights",
            found=str(error),
            valid="own, or int8 where paged attention runs the model",
            hint="leave weights out: the model then runs with its own",
        ) from error
    if options.runner == "paged":
        raise ConfigError(
            "the model is not run by paged attention",
            where="runner",
            found=str(error),
            valid="auto | torch",
            hint="leave runner out: torch runs it as well",
        ) from error


def _on_paged(
    source: Source, options: LocalOptions, context: int | None, waits: bool
) -> ChosenRunner:
    """Return the runner on paged attention, once it is proved equal."""
    model, leaves_choice = source.model, options.runner == "auto" and options.weights == "own"
    with _failures_named():
        _require_suited(model, leaves_choice=leaves_choice)
        from rag_accel.engines.llm.local.paged import topology
        from rag_accel.engines.llm.local.paged.int8_weights import Int8Weights
        from rag_accel.engines.llm.local.paged.making import Compilation, trace_spec

        spec = trace_spec(model)
        if leaves_choice and not waits and not topology.is_kept(spec):
            topology.trace_in_background(spec)
            raise _UnavailableError("it is traced meanwhile, for engines that are made later")
        compiled = partial(
            Compilation,
            model,
            threads=_threads(options),
            probed=options.scored_layer(ModelShape.of(model.config).layers),
            int8=None if options.weights == "own" else Int8Weights.of(model),
            is_same=source.is_same,
        )
        compilation = topology.read_trace(spec, compiled)
        if options.reuses_paths and not compilation.has_masks:
            raise _UnavailableError("this OpenVINO has no masks of rows, which trees of paths need")
        runner = compilation.runner(options.pool_bytes, context)
        prove = partial(_prove_paged, model, options, compilation, runner)
        _prove_once(prove, source, options, "paged", runner.context)
    reason = "it decodes faster on processors" if leaves_choice else "as asked for"
    reason = "int8 weights need it" if options.weights == "int8" else reason
    return ChosenRunner(runner, "paged", reason, runner.copies)


def _prove_paged(
    model: Any, options: LocalOptions, compilation: Compilation, runner: PagedRunner
) -> None:
    """Compare logits, and those over reused states where states are reused, with the model's own.

    Raises:
        ConfigError: they differ.
    """
    from rag_accel.engines.llm.local.paged.sequences import block_count

    if not runner.pool.fits(PROOF_SLOTS):  # the same compiled graph, over room for the proof
        runner = compilation.runner(runner.pool.block_bytes * block_count(PROOF_SLOTS))
    share = None if options.weights == "own" else INT8_BOUND
    layer, reused = options.scored_layer(runner.layers), options.kv_reuse != "exact"
    check_runner(model, runner, layer, reused=reused, share=share)
    if options.reuses_paths:
        check_trees(model, runner, share)


def _prove_once(
    prove: Callable[[], None], source: Source, options: LocalOptions, runner: str, context: int
) -> None:
    """Prove a runner unless that was done for these files, or keep the proof if it is one.

    Of a model object it is done at each load: its weights may be others, and to tell takes as long.
    """
    model, threads = source.model, _threads(options)
    device = model.device
    statement = {
        "files": source.digest,
        "dtype": str(model.dtype),
        "weights": options.weights,
        "runner": runner,
        "context": context,
        "threads": threads,
        "reuse": options.kv_reuse,
        "layer": options.scored_layer(ModelShape.of(model.config).layers),
        "processor": [cpu_model(), torch.backends.cpu.get_cpu_capability()],
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "precision": torch.get_float32_matmul_precision(),
        "versions": {name: installed_version(name) for name in _LIBRARIES},
    }
    if source.digest is not None and is_proved(statement):
        return
    with thread_count(threads):
        prove()
    if source.digest is not None:
        keep_proof(statement)


def _threads(options: LocalOptions) -> int:
    return usable_cores() if options.max_threads is None else options.max_threads


@contextmanager
def _failures_named() -> Iterator[None]:
    """Make of whatever keeps a model from paged attention the error that says so.

    Nothing that is wrong with it stops a program that torch can run.
    """
    try:
        yield
    except _UnavailableError:
        raise
    except ConfigError as error:
        raise _UnavailableError(f"{error.what}: {error.found}") from error
    except Exception as error:  # of native code and of files, in any way
        # A refusal of ours says it all, at first; another error needs its type, and OpenVINO's
        # begin with places in its source.
        is_ours = type(error).__module__.startswith("rag_accel.")
        said = str(error).strip().splitlines()[:: 1 if is_ours else -1]
        name = "" if is_ours else type(error).__name__
        raise _UnavailableError(": ".join(filter(None, (name, *said[:1])))) from error


def _require_suited(model: Any, *, leaves_choice: bool) -> None:
    if model.device.type != "cpu":
        raise _UnavailableError(f"the model is on {model.device.type}")
    if importlib.util.find_spec("openvino") is None:
        raise _UnavailableError("OpenVINO is not installed: pip install 'rag-accel[fast]'")
    size = sum(weight.numel() for weight in model.parameters())
    if leaves_choice and size < LEAST_WEIGHTS:
        raise _UnavailableError(f"a model of {size:,} weights gains nothing by another")
    if model.dtype == torch.bfloat16 and not _computes_bfloat16():
        raise _UnavailableError(
            "this processor has no paged attention in bfloat16; with dtype='float32' it has"
        )


def _computes_bfloat16() -> bool:
    """Tell whether OpenVINO computes in bfloat16 here, which takes AVX-512 or AMX."""
    openvino = importlib.import_module("openvino")
    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
