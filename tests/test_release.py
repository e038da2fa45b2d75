"""A release folds the fragments, and is built of a clean tree whose version stands once."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RELEASE = runpy.run_path(str(ROOT / ".ci" / "release.py"))


def _git(root: Path, *words: str) -> None:
    identity = ["-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "tag.gpgsign=false"]
    line = ["git", *identity, "-c", "commit.gpgsign=false", *words]
    subprocess.run(line, cwd=root, check=True, capture_output=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a committed project with three fragments and pages of an unreleased package."""
    files = {
        "pyproject.toml": '[project]\nversion = "0.2.0"\n',
        "CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\nIn changes.\n\n## 0.1.0 (x)\n\nFirst.\n",
        "README.md": "pip install -e '.[fast]' more\n\n"
        "- <!-- unreleased -->Soon. <!-- /unreleased -->On Linux.\n",
        "docs/install.md": "`pip install -e '.[fast]'`\n",
        "changes/README.md": "# Change fragments\n",
        "changes/first.added.md": "A page,\nsee [it](../docs/install.md).\n",
        "changes/second.added.md": "Breaking: another.\n",
        "changes/third.fixed.md": "- A fault is gone.\n- Another is.\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    _git(tmp_path, "init", "--quiet")
    _commit(tmp_path)
    return tmp_path


def _commit(root: Path) -> None:
    _git(root, "add", "--all")
    _git(root, "commit", "--quiet", "-m", "Commit")


def test_fragments_are_grouped_under_the_version_whatever_breaks_first(root: Path) -> None:
    assert RELEASE["fold"](root, "2030-01-02") == "0.2.0"
    assert (root / "CHANGELOG.md").read_text() == (
        "# Changelog\n\n## [Unreleased]\n\nIn changes.\n\n## 0.2.0 (2030-01-02)\n\n"
        "### Added\n\n- Breaking: another.\n- A page,\n  see [it](docs/install.md).\n\n"
        "### Fixed\n\n- A fault is gone.\n- Another is.\n\n## 0.1.0 (x)\n\nFirst.\n"
    )
    assert [path.name for path in (root / "changes").iterdir()] == ["README.md"]


def test_pages_name_the_package_once_it_is_released(root: Path) -> None:
    RELEASE["fold"](root, "2030-01-02")
    assert (root / "README.md").read_text() == (
        "pip install 'rag-accel[fast]' more\n\n- On Linux.\n"
    )
    assert (root / "docs/install.md").read_text() == "`pip install 'rag-accel[fast]'`\n"


def test_a_version_is_folded_once(root: Path) -> None:
    RELEASE["fold"](root, "2030-01-02")
    (root / "changes/fourth.fixed.md").write_text("Another.\n")
    with pytest.raises(SystemExit, match=r"has 0\.2\.0 already"):
        RELEASE["fold"](root, "2030-01-03")


def test_a_folded_and_clean_tree_has_no_obstacles(root: Path) -> None:
    RELEASE["fold"](root, "2030-01-02")
    _commit(root)
    assert RELEASE["obstacles"](root) == []
    _git(root, "tag", "v0.2.0")
    assert RELEASE["obstacles"](root) == []


def test_what_is_not_folded_is_named(root: Path) -> None:
    fragments, changelog = RELEASE["obstacles"](root)
    assert "3 fragments" in fragments
    assert changelog == "CHANGELOG.md begins with ['0.1.0'], pyproject.toml has 0.2.0"


def test_what_is_not_committed_is_named(root: Path) -> None:
    RELEASE["fold"](root, "2030-01-02")
    _commit(root)
    (root / "new.py").write_text("")
    (obstacle,) = RELEASE["obstacles"](root)
    assert "new.py" in obstacle


def test_another_tag_is_named(root: Path) -> None:
    _git(root, "tag", "v0.2.0")
    RELEASE["fold"](root, "2030-01-02")
    _commit(root)
    assert RELEASE["obstacles"](root) == [
        "v0.2.0 is the tag of another commit: raise the version in pyproject.toml"
    ]
    _git(root, "tag", "--delete", "v0.2.0")
    _git(root, "tag", "v0.3.0")
    assert RELEASE["obstacles"](root) == [
        "this commit has the tag v0.3.0, pyproject.toml has 0.2.0"
    ]


def test_nothing_is_built_while_something_stands_in_the_way(root: Path) -> None:
    with pytest.raises(SystemExit, match="3 fragments"):
        RELEASE["build"](root)
    assert not (root / "dist").exists()


RESULT = {
    **{"suite": "overhead", "rows": [], "ratios": {}, "sizes": {}},
    **{"emulated": False, "scripted": False, "environment": {"load_average": [3.0]}},
}


def test_results_that_break_a_rule_are_named_until_told_otherwise(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    (root / "bench" / "results").mkdir(parents=True)
    (root / "bench" / "results" / "overhead.json").write_text(json.dumps(RESULT))
    RELEASE["fold"](root, "2030-01-02")
    _commit(root)
    with pytest.raises(
        SystemExit, match=r"overhead: load average 3\.0(.|\n)*--with-broken-results"
    ):
        RELEASE["build"](root)
    with pytest.raises(SystemExit, match=r"^failed: python -m build "):
        RELEASE["build"](root, with_broken_results=True)


def test_the_version_stands_once() -> None:
    stated = rf"(rag.accel|[Vv]ersion)[^0-9\n]{{0,4}}{re.escape(RELEASE['version_of'](ROOT))}"
    listed = subprocess.run(
        [
            "git",
            "grep",
            "-lE",
            stated,
            "--",
            "*.py",
            "*.toml",
            "*.md",
            ":!CHANGELOG.md",
            ":!tests/test_release.py",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert listed.stdout.split() == ["pyproject.toml"]
