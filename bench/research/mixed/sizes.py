"""Say what is measured of mixed workflows, and how much of it: quick, full and as told.

A run can be given another number of clusters to search and another device in its heavy setting,
another mix, and more arrivals:
``python -m bench mixed_workflows --set nprobe=64 --set table=h100_like_8b*2
--set mix=one_shot:3,hyde:1 --set seeds=3``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bench.emulated.table import H100_LIKE_1B, TABLES, DeviceTable, replicated
from bench.research.mixed.index_files import IndexSize
from bench.research.mixed.load import Window
from bench.research.mixed.trace import EVEN, Mix, Workflow
from bench.results import sizes_of
from rag_accel.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Setting:
    """An index and an emulated device; ``name`` is how rows name them."""

    name: str
    index: IndexSize
    table: DeviceTable | str


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        heavy: the setting whose bottleneck is to be the search.
        light: the setting in which generation takes nearly all of a request's time.
        requests: of the trace; arrivals begin anew after the last.
        warm: the window of a load before everything, not counted.
        warm_rps: its rate, so high that requests meet.
        unloaded: the window in which the rate is so low that requests hardly meet.
        unloaded_rps: that rate.
        window: of every other load.
        start_rps: the first rate of a sweep.
        precision: of a limit.
        probes: most loads of a sweep.
        light_rps: loads in the light setting; without any it is not measured.
        percents: of the limit of staged, at which systems are compared.
        seeds: loads with other arrivals at each end of a limit, and at each rate at which systems
            are compared.
        swept: systems whose limit is looked for, each from the limit of the one before.
        mix: workflows, and how many requests of each come in a round.
        objective: times the unloaded 95th percentile of the latency that a limit may have.
    """

    heavy: Setting
    light: Setting
    requests: int
    warm: Window
    warm_rps: float
    unloaded: Window
    unloaded_rps: float
    window: Window
    start_rps: float
    precision: float
    probes: int
    light_rps: tuple[float, ...]
    percents: tuple[int, ...] = (80, 50)
    seeds: int = 1
    swept: tuple[str, ...] = ("langchain", "staged", "ours", "staged_sq8_refine")
    mix: Mix = EVEN
    objective: float = 3.0


LIGHT = Setting("generation dominates", IndexSize(1_000_000, 1024, 64), "h100_like_8b")
# A quarter of a gigabyte is read for a search. With nothing to search one such device was seen to
# keep the objective up to some 80 requests a second (85 missed it), fewer than the baselines'
# searches allow; four leave the search as the bottleneck.
FAST = replicated(H100_LIKE_1B, 4)
QUICK = Sizes(
    heavy=Setting("retrieval-bound", IndexSize(1_000_000, 1024, 256), FAST),
    light=LIGHT,
    requests=1000,
    warm=Window(0, 6, 20, seed=1),
    warm_rps=100,
    unloaded=Window(0, 10, 8),
    unloaded_rps=1.5,
    window=Window(2, 6, 6),
    start_rps=80,
    precision=0.25,
    probes=3,
    light_rps=(),
    percents=(80,),
)
FULL = Sizes(
    heavy=Setting("retrieval-bound", IndexSize(4_000_000, 4096, 256), FAST),
    light=LIGHT,
    requests=3000,
    warm=Window(0, 15, 40, seed=1),
    warm_rps=160,
    unloaded=Window(0, 45, 30),
    unloaded_rps=1.5,
    window=Window(3, 30, 10),
    start_rps=80,
    precision=0.06,
    probes=6,
    light_rps=(2, 4, 7),
    seeds=3,
)


def configured(quick: bool, settings: Mapping[str, str]) -> Sizes:
    """Return the sizes that ``quick`` stands for, with other parameters.

    Raises:
        ConfigError: on an unknown parameter, or a value it cannot have.
    """
    sizes = QUICK if quick else FULL
    for name, text in settings.items():
        change = _PARAMETERS.get(name)
        if change is None:
            raise ConfigError(
                "unknown parameter",
                where="mixed_workflows",
                found=name,
                valid=", ".join(_PARAMETERS),
            )
        sizes = change(sizes, text)
    return sizes


def recorded(sizes: Sizes) -> dict[str, Any]:
    """Return sizes as a result keeps them: a device by its name."""
    named = {name: replace(one, table=_table_name(one)) for name, one in _settings(sizes)}
    return sizes_of(replace(sizes, **named))


def _settings(sizes: Sizes) -> list[tuple[str, Setting]]:
    return [("heavy", sizes.heavy), ("light", sizes.light)]


def _table_name(setting: Setting) -> str:
    return setting.table if isinstance(setting.table, str) else setting.table.name


def _with_nprobe(sizes: Sizes, text: str) -> Sizes:
    index = sizes.heavy.index
    nprobe = _whole("nprobe", text, most=index.clusters)
    return replace(sizes, heavy=replace(sizes.heavy, index=replace(index, nprobe=nprobe)))


def _with_table(sizes: Sizes, text: str) -> Sizes:
    name, _, count = text.partition("*")
    if name not in TABLES:
        raise ConfigError(
            "unknown device", where="table", found=repr(name), valid=", ".join(TABLES)
        )
    table = TABLES[name]
    if count:
        table = replicated(table, _whole("table", count))
    return replace(sizes, heavy=replace(sizes.heavy, table=table))


def _with_mix(sizes: Sizes, text: str) -> Sizes:
    mix: list[tuple[Workflow, int]] = []
    for part in text.split(","):
        name, _, times = part.partition(":")
        if name not in [*Workflow]:
            raise ConfigError(
                "unknown workflow", where="mix", found=repr(name), valid=", ".join(Workflow)
            )
        mix.append((Workflow(name), _whole("mix", times or "1")))
    return replace(sizes, mix=tuple(mix))


def _with_seeds(sizes: Sizes, text: str) -> Sizes:
    return replace(sizes, seeds=_whole("seeds", text))


def _whole(name: str, text: str, most: int = 1_000_000) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise ConfigError(
            "bad value of a parameter", where=name, found=repr(text), valid=f"1 to {most}"
        )
    return int(text)


_PARAMETERS: Mapping[str, Callable[[Sizes, str], Sizes]] = {
    "nprobe": _with_nprobe,
    "table": _with_table,
    "mix": _with_mix,
    "seeds": _with_seeds,
}
