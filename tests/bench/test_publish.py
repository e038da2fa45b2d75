"""Results are published that keep every rule, and all that is refused is named."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import publish
from bench.claims import CLAIMS
from bench.measure import Estimate, Interval
from bench.publish import GOLD_SCORES, main, refusals
from bench.results import Row, SuiteResult, load, load_folder, over_processes, save
from bench.table import BEGIN, DEMO_MARKS, END, GAINS_MARKS, HEADLINES

ROOT = Path(__file__).parents[2]
SCORE = Row("ours", "questions", "exact_match", 0.9, None, 12)
HEADLINE = "nothing_helps_16_leaf_ms"


def _git(root: Path, *words: str) -> str:
    identity = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    line = ["git", *identity, "-c", "commit.gpgsign=false", *words]
    return subprocess.run(line, cwd=root, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a repository with a product, and documents that have places for results."""
    publish.changed_since.cache_clear()
    root = tmp_path / "repository"
    files = {
        "rag_accel/engine.py": "fast = 1\n",
        "README.md": "\n".join([*GAINS_MARKS, *DEMO_MARKS]),
        "docs/results.md": "\n".join([BEGIN, END, *HEADLINES]),
        "docs/demo_run.json": json.dumps({"findings": []}),
        "docs/page.md": "takes <!-- overhead.hosted_300ms:.2f -->0<!-- / --> of the time",
    }
    for name, text in files.items():
        _change(root, name, text)
    _git(root, "init", "--quiet")
    _commit(root)
    return root


def _change(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def _commit(root: Path) -> None:
    _git(root, "add", "--all")
    _git(root, "commit", "--quiet", "-m", "Commit")


Measured = Callable[..., SuiteResult]


@pytest.fixture
def measured(root: Path, result: SuiteResult) -> Measured:
    """Return what makes a result of HEAD that keeps every rule, but for what is given."""
    code = {"commit": _git(root, "rev-parse", "HEAD"), "is_dirty": False}

    def make(suite: str = "overhead", **environment: Any) -> SuiteResult:
        told = {**result.environment, **code, **environment}
        return replace(result, suite=suite, ratios={"hosted_300ms": 1.25}, environment=told)

    return make


def _saved(root: Path, *results: SuiteResult) -> Path:
    folder = root.parent / "new"
    for result in results:
        save(folder / f"{result.suite}.json", [result])
    return folder


def _published(root: Path) -> list[str]:
    return [one.suite for one in load_folder(root / "bench" / "results")]


def test_a_result_that_keeps_every_rule_is_copied_and_written_into_the_documents(
    root: Path, measured: Measured
) -> None:
    folder = _saved(root, measured())
    assert main([str(folder), "--root", str(root)]) == 0
    assert load(root / "bench" / "results" / "overhead.json") == [measured()]
    assert "hosted_300ms" in (root / "docs" / "results" / "overhead.md").read_text()
    assert "-->1.25<!-- / -->" in (root / "docs" / "page.md").read_text()
    assert main(["--check", "--root", str(root)]) == 0


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({"load_average": [1.01, 0, 0]}, "load average 1.01"),
        ({"load_average": []}, "load average None"),
        ({"is_dirty": True}, "files differed"),
        ({"is_dirty": None}, "files differed"),
        ({"commit": None}, "git does not know the commit None"),
        ({"commit": "0123456789abcdef"}, "git does not know the commit 0123456789abcdef"),
        ({"commit": "--output=x"}, "git does not know the commit --output=x"),
    ],
)
def test_a_rule_that_the_surroundings_break_is_named(
    root: Path, measured: Measured, environment: dict[str, Any], found: str
) -> None:
    (broken,) = refusals(measured(**environment), root)
    assert broken.startswith(found)
    assert "measure" in broken


@pytest.mark.parametrize(
    ("name", "is_product"),
    [
        ("rag_accel/engine.py", True),
        ("integrations/deep/er/new.py", True),
        ("rag_accel/notes.md", False),
        ("bench/suites/overhead.py", False),
        ("tests/test_engine.py", False),
        ("pyproject.toml", False),
    ],
)
def test_a_result_of_another_product_is_refused(
    root: Path, measured: Measured, name: str, is_product: bool
) -> None:
    old = measured()
    _change(root, name, "changed = 1\n")
    _commit(root)
    found = refusals(old, root)
    assert (found != []) is is_product
    assert all(one.startswith("1 files of the product") and name in one for one in found)


@pytest.mark.parametrize("metric", sorted(GOLD_SCORES))
def test_a_gold_score_of_few_answers_is_refused(
    root: Path, measured: Measured, metric: str
) -> None:
    row = replace(SCORE, metric=metric)
    enough, few = (replace(measured(), rows=(replace(row, n=n),)) for n in (12, 11))
    assert refusals(enough, root) == []
    (broken,) = refusals(few, root)
    assert f"{metric} of 11" in broken


def test_processes_that_ask_the_same_do_not_make_more_gold_answers(
    root: Path, measured: Measured
) -> None:
    one = replace(measured(), rows=(replace(SCORE, n=8),))
    assert "exact_match of 8" in refusals(over_processes([one, one]), root)[0]


def test_what_counts_as_a_gold_score_is_published() -> None:
    rows = [row for one in load_folder(ROOT / "bench" / "results") for row in one.rows]
    assert GOLD_SCORES - {row.metric for row in rows} == set()


def test_a_headline_needs_an_interval_or_several_processes(root: Path, measured: Measured) -> None:
    assert HEADLINE in [claim.ratio for claim in CLAIMS if claim.suite == "overhead"]
    bare = replace(measured(), ratios={HEADLINE: 0.05})
    within = replace(measured(), ratios={HEADLINE: Estimate(0.05, Interval(0.04, 0.06))})
    assert refusals(within, root) == refusals(over_processes([bare, bare]), root) == []
    (broken,) = refusals(bare, root)
    assert broken.startswith(f"the headline {HEADLINE} has no interval")


def test_all_that_is_refused_is_named_and_nothing_is_copied(
    root: Path, measured: Measured, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = measured("demo", load_average=[3.0, 0, 0], is_dirty=True)
    folder = _saved(root, measured(), busy, measured("unknown"))
    (folder / "broken.json").write_text("{")
    assert main([str(folder), "--root", str(root)]) == 1
    told = capsys.readouterr().out
    for one in ("demo: load average 3.0", "demo: files differed", "unknown: no suite", "broken."):
        assert one in told
    assert not (root / "bench").exists()


def test_a_card_is_published_and_a_trial_of_its_command_is_not(
    root: Path, measured: Measured
) -> None:
    assert refusals(measured("gpu"), root) == []
    (told,) = refusals(measured("gpu", tiny=True), root)
    assert "measure a card" in told


def test_what_is_refused_can_be_skipped(root: Path, measured: Measured) -> None:
    folder = _saved(root, measured(), measured("demo", is_dirty=True))
    assert main([str(folder), "--skip-refused", "--root", str(root)]) == 0
    assert _published(root) == ["overhead"]


def test_what_is_given_twice_or_holds_nothing_is_named(
    root: Path, tmp_path: Path, measured: Measured, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(_saved(root, measured()) / "overhead.json")
    given = [file, file, str(tmp_path / "none.json"), str(tmp_path)]
    assert main([*given, "--root", str(root)]) == 1
    told = capsys.readouterr().out
    assert "overhead: given more than once" in told
    assert "none.json" in told
    assert "no result files" in told


def test_what_is_published_is_checked(
    root: Path, measured: Measured, capsys: pytest.CaptureFixture[str]
) -> None:
    save(root / "bench" / "results" / "overhead.json", [measured(is_dirty=True)])
    assert main(["--check", "--root", str(root)]) == 1
    assert "overhead: files differed" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["--check", "file.json"]])
def test_the_command_takes_files_or_a_check(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
