"""Draw what each mechanism is worth, from the result of the suite ``mechanisms``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench.results import SuiteResult
from bench.together.arms import EXACT, Mechanism, added_name, alone_name, share_name
from bench.together.shares import WORTH

SUITE = "mechanisms"
_WIDTH = 0.38
_NOTES = {
    Mechanism.DEVICES: "off by default; on the same cores here",
    Mechanism.REUSE: "approximate; alone: over local engine",
}


def draw_worth(result: SuiteResult, path: Path) -> None:
    """Write a picture: by mechanism its speed-up alone and on top of all others, and its share.

    Nothing is drawn of a result of other mechanisms.

    Raises:
        ImportError: if matplotlib is missing; names the extra.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'rag-accel[bench]'") from error
    if not result.ratios.keys() >= set(map(share_name, EXACT)):
        return
    # Equal results give equal files.
    with rc_context({"svg.hashsalt": SUITE}):
        picture = Figure(figsize=(9, 5), layout="constrained")
        many = next(row.workload for row in result.rows if row.workload != "1 user")
        for axes, users in zip(picture.subplots(1, 2, sharey=True), ("1 user", many), strict=True):
            for number, (label, by) in enumerate(_speed_ups(result, users).items()):
                places = [place + number * _WIDTH for place in range(len(by))]
                axes.barh(places, list(by.values()), _WIDTH, label=label)
            axes.axvline(1.0, color="black", linewidth=0.8)
            axes.set_yticks(
                [place + _WIDTH / 2 for place in range(len(Mechanism))], _labels(result, many)
            )
            axes.set_title(users)
            axes.set_xlabel("times faster")
        axes.invert_yaxis()
        axes.legend(loc="lower right")
        picture.savefig(path, metadata={"Date": None})


def _labels(result: SuiteResult, many: str) -> list[str]:
    """Return the mechanisms, each exact one with its share of the gain of many users."""
    share = {one: result.ratios[share_name(one)] for one in EXACT}
    return [
        f"{one}\n{share[one]:.0%} of the gain, {many}"
        if one in EXACT
        else f"{one}\n({_NOTES[one]})"
        for one in Mechanism
    ]


def _speed_ups(result: SuiteResult, users: str) -> Mapping[str, Mapping[str, float]]:
    worth = {
        row.system: row.median
        for row in result.rows
        if row.workload == users and row.metric == WORTH
    }
    return {
        "alone": {one: worth[alone_name(one)] for one in Mechanism},
        "added to all others": {one: worth[added_name(one)] for one in Mechanism},
    }
