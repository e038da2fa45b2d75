"""The choice between the runners of a model: proved, then measured once a machine."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rag_accel.engines.llm.local.batching.rows import Runner
from rag_accel.engines.llm.local.model.families import ModelShape
from rag_accel.engines.llm.local.model.runner import PackedRunner, packed_runner
from rag_accel.engines.llm.local.model.runner_costs import RunnerCosts
from rag_accel.engines.llm.local.model.runner_wish import RunnerWish
from rag_accel.engines.llm.local.model.self_check import (
    INT8_BOUND,
    PROOF_SLOTS,
    check_equality,
    check_runner,
    check_trees,
)
from rag_accel.engines.llm.local.model.shared_weights import packed_copy
from rag_accel.engines.llm.local.options import RunnerName
from rag_accel.engines.torch_threads import thread_count
from rag_accel.errors import ConfigError

if TYPE_CHECKING:
    from rag_accel.engines.llm.local.paged.int8_weights import Int8Weights
    from rag_accel.engines.llm.local.paged.runner import PagedRunner

logger = logging.getLogger("rag_accel.llm")

#: Weights below which a model stays on torch unless the user says otherwise: its steps take so
#: little that tracing it would not pay.
LEAST_WEIGHTS = 1 << 24


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


def choose_runner(source: Any, wish: RunnerWish) -> ChosenRunner:
    """Return the runner of a model that was proved equal to the model's own forward.

    Args:
        source: of transformers; it must not change while the runner is used.
        wish: what is asked for.

    Raises:
        ConfigError: the model was not proved equal, or what was asked for by name cannot be had.
    """
    chosen = _chosen(source, wish)
    if wish.trees:
        with thread_count(wish.threads):
            check_trees(source, chosen.runner, INT8_BOUND if wish.weights == "int8" else None)
    return chosen


def _chosen(source: Any, wish: RunnerWish) -> ChosenRunner:
    """Return the runner; what it is proved of is not yet rows of trees."""
    if wish.name == "torch":
        return _on_torch(source, wish, "as asked for")
    try:
        return _on_paged(source, wish)
    except _UnavailableError as error:
        if wish.weights != "own":
            raise ConfigError(
                f"the model is not run with {wish.weights} weights",
                where="weights",
                found=str(error),
                valid="own, or int8 where paged attention runs the model",
                hint="leave weights out: the model then runs with its own",
            ) from error
        if wish.name == "paged":
            raise ConfigError(
                "the model is not run by paged attention",
                where="runner",
                found=str(error),
                valid="auto | torch",
                hint="leave runner out: torch runs it as well",
            ) from error
        logger.info("a language model runs on torch: %s", error)
        return _on_torch(source, wish, str(error))


def _on_torch(source: Any, wish: RunnerWish, reason: str) -> ChosenRunner:
    check_equality(source)
    return ChosenRunner(_packed(source, wish), "torch", reason)


def _packed(source: Any, wish: RunnerWish) -> PackedRunner:
    context = wish.context or ModelShape.of(source.config).context
    return packed_runner(packed_copy(source), context, wish.pool_bytes)


def _on_paged(source: Any, wish: RunnerWish) -> ChosenRunner:
    """Return the runner on paged attention, or that on torch where it was measured faster."""
    with _failures_named():
        _require_suited(source, wish)
        from rag_accel.engines.llm.local.paged import topology
        from rag_accel.engines.llm.local.paged.making import trace_spec

        spec = trace_spec(source)
        if wish.leaves_choice and not wish.waits and not topology.is_kept(spec):
            topology.trace_in_background(spec)
            raise _UnavailableError("it is traced meanwhile, for engines that are made later")
        folder = topology.folder_of(spec)
        kept = RunnerCosts.of(folder, wish.threads)
        if wish.leaves_choice and kept.is_faster is False:
            raise _UnavailableError(str(kept))
        runner = _made(source, wish, spec, is_new=kept == RunnerCosts(wish.threads))
        costs = _measured(source, wish, runner, kept)
        if costs != kept:
            costs.keep(folder)
        if wish.leaves_choice and not costs.is_faster:
            raise _UnavailableError(str(costs))
        reason = "as asked for" if wish.name == "paged" else str(costs)
        if wish.weights == "int8":
            reason = "int8 weights need it"
        return ChosenRunner(runner, "paged", reason, runner.copies)


def _measured(source: Any, wish: RunnerWish, runner: PagedRunner, kept: RunnerCosts) -> RunnerCosts:
    """Return the costs of one forward, measuring whatever ``kept`` lacks.

    Torch is proved, made and timed only while it may run the model.
    """
    if wish.weights == "int8" or not wish.leaves_choice or kept.is_faster is not None:
        return kept
    check_equality(source)
    return kept.with_both(runner, _packed(source, wish))


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


def _require_suited(source: Any, wish: RunnerWish) -> None:
    if source.device.type != "cpu":
        raise _UnavailableError(f"the model is on {source.device.type}")
    if importlib.util.find_spec("openvino") is None:
        raise _UnavailableError("OpenVINO is not installed: pip install 'rag-accel[fast]'")
    size = sum(weight.numel() for weight in source.parameters())
    if wish.leaves_choice and size < LEAST_WEIGHTS:
        raise _UnavailableError(f"a model of {size:,} weights gains nothing by another")
    if str(source.dtype) == "torch.bfloat16" and not _computes_bfloat16():
        raise _UnavailableError(
            "this processor has no paged attention in bfloat16; with dtype='float32' it has"
        )


def _computes_bfloat16() -> bool:
    """Tell whether OpenVINO computes in bfloat16 here, which takes AVX-512 or AMX."""
    openvino = importlib.import_module("openvino")
    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _made(source: Any, wish: RunnerWish, spec: dict[str, Any], *, is_new: bool) -> PagedRunner:
    """Return the runner on paged attention once it is proved equal.

    At each load its logits are compared with those of the model's own forward, with these weights.
    Over reused states they are where states are reused, whatever was proved before: that may have
    been another checkpoint of the configuration, or another layer's recorded attention. Elsewhere
    they are only until costs are kept, as it takes a tenth to a fifth of a load (SmolLM2, 2
    threads), for what such a model never computes. Nothing is kept of any proof: the identity of a
    model's own weights, by which it could be, is not known at a load, and takes reading them all.

    Args:
        source: the model.
        wish: what is asked for.
        spec: what its trace depends on.
        is_new: whether no costs are kept of this configuration on this machine.

    Raises:
        Exception: it cannot be made, or was not proved.
    """
    from rag_accel.engines.llm.local.paged.making import Compilation
    from rag_accel.engines.llm.local.paged.sequences import block_count
    from rag_accel.engines.llm.local.paged.topology import read_trace

    compiled = partial(
        Compilation,
        source,
        threads=wish.threads,
        probed=wish.probed,
        int8=_int8(source, wish),
        is_same=wish.is_same,
    )
    compilation = read_trace(spec, compiled)
    if wish.trees and not compilation.has_masks:
        raise _UnavailableError("this OpenVINO has no masks of rows, which trees of paths need")
    runner = proved = compilation.runner(wish.pool_bytes, wish.context)
    if not runner.pool.fits(PROOF_SLOTS):  # the same compiled graph, over room for the proof
        proved = compilation.runner(runner.pool.block_bytes * block_count(PROOF_SLOTS))
    share = None if wish.weights == "own" else INT8_BOUND
    with thread_count(wish.threads):
        check_runner(source, proved, wish.probed, reused=wish.reuses or is_new, share=share)
    return runner


def _int8(source: Any, wish: RunnerWish) -> Int8Weights | None:
    """Return the int8 weights of a model if they are asked for; read, or made and kept."""
    if wish.weights == "own":
        return None
    from rag_accel.engines.llm.local.paged.int8_files import int8_weights

    return int8_weights(source, wish.model, wish.weights_disk_bytes)
