"""Measured figures in sentences of documents come from results, and none stand there by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.inline_figures import FIGURE, documents, fill_pages
from bench.results import SuiteResult
from rag_accel.errors import ConfigError

ROOT = Path(__file__).parents[2]
RESULTS = [
    SuiteResult("kv_ttft", (), {"reuse_vs_full": 42.85}),
    SuiteResult("demo", (), {"x": 0.5}),
]

_N = r"\[?\d+(?:\.\d+)?(?: to \d+(?:\.\d+)?)?"
_UNIT = r"(?:ms|µs|us|s|seconds|minutes|MiB|MB|GiB|GB)\b"
_THINGS = r"(?:tokens|answers|texts|searches|questions|requests|pairs|vectors)"
_CLAIMS = r"(?:takes?|took|costs?|after|instead of|against|rather than|uses?)"
#: Figures that were measured, by the words around them.
MEASURED = re.compile(
    rf"{_N} times\b|\b{_N} ?x\b|{_N}(?: %)? (?:faster|slower|longer|more|less) than"
    rf"|{_N} {_THINGS}(?:/s| (?:a|per) second)"
    rf"|{_CLAIMS} (?:about |some )?{_N} {_UNIT}"
    rf"|{_N} {_UNIT} (?:longer|faster|slower|sooner|each|per|a (?:call|step|token|text))"
    rf"|{_N} {_UNIT} \|"
    r"|\b(?:[Tt]wice|[Hh]alf as many|a third of) (?:\[?the|again)\b"
)
#: What stands outside of marks and is no measurement: page, words, reason.
ALLOWED = {
    ("docs/command_line.md", "2x"): "defines a predicted gain",
    ("docs/production.md", "after 10 s"): "a setting",
    ("docs/production.md", "1.25 times"): "a setting: when work goes last",
    ("docs/langchain.md", "twice the"): "what compiling may take at most, a rule of skipping",
    ("docs/devices.md", "after 20 seconds"): "a setting: when a silent server is abandoned",
    ("docs/guides/hosted_models.md", "300 s |"): "a setting: how long vectors are cached",
    ("docs/devices.md", "100 texts a second"): "a question that a user asks",
}
GENERATED = re.compile(r"<!-- (results|headlines|gains|demo) -->.*?<!-- /\1 -->", re.DOTALL)
#: Pages that a program writes.
WRITTEN_BY_PROGRAMS = {"docs/options.md", "docs/known_classes.md", "docs/stacks.md"}


def _strays(text: str) -> list[str]:
    """Return the measured figures that no result gave."""
    text = FIGURE.sub("", GENERATED.sub("", re.sub(r"```.*?```", "", text, flags=re.DOTALL)))
    return MEASURED.findall(re.sub(r"\s+", " ", text))


def _page(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text)
    return page


def test_a_mark_is_filled_with_its_ratio_and_the_rest_stays(tmp_path: Path) -> None:
    mark = (
        "| a | <!-- kv_ttft.reuse_vs_full:.0f -->{}<!-- / --> times, <!-- demo.x:.0%{}<!-- / --> |"
    )
    page = _page(tmp_path, mark.format("", " -->"))
    fill_pages([page], RESULTS)
    assert page.read_text() == mark.format("43", " -->50%")
    fill_pages([page], RESULTS)
    assert page.read_text() == mark.format("43", " -->50%")


@pytest.mark.parametrize(
    "text",
    [
        "A <!-- kv_ttft.none:.0f -->1<!-- / -->",
        "A <!-- none.reuse_vs_full:.0f -->1<!-- / -->",
        "A <!-- kv_ttft.reuse_vs_full:q -->1<!-- / -->",
        "A <!-- kv_ttft.reuse_vs_full:.0f -->1",
        "1<!-- / -->",
        "A <!-- kv_ttft.reuse_vs_full:.0f -->1\n<!-- / -->",
        "A\n<!-- kv_ttft.reuse_vs_full:.0f -->1<!-- / -->",
        "A\n- <!-- kv_ttft.reuse_vs_full:.0f -->1<!-- / -->",
    ],
)
def test_a_mark_without_figure_or_end_is_refused_and_no_page_written(
    tmp_path: Path, text: str
) -> None:
    good = tmp_path / "good.md"
    good.write_text("A <!-- demo.x:.0% -->7%<!-- / -->")
    with pytest.raises(ConfigError, match="mark"):
        fill_pages([good, _page(tmp_path, text)], RESULTS)
    assert "7%" in good.read_text()


@pytest.mark.parametrize("page", documents(ROOT), ids=lambda page: page.name)
def test_no_measured_figure_stands_in_a_document_by_hand(page: Path) -> None:
    name = str(page.relative_to(ROOT))
    if name in WRITTEN_BY_PROGRAMS:
        pytest.skip("a program writes it")
    assert [one for one in _strays(page.read_text()) if (name, one) not in ALLOWED] == []


@pytest.mark.parametrize(("page", "figure"), ALLOWED)
def test_each_figure_that_is_allowed_stands_there(page: str, figure: str) -> None:
    assert figure in _strays((ROOT / page).read_text())


@pytest.mark.parametrize(
    "text",
    [
        "it embeds 2.1 times the texts a second",
        "a search 16 times\nas fast",
        "3.2 x with 64 users",
        "an empty step takes 2.59 ms, against 0.03 here",
        "a token takes 13 instead of 23 ms",
        "each 0.35 ms longer than without",
        "11.5 tokens/s",
        "169 answers a second",
        "embeds twice the texts a second",
        "| a plain chain | 493 MiB |",
        "it is 30 % faster than plain",
    ],
)
def test_a_measured_figure_in_words_is_found_outside_of_marks(text: str) -> None:
    assert _strays(text)
    assert _strays(f"<!-- gains -->\n{text}\n<!-- /gains -->") == []


@pytest.mark.parametrize("text", ["it waits for 5 s at most", "batches of 32 texts", "in 10 steps"])
def test_a_setting_is_no_measurement(text: str) -> None:
    assert _strays(text) == []
