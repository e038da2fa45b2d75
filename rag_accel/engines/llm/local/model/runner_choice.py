"""The choice between the runners of a model: proved, then measured once a machine."""

from __future__ import annotations

import importlib.util
import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_accel.engines.llm.local.batching.rows import Runner, SequenceRows
from rag_accel.engines.llm.local.model.self_check import (
    INT8_BOUND,
    PAGED_BOUNDS,
    check_equality,
    check_runner,
)
from rag_accel.engines.llm.local.options import RunnerName, WeightsName
from rag_accel.engines.torch_threads import thread_count
from rag_accel.errors import ConfigError
from rag_accel.system.files import replaced_file
from rag_accel.system.processor import cpu_model

if TYPE_CHECKING:
    from rag_accel.engines.llm.local.paged.int8_weights import Int8Weights

logger = logging.getLogger("rag_accel.llm")

#: Weights below which a model stays on torch unless the user says otherwise: its steps take so
#: little that tracing it would not pay.
LEAST_WEIGHTS = 1 << 24
#: What is measured: a piece of a prompt, and a token behind it, of which an answer has some.
_PROMPT, _TOKENS, _TIMES = 128, 32, 3


@dataclass(frozen=True, slots=True)
class ChosenRunner:
    """A runner, and why it is this one.

    Args:
        runner: computes rows of sequences.
        name: ``torch`` or ``paged``.
        reason: of the choice, in a few words.
    """

    runner: Runner
    name: RunnerName
    reason: str

    def describe(self) -> str:
        """Say in a few words what runs the model, and why."""
        kind = "OpenVINO's paged attention" if self.name == "paged" else "torch"
        return f"runs on {kind}: {self.reason}"


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
    _require_suited(source, wish)
    from rag_accel.engines.llm.local.paged import topology
    from rag_accel.engines.llm.local.paged.making import trace_spec

    spec = trace_spec(source)
    if wish.leaves_choice and not wish.waits and not topology.is_kept(spec):
        topology.trace_in_background(spec)
        raise _UnavailableError("it is traced meanwhile, for engines that are made later")
    if wish.weights == "int8":
        return ChosenRunner(_made(source, wish, spec), "paged", "int8 weights need it")
    runner = _made(source, wish, spec)
    size = sum(weight.nbytes for weight in source.parameters())
    held = f"; its compiled form holds another copy of the weights, {size >> 20} MiB"
    if wish.name == "paged":
        return ChosenRunner(runner, "paged", f"as asked for{held}")
    measured = _Measured.of(topology.folder_of(spec), wish.threads)
    if measured is None:
        check_equality(source)
        measured = _Measured.measure(runner, packed(), wish.threads)
        measured.keep(topology.folder_of(spec))
    if measured.is_faster:
        return ChosenRunner(runner, "paged", f"{measured}{held}")
    raise _UnavailableError(str(measured))


def _require_suited(source: Any, wish: RunnerWish) -> None:
    if source.device.type != "cpu":
        raise _UnavailableError(f"the model is on {source.device.type}")
    if importlib.util.find_spec("openvino") is None:
        raise _UnavailableError("OpenVINO is not installed: pip install 'rag-accel[fast]'")
    size = sum(weight.numel() for weight in source.parameters())
    if wish.leaves_choice and size < LEAST_WEIGHTS:
        raise _UnavailableError(f"a model of {size:,} weights gains nothing by another")


def _made(source: Any, wish: RunnerWish, spec: dict[str, Any]) -> Runner:
    """Return the runner on paged attention once it is proved equal.

    Raises:
        _UnavailableError: it cannot be made, or was not; says why.
    """
    from rag_accel.engines.compiled.compile_process import CompileError
    from rag_accel.engines.llm.local.paged.graph import PagedGraphError
    from rag_accel.engines.llm.local.paged.making import Compilation
    from rag_accel.engines.llm.local.paged.topology import traced

    try:
        topology = traced(spec)
        compilation = Compilation(
            source, topology, threads=wish.threads, probed=wish.probed, int8=_int8(source, wish)
        )
        runner = compilation.runner(wish.pool_bytes, wish.context)
        with thread_count(wish.threads):
            check_runner(source, runner, wish.probed, _bound(source, wish))
    except (CompileError, PagedGraphError) as error:
        raise _UnavailableError(str(error)) from error
    except ConfigError as error:
        raise _UnavailableError(f"{error.what}: {error.found}") from error
    except (ImportError, OSError, RuntimeError, MemoryError) as error:
        raise _UnavailableError(f"{type(error).__name__}: {error}") from error
    return runner


def _int8(source: Any, wish: RunnerWish) -> Int8Weights | None:
    """Return the int8 weights of a model if they are asked for; read, or made and kept."""
    if wish.weights == "own":
        return None
    from rag_accel.engines.llm.local.paged.int8_files import int8_weights

    return int8_weights(source, wish.model, wish.weights_disk_bytes)


def _bound(source: Any, wish: RunnerWish) -> float:
    return PAGED_BOUNDS[source.dtype] if wish.weights == "own" else INT8_BOUND


@dataclass(frozen=True, slots=True)
class _Measured:
    """Seconds of a piece of a prompt and of a token, by both runners."""

    threads: int
    paged: tuple[float, float]
    torch: tuple[float, float]

    @property
    def is_faster(self) -> bool:
        """Tell whether a short answer takes less time by paged attention."""
        paged, torch = (prompt + _TOKENS * token for prompt, token in (self.paged, self.torch))
        return paged <= torch

    def __str__(self) -> str:
        paged, torch = (
            f"{1000 * token:.0f} ms a token and {1000 * prompt:.0f} ms for {_PROMPT} of a prompt"
            for prompt, token in (self.paged, self.torch)
        )
        return f"{paged} by paged attention, {torch} by torch, measured on {self.threads} threads"

    @classmethod
    def measure(cls, paged: Runner, torch: Runner, threads: int) -> _Measured:
        """Return what both take now; the least of a few runs, which other load changes least."""
        with thread_count(threads):
            return cls(threads, _seconds(paged), _seconds(torch))

    @classmethod
    def of(cls, folder: Path, threads: int) -> _Measured | None:
        """Return what was measured on this machine before; None if nothing was."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            kept = json.loads(_file(folder, threads).read_text(encoding="utf-8"))
            paged, torch = (tuple(map(float, kept[name])) for name in ("paged", "torch"))
            if len(paged) == len(torch) == 2:
                return cls(threads, (paged[0], paged[1]), (torch[0], torch[1]))
        return None

    def keep(self, folder: Path) -> None:
        """Write it beside the trace; where that cannot be written it is measured again."""
        told = json.dumps({"paged": self.paged, "torch": self.torch})
        with suppress(OSError), replaced_file(_file(folder, self.threads)) as file:
            file.write(told.encode())


def _file(folder: Path, threads: int) -> Path:
    machine = "".join(letter if letter.isalnum() else "-" for letter in cpu_model())
    return folder / f"measured-{machine[:80]}-{threads}.json"


def _seconds(runner: Runner) -> tuple[float, float]:
    size = min(_PROMPT, runner.context - _TIMES - 1)
    lane = runner.pool.take(size + _TIMES + 1)
    if lane is None:
        raise _UnavailableError("the pool has no room for a measurement")
    prompts, tokens = [], []
    try:
        for _ in range(_TIMES):
            rows = SequenceRows(lane, [1] * size, range(size), range(size), (size - 1,))
            prompts.append(_time(runner, rows))
        for at in range(size, size + _TIMES + 1):
            place = range(at, at + 1)
            tokens.append(_time(runner, SequenceRows(lane, [1], place, place, (0,))))
    finally:
        runner.pool.free(lane)
    return min(prompts), min(tokens)


def _time(runner: Runner, rows: SequenceRows) -> float:
    started = time.perf_counter()
    runner.run([rows])
    return time.perf_counter() - started
