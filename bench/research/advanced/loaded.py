"""Run many requests at once: ours, and ours without an eye for topology."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from bench.ablation.switches import blind_to_depth
from bench.emulated.table import DeviceTable, step_time_s
from bench.measure import Pairs, alternate, median, ratios
from bench.paired import in_ms
from bench.research.advanced.alone import OURS, Measured, same_rows
from bench.research.advanced.ours import Ours
from bench.research.advanced.stages import Notes
from bench.research.advanced.workload import LOADED, LOADED_TOP_K, TOP_K, Setting
from bench.results import Row, median_row, row_of

BLIND = "blind"
_SEED = 20_240


@dataclass(frozen=True, slots=True)
class Load:
    """One run: each answer and each latency."""

    answers: list[str]
    latencies_s: list[float]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The runs of the blind arm (``plain``) and of ours, and how rows name what they ran."""

    loads: Pairs[Load]
    workload: str

    @property
    def gains(self) -> list[float]:
        """Return blind p50 / ours p50 of each pair of runs."""
        p50s_s = self.loads.map(lambda load: median(load.latencies_s))
        return [1 / ratio for ratio in ratios(p50s_s)]

    @property
    def gain(self) -> float:
        """Return their median."""
        return median(self.gains)

    def rows(self) -> list[Row]:
        """Return the latencies of both arms, their ratios, and how many answers are equal."""
        by_arm = {BLIND: self.loads.plain, OURS: self.loads.other}
        answers = {
            arm: [answer for load in loads for answer in load.answers]
            for arm, loads in by_arm.items()
        }
        rows = [
            row_of(arm, self.workload, "latency_ms", [*map(in_ms, _all_latencies(loads))])
            for arm, loads in by_arm.items()
        ]
        rows.append(median_row(f"{BLIND} / {OURS}", self.workload, "run_p50_ratio", self.gains))
        return [*rows, *same_rows(OURS, self.workload, answers[BLIND], answers[OURS])]


def run_loaded(
    setting: Setting,
    alone: Measured,
    together: int,
    *,
    share: float,
    requests: int,
    repeats: int,
) -> Loaded:
    """Run both arms in turn, at the same arrivals.

    Args:
        setting: what both share.
        alone: the same variant without load; says what a request needs.
        together: requests that arrive at the same moment.
        share: of what the busier of cores and device can take, for the rate of arrivals.
        requests: of each run.
        repeats: pairs of runs.
    """
    device = setting.loaded_device
    rate = share * _capacity(device.table, alone.notes)
    questions = [setting.request(place).question for place in range(requests)]
    with ExitStack() as stack:
        with blind_to_depth():
            blind = stack.enter_context(Ours.opened(setting, device, top_k=LOADED_TOP_K))
        ours = stack.enter_context(Ours.opened(setting, device, top_k=LOADED_TOP_K))

        def under_load(arm: Ours) -> Callable[[int], Load]:
            return lambda turn: Load(
                *arm.under_load(LOADED, questions, arrivals(rate, requests, together, turn))
            )

        loads = alternate(under_load(blind), under_load(ours), repeats)
    how = "one at a time" if together == 1 else f"{together} together"
    places = device.table.max_sequences
    workload = f"{LOADED.name}, {rate:.2g} arrivals/s, {how}, {places} places"
    return Loaded(loads, workload)


def arrivals(rate: float, requests: int, together: int, turn: int) -> list[float]:
    """Return when requests arrive, in seconds from the first; both arms of a turn get the same.

    Groups of ``together`` arrive as a Poisson process of which so much is known: that it brings
    ``requests`` in ``requests / rate`` seconds, so that their times are independent and uniform.
    With free gaps seven runs of 80 requests had 0.81 to 1.15 of the rate they were named after.
    """
    draws = random.Random(_SEED + turn)
    groups = math.ceil(requests / together)
    starts_s = sorted(draws.uniform(0.0, requests / rate) for _ in range(groups))
    each = (start_s - starts_s[0] for start_s in starts_s for _ in range(together))
    return list(itertools.islice(each, requests))


def _all_latencies(loads: Sequence[Load]) -> list[float]:
    return [seconds for load in loads for seconds in load.latencies_s]


def _capacity(table: DeviceTable, notes: Sequence[Notes]) -> float:
    """Return the requests per second that the busier of cores and device can take."""
    cpu_s = median([_loaded_cpu_s(one) for one in notes])
    return 1 / max(cpu_s, median([_share_of_device_s(table, one) for one in notes]))


def _loaded_cpu_s(notes: Notes) -> float:
    """Return the seconds of a request's searches and of reranking fewer passages."""
    return notes.cpu_s["search"] + notes.cpu_s["rerank"] * LOADED_TOP_K / TOP_K


def _share_of_device_s(table: DeviceTable, notes: Notes) -> float:
    """Return the device seconds of a request while all places are taken by ones like it."""
    places, number = table.max_sequences, len(notes.generated)
    read = sum(one.prompt_tokens for one in notes.generated)
    written = sum(one.completion_tokens for one in notes.generated)
    step_s = step_time_s(table, places, places * read // number, 0)
    return read / table.prefill_tokens_per_s + written * step_s / places
