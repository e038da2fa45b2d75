"""Charts of measurements: as PNG in a notebook, as SVG in a page.

Whatever takes part has the same colour in every chart. A caption names machine, date and n, so that
a picture that is passed on still says what was measured.
"""

from __future__ import annotations

import datetime
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

try:
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError(
        "charts need matplotlib: pip install 'rag-accel[demo]'; for the notebooks, in a checkout:"
        " pip install -e '.[notebooks]'"
    ) from error

from rag_accel.system.processor import cpu_model, usable_cores

#: By the order of the series: plain, accelerated, the best one could build by hand, others.
COLOURS = ("#8a8f98", "#1a66c2", "#d08a1d", "#4c9a6a", "#9a4c8a")
_SIZE_INCHES = (7.0, 3.2)
_TIMELINE_ROW_INCHES = 0.42
_DPI = 110
#: Left out of an SVG: they change from run to run, or name addresses that no reader follows.
_NAMED = ("Date", "Creator", "Format", "Type")


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart. As the last expression of a notebook's cell, it is shown."""

    figure: Figure

    def svg(self) -> str:
        """Return an ``<svg>`` element whose texts stay texts."""
        import matplotlib

        written = io.StringIO()
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rag_accel"}):
            self.figure.savefig(
                written, format="svg", bbox_inches="tight", metadata=dict.fromkeys(_NAMED)
            )
        text = written.getvalue()
        return text[text.index("<svg") :]

    def _repr_png_(self) -> bytes:
        written = io.BytesIO()
        self.figure.savefig(written, format="png", dpi=_DPI, bbox_inches="tight")
        return written.getvalue()


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of work on a timeline.

    Args:
        row: what did it, an engine's name.
        start_s: when it began, from the timeline's beginning.
        end_s: when it ended.
        items: how many requests' items it did together.
    """

    row: str
    start_s: float
    end_s: float
    items: int = 1


def machine() -> str:
    """Return processor, usable cores and today's date, for a caption."""
    cores = usable_cores()
    return f"{cpu_model()}, {cores} core{'s' * (cores > 1)}, {datetime.date.today():%d %B %Y}"


def bar_chart(
    title: str,
    groups: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    unit: str,
    caption: str,
) -> Chart:
    """Draw a bar for each series in each group, with its value on top.

    Args:
        title: what is compared.
        groups: labels along the axis, such as "1 user", "16 users".
        series: by its name, a value for each group; None where there is none.
        unit: of the values, such as "answers per second".
        caption: machine, date and n.

    Raises:
        ValueError: if a series has not a value for each group.
    """
    figure, axes = _axes(title, caption)
    width = 0.8 / max(1, len(series))
    for index, (name, values) in enumerate(series.items()):
        if len(values) != len(groups):
            raise ValueError(f"{name!r} has {len(values)} values for {len(groups)} groups")
        known = [(group, value) for group, value in enumerate(values) if value is not None]
        places = [group - 0.4 + width * (index + 0.5) for group, _ in known]
        heights = [value for _, value in known]
        bars = axes.bar(places, heights, 0.94 * width, label=name, color=_colour(index))
        axes.bar_label(bars, [_short(value) for value in heights], fontsize=8, padding=2)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(unit)
    axes.margins(y=0.14)
    _legend(axes)
    return Chart(figure)


def line_chart(
    title: str,
    places: Sequence[float],
    series: Mapping[str, Sequence[float]],
    axis: str,
    unit: str,
    caption: str,
) -> Chart:
    """Draw a line for each series over numbers, such as seconds over documents.

    Args:
        title: what is compared.
        places: numbers along the axis.
        series: by its name, a value for each of them.
        axis: what ``places`` counts.
        unit: of the values.
        caption: machine, date and n.

    Raises:
        ValueError: if a series has not a value for each place.
    """
    figure, axes = _axes(title, caption)
    for index, (name, values) in enumerate(series.items()):
        if len(values) != len(places):
            raise ValueError(f"{name!r} has {len(values)} values for {len(places)} places")
        axes.plot(places, values, marker="o", label=name, color=_colour(index))
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.set_xlabel(axis)
    axes.set_ylabel(unit)
    axes.set_ylim(bottom=0)
    _legend(axes)
    return Chart(figure)


def timeline(title: str, spans: Sequence[Span], caption: str) -> Chart:
    """Draw when each row worked, and write into each span how many items it did together."""
    rows = list(dict.fromkeys(span.row for span in spans))
    figure, axes = _axes(title, caption)
    figure.set_figheight(1.2 + _TIMELINE_ROW_INCHES * max(1, len(rows)))
    end = max((span.end_s for span in spans), default=0.0)
    for span in spans:
        place, length = rows.index(span.row), span.end_s - span.start_s
        colour = _colour(1 if span.items > 1 else 0)
        axes.broken_barh([(span.start_s, length)], (place - 0.36, 0.72), facecolors=colour)
        if span.items > 1 and length > 0.02 * end:
            middle = span.start_s + length / 2
            axes.text(middle, place, str(span.items), fontsize=7, color="white", **_CENTRED)
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.grid(axis="y", visible=False)
    return Chart(figure)


_CENTRED: dict[str, Any] = {"ha": "center", "va": "center"}


def _axes(title: str, caption: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", pad=22)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)
    figure.supxlabel(caption, fontsize=7, color="#5a5f68", x=0.01, ha="left")
    return figure, axes


def _legend(axes: Any) -> None:
    # Between title and axes, where nothing is drawn.
    axes.legend(
        fontsize=8,
        frameon=False,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(axes.get_legend_handles_labels()[0]),
        borderaxespad=0.2,
        columnspacing=1.5,
        handlelength=1.2,
    )


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
