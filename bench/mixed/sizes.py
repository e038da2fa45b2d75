"""Say what is measured of mixed workflows, and how much of it: quick and full."""

from __future__ import annotations

from dataclasses import dataclass

from bench.mixed.index_files import IndexSize
from bench.mixed.load import Window
from rag_accel.engines.llm.emulated_table import DeviceTable


@dataclass(frozen=True, slots=True)
class Setting:
    """Pair an index with an emulated device; ``name`` is how rows name them."""

    name: str
    index: IndexSize
    table: DeviceTable | str


@dataclass(frozen=True, slots=True)
class Sizes:
    """Say how much is measured.

    Args:
        heavy: the setting whose bottleneck is to be the search.
        light: the setting whose bottleneck is the device.
        requests: of the trace; arrivals begin anew after the last.
        unloaded: the window in which the rate is so low that requests hardly meet.
        unloaded_rps: that rate.
        window: of every other load.
        start_rps: the first rate of a sweep.
        precision: of a limit.
        probes: most loads of a sweep.
        light_rps: loads in the light setting.
        swept: systems whose limit is looked for, each from the limit of the one before; langchain,
            staged and ours must be among them.
        objective: times the unloaded 95th percentile of the latency that a limit may have.
    """

    heavy: Setting
    light: Setting
    requests: int
    unloaded: Window
    unloaded_rps: float
    window: Window
    start_rps: float
    precision: float
    probes: int
    light_rps: tuple[float, ...]
    swept: tuple[str, ...] = ("langchain", "staged", "staged_sq8", "ours")
    objective: float = 3.0


LIGHT = Setting("device-bound", IndexSize(1_000_000, 1024, 64), "h100_like_8b")
# Half a gigabyte is read for a search, some 20 ms of a core. With half of that, or on the slower
# device fast_fp8, two cores search faster than the device answers, and all limits are the device's.
QUICK = Sizes(
    heavy=Setting("retrieval-bound", IndexSize(1_000_000, 1024, 512), "h100_like_1b"),
    light=LIGHT,
    requests=1000,
    unloaded=Window(0, 12, 10),
    unloaded_rps=1.5,
    window=Window(2, 14, 8),
    start_rps=30,
    precision=0.12,
    probes=4,
    light_rps=(4,),
    swept=("langchain", "staged", "ours"),
)
FULL = Sizes(
    heavy=Setting("retrieval-bound", IndexSize(4_000_000, 4096, 512), "h100_like_1b"),
    light=LIGHT,
    requests=3000,
    unloaded=Window(0, 45, 30),
    unloaded_rps=1.5,
    window=Window(3, 60, 15),
    start_rps=30,
    precision=0.06,
    probes=6,
    light_rps=(2, 4, 7),
)
