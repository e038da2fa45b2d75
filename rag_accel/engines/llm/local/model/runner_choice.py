"""The choice between the runners of a model: proved, then measured once a machine."""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rag_accel.engines.llm.local.batching.rows import Runner
from rag_accel.engines.llm.local.model.runner_costs import RunnerCosts
from rag_accel.engines.llm.local.model.self_check import INT8_BOUND, check_equality, check_runner
from rag_accel.engines.llm.local.model.shared_weights import always
from rag_accel.engines.llm.local.options import RunnerName, WeightsName
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


@dataclass(frozen=True, slots=True)
class RunnerWish:
    """The wish for a runner.

    Args:
        name: ``auto``, or the one that is to be taken.
        threads: the most of a forward.
        pool_bytes: the most bytes of keys and values.
        context: the most tokens of a sequence; None for what the model was made for.
        probed: the layer whose attention is to be recorded; None for none.
        waits: whether to wait for a trace that is not kept, some ten seconds.
        weights: ``own``, or ``int8``, which only paged attention computes with.
        weights_disk_bytes: the most bytes of files of int8 weights.
        model: the name of the model, for lists of such files.
        is_same: tells whether the model has not changed since; from any thread.
    """

    name: RunnerName
    threads: int
    pool_bytes: int
    context: int | None = None
    probed: int | None = None
    waits: bool = True
    weights: WeightsName = "own"
    weights_disk_bytes: int = 0
    model: str = ""
    is_same: Callable[[], bool] = always

    @property
    def leaves_choice(self) -> bool:
        """Tell whether torch may run the model, too."""
        return self.name == "auto" and self.weights == "own"


class _UnavailableError(Exception):
    """The finding that a model is not run by paged attention; the message says why."""


def choose_runner(source: Any, wish: RunnerWish, packed: Callable[[], Runner]) -> ChosenRunner:
    """Return the runner of a model that was proved equal to the model's own forward.

    Args:
        source: of transformers; it must not change while the runner is used.
        wish: what is asked for.
        packed: makes the runner on torch.

    Raises:
        ConfigError: the model was not proved equal, or what was asked for by name cannot be had.
    """
    if wish.name == "torch":
        return _on_torch(source, packed, "as asked for")
    try:
        return _on_paged(source, wish, packed)
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
        return _on_torch(source, packed, str(error))


def _on_torch(source: Any, packed: Callable[[], Runner], reason: str) -> ChosenRunner:
    check_equality(source)
    return ChosenRunner(packed(), "torch", reason)


def _on_paged(source: Any, wish: RunnerWish, packed: Callable[[], Runner]) -> ChosenRunner:
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
        measured = RunnerCosts.of(folder, wish.threads)
        if wish.leaves_choice and measured is not None and not measured.is_faster:
            raise _UnavailableError(str(measured))
        runner = _made(source, wish, spec, is_new=measured is None)
        if wish.weights == "int8":
            # A block of rows saves as much as with the model's own weights, where that is known.
            runner.blocks_from = math.inf if measured is None else measured.blocks_from
            return ChosenRunner(runner, "paged", "int8 weights need it", runner.copies)
        if measured is None:
            check_equality(source)
            measured = RunnerCosts.measure(runner, packed(), wish.threads)
            measured.keep(folder)
        if wish.name == "paged" or measured.is_faster:
            runner.blocks_from = measured.blocks_from
            asked = "as asked for" if wish.name == "paged" else str(measured)
            return ChosenRunner(runner, "paged", asked, runner.copies)
    raise _UnavailableError(str(measured))


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
        said = str(error).strip().partition("\n")[0]
        # A refusal of ours says it all; another error needs its type.
        name = "" if type(error).__module__.startswith("rag_accel.") else type(error).__name__
        raise _UnavailableError(": ".join(filter(None, (name, said)))) from error


def _require_suited(source: Any, wish: RunnerWish) -> None:
    if source.device.type != "cpu":
        raise _UnavailableError(f"the model is on {source.device.type}")
    if importlib.util.find_spec("openvino") is None:
        raise _UnavailableError("OpenVINO is not installed: pip install 'rag-accel[fast]'")
    size = sum(weight.numel() for weight in source.parameters())
    if wish.leaves_choice and size < LEAST_WEIGHTS:
        raise _UnavailableError(f"a model of {size:,} weights gains nothing by another")


def _made(source: Any, wish: RunnerWish, spec: dict[str, Any], *, is_new: bool) -> PagedRunner:
    """Return the runner on paged attention once it is proved equal.

    Args:
        source: the model.
        wish: what is asked for.
        spec: what its trace depends on.
        is_new: whether nothing of this trace was proved on this machine; else the model's own
            forward is proof enough.

    Raises:
        Exception: it cannot be made, or was not proved.
    """
    from rag_accel.engines.llm.local.paged.making import Compilation
    from rag_accel.engines.llm.local.paged.topology import traced

    rounded = _int8(source, wish)
    compilation = Compilation(
        source,
        traced(spec),
        threads=wish.threads,
        probed=wish.probed,
        int8=rounded,
        is_same=wish.is_same,
    )
    runner = compilation.runner(wish.pool_bytes, wish.context)
    share = None if wish.weights == "own" else INT8_BOUND
    with thread_count(wish.threads):
        check_runner(source, runner, wish.probed, reused=is_new, share=share)
    return runner


def _int8(source: Any, wish: RunnerWish) -> Int8Weights | None:
    """Return the int8 weights of a model if they are asked for; read, or made and kept."""
    if wish.weights == "own":
        return None
    from rag_accel.engines.llm.local.paged.int8_files import int8_weights

    return int8_weights(source, wish.model, wish.weights_disk_bytes)
