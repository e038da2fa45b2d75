from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.report import EMULATED
from bench.results import Row, SuiteResult, save
from bench.suites import ratio_definitions
from bench.table import BEGIN, CLAIMS, END, HEADLINES, headlines, main, table, write_table
from rag_accel.errors import ConfigError


def test_the_table_replaces_what_stands_between_the_markers(
    result: SuiteResult, tmp_path: Path
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_table(readme, [result])
    text = readme.read_text()
    assert text.startswith(f"before\n{BEGIN}\n**sample**")
    assert text.endswith(f"</details>\n{END}\nafter\n")
    assert "old" not in text


def test_writing_the_same_results_again_changes_nothing(
    result: SuiteResult, tmp_path: Path
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"{BEGIN}{END}")
    write_table(readme, [result])
    once = readme.read_text()
    write_table(readme, [result])
    assert readme.read_text() == once


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
        write_table(readme, [result])
    assert readme.read_text() == text


def test_no_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no results"):
        write_table(tmp_path / "README.md", [])


def test_the_systems_stand_side_by_side(result: SuiteResult) -> None:
    lines = table([result]).splitlines()
    assert "| workload | metric | plain | accelerated |" in lines
    assert "| 64 users | latency_ms | 12.5 (40), n=256 | 6.25 (20), n=256 |" in lines
    assert "| 64 users | answers_per_s | 80, n=5 | 160, n=5 |" in lines


def test_figures_of_other_systems_have_a_table_of_their_own(result: SuiteResult) -> None:
    rows = (*result.rows, Row("accelerated", "64 users", "mean_batch", 8.5, None, 3))
    lines = table([replace(result, rows=rows)]).splitlines()
    at = lines.index("| workload | metric | accelerated |")
    assert lines[at - 1] == ""
    assert lines[at + 1 : at + 3] == [
        "| --- | --- | ---: |",
        "| 64 users | mean_batch | 8.5, n=3 |",
    ]


def test_a_result_without_rows_has_no_table_of_figures() -> None:
    assert "| workload |" not in table([SuiteResult("sample", (), {"speed": 2.0})])


def test_ratios_stand_with_their_definitions() -> None:
    text = table([SuiteResult("demo", (), {"demo_p99_64": 0.4321})])
    assert "| `demo_p99_64` | 0.4321 | against the plain chain (LangChain" in text


def test_the_ratios_of_several_processes_stand_with_their_range(of_three: SuiteResult) -> None:
    lines = table([of_three]).splitlines()
    assert "| ratio | median (lowest to highest) of 3 processes | what it is |" in lines
    assert any(line.startswith("| `sample_throughput_64` | 2 (1.5 to 4) |") for line in lines)
    assert any("All figures of 3 processes: median [lowest" in line for line in lines)


def test_figures_of_several_processes_stand_with_their_range(result: SuiteResult) -> None:
    rows = (replace(result.rows[0], low=11.0, high=14.0),)
    lines = table([replace(result, rows=rows)]).splitlines()
    assert "| 64 users | latency_ms | 12.5 [11 to 14] (40), n=256 |" in lines


def test_bars_in_names_do_not_break_the_table() -> None:
    rows = (Row("plain", "prompt | model", "latency_ms", 1.0, None, 1),)
    assert "| prompt \\| model |" in table([SuiteResult("sample", rows, {})])


def test_a_result_of_an_emulated_accelerator_says_so(result: SuiteResult) -> None:
    assert EMULATED in table([replace(result, emulated=True)])
    assert EMULATED not in table([result])


def test_the_command_reads_the_folder_and_writes_the_file(
    result: SuiteResult, tmp_path: Path
) -> None:
    page, readme = tmp_path / "results.md", tmp_path / "README.md"
    page.write_text(f"{BEGIN}\n{END}\n")
    readme.write_text("\n".join(HEADLINES))
    save(tmp_path / "results" / "sample.json", [result])
    arguments = [str(page), "--readme", str(readme), "--results", str(tmp_path / "results")]
    assert main(arguments) == 0
    assert "sample_throughput_64" in page.read_text()
    assert "| claim |" in readme.read_text()


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "README.md"), "--results", str(tmp_path)]) == 2
    assert "no results" in capsys.readouterr().err


ROOT = Path(__file__).parents[2]


def test_the_documents_hold_the_results_there_are(tmp_path: Path) -> None:
    results, readme = ROOT / "docs" / "results.md", ROOT / "README.md"
    pages = [tmp_path / "results.md", tmp_path / "README.md"]
    for page, original in zip(pages, (results, readme), strict=True):
        page.write_text(original.read_text())
    assert main([str(pages[0]), "--readme", str(pages[1])]) == 0
    assert [page.read_text() for page in pages] == [results.read_text(), readme.read_text()]


def test_every_claim_has_a_ratio_that_says_its_opponent() -> None:
    for suite, ratio in CLAIMS:
        assert ratio_definitions(suite)[ratio].startswith("against ")


def test_a_claim_is_as_it_was_measured_or_is_not_made() -> None:
    result = SuiteResult("demo", (), {"demo_p99_64": 0.4321})
    (head, rule, row) = headlines([result]).splitlines()
    assert head.startswith("| claim |")
    assert set(rule) <= set("| -:")
    assert row.startswith("| its 99th percentile of latency (lower is better), against the plain")
    assert row.endswith("| 0.4321 | `demo` |")
    assert len(headlines([]).splitlines()) == 2
