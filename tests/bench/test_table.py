from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from string import Formatter

import pytest

from bench.claims import CLAIMS, GAINS, draw_demo, gains, headlines
from bench.inline_figures import documents
from bench.report import EMULATED
from bench.results import Row, SuiteResult, save
from bench.suites import ratio_definitions
from bench.table import BEGIN, DEMO_MARKS, END, GAINS_MARKS, HEADLINES, main, page, write_pages
from rag_accel.errors import ConfigError


def test_each_suite_gets_a_page_and_the_index_lists_it(result: SuiteResult, tmp_path: Path) -> None:
    index = tmp_path / "found.md"
    index.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_pages(index, [result, replace(result, suite="demo")])
    text = index.read_text()
    assert text.startswith(f"before\n{BEGIN}\n| suite | what it measures | measured |\n")
    assert "| [demo](found/demo.md) | Measure the demo's chain under load: " in text
    assert "| [sample](found/sample.md) |  | 2026-01-01, 1 process, quick |" in text
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    pages = {path.name: path.read_text() for path in (tmp_path / "found").iterdir()}
    assert set(pages) == {"sample.md", "demo.md"}
    assert pages["demo.md"].startswith("# demo\n\nMeasure the demo's chain under load: ")


@pytest.mark.parametrize(
    "text",
    ["no markers", BEGIN, END, f"{END} {BEGIN}", f"{BEGIN}{BEGIN}{END}", f"{BEGIN}{END}{END}"],
)
def test_a_file_without_a_clear_place_is_refused_and_kept(
    result: SuiteResult, tmp_path: Path, text: str
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(text)
    with pytest.raises(ConfigError, match="no place"):
        write_pages(readme, [result])
    assert readme.read_text() == text


def test_the_systems_stand_side_by_side(result: SuiteResult) -> None:
    lines = page(result).splitlines()
    assert "| workload | metric | plain | accelerated |" in lines
    assert "| 64 users | latency_ms | 12.5 (40), n=256 | 6.25 (20), n=256 |" in lines
    assert "| 64 users | answers_per_s | 80, n=5 | 160, n=5 |" in lines


def test_what_never_happened_is_said_in_one_sentence(result: SuiteResult) -> None:
    never = Row("accelerated", "64 users", "different_answers", 0.0, None, 256)
    text = page(replace(result, rows=(*result.rows, never)))
    assert "Zero in every workload: `different_answers`." in text
    assert "| different_answers |" not in text
    once = replace(never, medians=(0.0, 1.0, 0.0))
    assert "| different_answers |" in page(replace(result, rows=(*result.rows, once)))


def test_the_ratios_of_several_processes_stand_with_their_range(of_three: SuiteResult) -> None:
    lines = page(of_three).splitlines()
    assert "| ratio | median (lowest to highest) of 3 processes | what it is |" in lines
    assert any(line.startswith("| `sample_throughput_64` | 2 (1.5 to 4) |") for line in lines)
    assert any("median of 3 processes [lowest to highest]" in line for line in lines)


def test_a_result_of_an_emulated_accelerator_says_so(result: SuiteResult) -> None:
    assert EMULATED in page(replace(result, emulated=True))
    assert EMULATED not in page(result)


def test_the_command_reads_the_folder_and_writes_the_file(
    result: SuiteResult, tmp_path: Path
) -> None:
    docs, readme = tmp_path / "docs", tmp_path / "README.md"
    docs.mkdir()
    index, run = docs / "results.md", docs / "demo_run.json"
    index.write_text("\n".join([BEGIN, END, *HEADLINES]))
    figure = "<!-- sample.sample_throughput_64:.1f -->"
    readme.write_text("\n".join([*GAINS_MARKS, *DEMO_MARKS, f"It is {figure}9<!-- / --> times"]))
    run.write_text(json.dumps({"findings": ["7 of 7 answers identical.", "Why: \u2026"]}))
    save(tmp_path / "bench" / "results" / "sample.json", [result])
    assert main(["--root", str(tmp_path)]) == 0
    assert "sample.md" in index.read_text()
    assert "sample_throughput_64" in (docs / "results" / "sample.md").read_text()
    assert "| claim |" in index.read_text()
    assert "| your stack |" in readme.read_text()
    assert f"{figure}2.0<!-- / --> times" in readme.read_text()
    assert "\n- 7 of 7 answers identical.\n- Why: \u2026\n" in readme.read_text()


ROOT = Path(__file__).parents[2]


def test_the_documents_hold_the_results_there_are(tmp_path: Path) -> None:
    read = [*documents(ROOT), ROOT / "docs" / "demo_run.json"]
    for path in (*read, *(ROOT / "bench" / "results").glob("*.json")):
        copied = tmp_path / path.relative_to(ROOT)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copied)
    assert main(["--root", str(tmp_path)]) == 0
    assert _pages(tmp_path) == _pages(ROOT)


def _pages(root: Path) -> dict[str, str]:
    results = root / "docs" / "results"
    written = [*documents(root), *results.glob("*.md"), results / "demo.svg"]
    return {str(path.relative_to(root)): path.read_text() for path in written}


def test_every_claim_has_a_ratio_that_says_its_opponent() -> None:
    for claim in CLAIMS:
        assert ratio_definitions(claim.suite)[claim.ratio].startswith("against ")


def test_a_claim_is_as_it_was_measured_or_is_not_made() -> None:
    result = SuiteResult("demo", (), {"demo_vs_best_peer": 0.4321}, environment={"quick": True})
    (head, rule, row) = headlines([result]).splitlines()
    assert head.startswith("| claim |")
    assert set(rule) <= set("| -:")
    assert row.startswith("| answers per second of the demo's chain, 64 users, against the same")
    assert row.endswith("| 0.4321 | `python -m bench demo --quick` |")
    assert len(headlines([]).splitlines()) == 2


def test_an_approximate_figure_has_its_fidelity_in_the_same_cell_or_is_not_stated() -> None:
    fast = SuiteResult("kv_ttft", (), {"reuse_vs_full": 40.4}, environment={"quick": True})
    near = SuiteResult("kv_fidelity", (), {"full_top1": 0.876})
    assert headlines([fast]).count("\n") == gains([fast]).count("\n") == 1
    for text in (headlines([fast, near]), gains([fast, near])):
        (row,) = text.splitlines()[2:]
        (cell,) = [cell for cell in row.split(" | ") if "40" in cell]
        assert "approximate" in cell
        assert "88%" in cell


def test_every_gain_reads_ratios_that_there_are() -> None:
    ratios = [field for gain in GAINS for _, field, _, _ in Formatter().parse(gain.gained) if field]
    assert len(ratios) > len(GAINS)
    for field in ratios:
        suite, _, name = field.rstrip("]").partition("[")
        assert name in ratio_definitions(suite)


def test_the_chart_of_the_demo_shows_each_rate_and_leaves_out_the_unmeasured(
    tmp_path: Path,
) -> None:
    rows = [
        Row(system, f"{users}, ainvoke from tasks", "answers_per_s", rate, None, 3)
        for users, system, rate in (
            ("1 user", "plain", 11.0),
            ("1 user", "accelerated", 22.0),
            ("16 users", "plain", 33.0),
            ("16 users", "accelerated", 44.0),
            ("64 users", "plain", 55.0),
            ("64 users", "accelerated", 166.0),
            ("64 users", "onnxruntime, micro-batcher", 177.0),
            ("64 users", "openvino, micro-batcher", 88.0),
        )
    ]
    draw_demo(SuiteResult("demo", tuple(rows), {}), tmp_path / "demo.svg")
    drawn = (tmp_path / "demo.svg").read_text()
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
    assert {"11", "22", "33", "44", "55", "166", "177"} <= set(texts)
    assert "88" not in texts
