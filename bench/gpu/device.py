"""The device that is measured, and what a part of the command finds there in its time."""

from __future__ import annotations

import gc
import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from bench.results import Row
from rag_accel.errors import ConfigError

FoundValue = TypeVar("FoundValue")

#: The next turn may take longer than the last by this factor.
_LONGER = 1.25
_OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True, slots=True)
class MeasuredDevice:
    """A device of torch.

    Args:
        name: as torch has it, such as ``cuda:0``.
        card: the name of the hardware.
        is_tiny: whether shapes are tiny, and figures prove nothing but the command.
    """

    name: str
    card: str
    is_tiny: bool

    @classmethod
    def of(cls, named: str | None) -> MeasuredDevice:
        """Return the device that is named, or the first of CUDA.

        Raises:
            ConfigError: torch is missing, or has no such device.
        """
        try:
            torch: Any = importlib.import_module("torch")
        except ImportError as error:
            raise ConfigError(
                "a device cannot be measured without torch",
                where="bench gpu",
                found=error,
                hint="pip install numpy torch transformers",
            ) from error
        if named is None and not torch.cuda.is_available():
            raise ConfigError(
                "torch finds no CUDA device",
                where="bench gpu",
                found=f"torch {torch.__version__}, torch.cuda.is_available() is False",
                hint="--device cpu tries the command in tiny shapes on the processor",
            )
        try:
            device = torch.device(named or "cuda:0")
            torch.zeros(1, device=device)
        except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for CUDA
            raise ConfigError(
                "torch has no such device",
                where="--device",
                found=f"{named}: {error}",
                valid="cuda:0 and the like, or cpu",
            ) from error
        if device.type != "cuda":
            return cls(str(device), "", True)
        place = f"cuda:{device.index or 0}"
        return cls(place, torch.cuda.get_device_name(place), False)

    def free(self) -> None:
        """Give memory back that no object holds any more."""
        gc.collect()
        if self.name.startswith("cuda"):
            importlib.import_module("torch").cuda.empty_cache()


@dataclass(frozen=True, slots=True)
class PartRun:
    """A run of a part: its device, its time, and what it has found so far.

    Args:
        device: that is measured.
        until: when no turn begins any more, of ``time.monotonic()``.
        rows: figures.
        ratios: of them.
        wrong: answers that are not what they must be.
    """

    device: MeasuredDevice
    until: float
    rows: list[Row] = field(default_factory=list[Row])
    ratios: dict[str, float] = field(default_factory=dict[str, float])
    wrong: list[str] = field(default_factory=list[str])

    @property
    def left_s(self) -> float:
        return max(0.0, self.until - time.monotonic())

    def within(self, share: float) -> PartRun:
        """Return the same run with a share of the time that is left; what is found is shared."""
        return replace(self, until=time.monotonic() + share * self.left_s)

    def turns(
        self, arms: Mapping[str, Callable[[int], FoundValue]], most: int, warm_up: int = 1
    ) -> dict[str, list[FoundValue]]:
        """Call arms in turn, each turn another first, until time or turns are spent.

        A turn that would end later, if it took a little longer than the last, does not begin.

        Returns:
            what each arm gave, turn by turn, without the warm-up; nothing if time was too short.
        """
        names = list(arms)
        found: dict[str, list[FoundValue]] = {name: [] for name in names}
        taken_s = 0.0
        for turn in range(most + warm_up):
            started = time.monotonic()
            if self.left_s <= _LONGER * taken_s:
                break
            first = turn % len(names)
            each = {name: arms[name](turn) for name in (*names[first:], *names[:first])}
            if turn >= warm_up:
                for name, value in each.items():
                    found[name].append(value)
            taken_s = time.monotonic() - started
        return found

    def check(self, is_right: bool, system: str, workload: str, metric: str, figure: float) -> None:
        """Add the row of a comparison, and name it if it went wrong."""
        self.rows.append(Row(system, workload, metric, figure, None, 1))
        if not is_right:
            self.wrong.append(f"{system}, {workload}: {metric} is {figure:g}")

    def note(self, system: str, workload: str, what: str) -> None:
        """Add the row of something that was not measured, and why."""
        self.rows.append(Row(system, workload, what, 1, None, 1))

    def attempt(self, system: str, workload: str, measure: Callable[[], None]) -> None:
        """Measure a size if there is time; one that does not fit into memory is a row."""
        if not self.left_s:
            self.note(system, workload, "no time")
            return
        try:
            measure()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self.note(system, workload, _OUT_OF_MEMORY)
        self.device.free()


def is_out_of_memory(error: BaseException | None) -> bool:
    """Tell whether an error, or one that it comes from, says that memory was too small."""
    while error is not None:
        named = type(error).__name__ in ("OutOfMemoryError", "MemoryError")
        if named or _OUT_OF_MEMORY in str(error).lower():
            return True
        error = error.__cause__ or error.__context__
    return False


def need(package: str) -> Any:
    """Return a module that may be missing.

    Raises:
        ImportError: it is; ``name`` is its package.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(str(error), name=package) from error
