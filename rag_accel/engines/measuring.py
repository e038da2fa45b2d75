"""What batches cost on an idle engine: its latency and how many items pay at once.

The line is that of WindVE 4.2.2, Equation 12; the largest efficient batch is Teola's (4.2, Pass 2).
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import (
    Engine,
    EngineRequest,
    LatencyModel,
    PrimitiveKind,
    RerankBatch,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.errors import ConfigError, EngineError
from rag_accel.system.files import replaced_file

SIZES = (1, 2, 4, 8, 16, 32, 64)
#: A batch is efficient while an item of it takes at most so much more than one of the best batch.
SATURATED = 1.05

Payload = TextBatch | RerankBatch


@dataclass(frozen=True, slots=True)
class Measurements:
    """The times that batches of an engine took.

    Args:
        points: pairs of items in a batch and seconds, of growing sizes, at least two.
    """

    points: tuple[tuple[int, float], ...]

    @property
    def latency(self) -> LatencyModel:
        """Return the fitted line: ``base_s`` is WindVE's beta, ``per_item_s`` its alpha."""
        return fit_latency(self.points)

    @property
    def max_batch(self) -> int:
        """Return the largest efficient batch: beyond it, an item gets hardly any cheaper."""
        least = min(seconds / items for items, seconds in self.points)
        return next(items for items, seconds in self.points if seconds / items <= SATURATED * least)


def fit_latency(points: Sequence[tuple[int, float]]) -> LatencyModel:
    """Fit ``t = alpha * C + beta`` with ``alpha, beta >= 0`` to pairs of concurrency and seconds.

    The least-squares line where it respects the bounds; otherwise the better of the line through
    the origin and the constant, which is where the bounded optimum then lies.

    Raises:
        ConfigError: fewer than two different concurrencies.
    """
    if len({items for items, _ in points}) < 2:
        raise ConfigError(
            "a line needs two concurrencies", found=str([items for items, _ in points])
        )
    count = len(points)
    mean_items = sum(items for items, _ in points) / count
    mean_s = sum(seconds for _, seconds in points) / count
    spread = sum((items - mean_items) ** 2 for items, _ in points)
    alpha = sum((items - mean_items) * (seconds - mean_s) for items, seconds in points) / spread
    beta = mean_s - alpha * mean_items
    if alpha >= 0.0 and beta >= 0.0:
        return LatencyModel(base_s=beta, per_item_s=alpha)
    through_origin = sum(items * seconds for items, seconds in points) / sum(
        items * items for items, _ in points
    )
    candidates = (
        LatencyModel(base_s=0.0, per_item_s=max(0.0, through_origin)),
        LatencyModel(base_s=max(0.0, mean_s), per_item_s=0.0),
    )
    return min(candidates, key=lambda model: _error(model, points))


def measure(
    engine: Engine,
    kind: PrimitiveKind,
    payload: Callable[[int], Payload],
    *,
    sizes: Sequence[int] = SIZES,
    repeats: int = 3,
    threads: int = 1,
    clock: Clock | None = None,
) -> Measurements:
    """Let an idle engine compute batches of growing size, the fastest of ``repeats`` each.

    One more run of the largest before warms up. Steps the engine in the calling thread, so call it
    before a scheduler drives the engine.

    Args:
        engine: what to measure; it is left without work.
        kind: what it is asked for.
        payload: makes a batch of so many items; make them as long as real ones.
        sizes: items of the batches.
        repeats: runs of each size that count.
        threads: what each step may use.
        clock: measures.

    Raises:
        ConfigError: no run, or fewer than two different sizes.
        EngineError: a batch does not end.
        BaseException: what the engine reports as the error of a batch.
    """
    ascending = sorted(set(sizes))
    if repeats < 1 or len(ascending) < 2 or ascending[0] < 1:
        raise ConfigError(
            "nothing to measure",
            found=f"{repeats} repeats, sizes {list(sizes)}",
            valid="at least one repeat and two sizes from 1",
        )
    timer = clock or MonotonicClock()

    def run(items: int) -> float:
        return _run(engine, EngineRequest(_WORK, "measure", kind, payload(items)), threads, timer)

    run(ascending[-1])
    return Measurements(
        tuple((items, min(run(items) for _ in range(repeats))) for items in ascending)
    )


_WORK = WorkId("measure")
_MOST_STEPS = 10_000


def _error(model: LatencyModel, points: Sequence[tuple[int, float]]) -> float:
    return sum((model.predict_s(items) - seconds) ** 2 for items, seconds in points)


def _run(engine: Engine, work: EngineRequest, threads: int, clock: Clock) -> float:
    started = clock.now()
    engine.submit([work])
    for _ in range(_MOST_STEPS):
        for output in engine.step(StepBudget(threads=threads)):
            if output.kind == "error":
                raise output.error or EngineError(
                    "an engine reported an error without saying which"
                )
            if output.kind == "final":
                return clock.now() - started
    engine.cancel([work.id])
    raise EngineError(
        "an engine does not end what it is measured with", found=f"{_MOST_STEPS} steps"
    )


# Keep what was measured of engines on disk, one small JSON file for each.

FORMAT = 1

logger = logging.getLogger("rag_accel.profiles")


class ProfileStore:
    """Measurements on disk, by what was measured and on which machine.

    Files say in plain words what they are of. One that is damaged, or of another format, counts as
    missing. Several processes may use one directory: the last to write wins.

    Args:
        directory: where the files are; made if it is missing.
        machine: all about this machine that decides how fast engines are.

    Raises:
        ConfigError: the directory cannot be made.
    """

    def __init__(self, directory: Path, machine: str) -> None:
        self._directory = directory
        self._machine = machine
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                "profiles cannot be kept here",
                where=f"profile_dir={str(directory)!r}",
                found=type(error).__name__,
                valid="a directory that can be made and written",
            ) from error

    def find(self, speed_key: str) -> Measurements | None:
        """Return what is known of engines with this key on this machine."""
        path = self._path(speed_key)
        try:
            return _read(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
            logger.warning("the stored profile %s cannot be used: %s", path, error)
            return None

    def keep(self, speed_key: str, measured: Measurements) -> None:
        """Write what was measured; where that fails, warn and go on."""
        path = self._path(speed_key)
        said = {
            "format": FORMAT,
            "engine": speed_key,
            "machine": self._machine,
            "items_and_seconds": measured.points,
            "latency": asdict(measured.latency),
            "max_batch": measured.max_batch,
        }
        try:
            with replaced_file(path) as file:
                file.write(json.dumps(said, indent=1).encode())
        except OSError as error:
            logger.warning("the profile %s cannot be stored: %s", path, error)

    def _path(self, speed_key: str) -> Path:
        name = hashlib.sha256(f"{self._machine}\n{speed_key}".encode()).hexdigest()[:32]
        return self._directory / f"{name}.json"


def _read(said: Any) -> Measurements:
    if said["format"] != FORMAT:
        raise ValueError(f"format {said['format']!r}, not {FORMAT}")
    points = tuple((int(items), float(seconds)) for items, seconds in said["items_and_seconds"])
    sizes = [items for items, _ in points]
    if len(points) < 2 or sizes[0] < 1 or sizes != sorted(set(sizes)):
        raise ValueError(f"sizes {sizes}, not growing from 1")
    if not all(0.0 <= seconds < float("inf") for _, seconds in points):
        raise ValueError("a time is no time")
    measured = Measurements(points)
    _ = measured.latency, measured.max_batch  # numbers beyond all measure fail here, not in use
    return measured


# Name what decides how fast a model is, so that what was measured of it is found again.


def model_speed_key(model: Any, *settings: object) -> str:
    """Return a digest of a torch model's layers, shapes, precision and device, and of settings.

    The values of the weights are not in it: they do not change the time. Empty for anything
    else.
    """
    torch = sys.modules.get("torch")  # without it nothing can be such a model
    if torch is None or not isinstance(model, torch.nn.Module):
        return ""
    digest = hashlib.sha256()
    for module in model.modules():
        digest.update(f"{type(module).__module__}.{type(module).__qualname__}\n".encode())
    for name, weights in model.named_parameters():
        about = f"{name} {tuple(weights.shape)} {weights.dtype} {weights.device}\n"
        digest.update(about.encode())
    digest.update(repr(settings).encode())
    return digest.hexdigest()[:32]
