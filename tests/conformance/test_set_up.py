"""The suites' environment is pinned, complete and made anew when it has to be."""

from __future__ import annotations

import io
import re
import sys
import tarfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from conformance.command import main, versions_of
from conformance.environment import Environment, call, is_sound, pins_of, stamp_of
from conformance.sources import fetch, unpack
from conformance.suites import HOME, SUITES, ConformanceError, Suite, pinned_version, repinned

ROOT = Path(__file__).parents[2]
INPUTS = (
    "pyproject.toml",
    "constraints.txt",
    "conformance/constraints.txt",
    "conformance/requirements.txt",
)


def _lines(path: str) -> list[str]:
    lines = (ROOT / path).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _pins(path: str) -> set[str]:
    return {canonicalize_name(line.partition("==")[0]) for line in _lines(path)}


def _required() -> set[str]:
    lines = _lines("conformance/requirements.txt")
    return {canonicalize_name(Requirement(line).name) for line in lines}


def test_everything_that_is_installed_is_pinned_in_one_place() -> None:
    own, common = _pins("conformance/constraints.txt"), _pins("constraints.txt")
    assert own & common == set()
    assert _required() <= own | common


def test_every_pin_names_one_version() -> None:
    assert [
        x for x in _lines("conformance/constraints.txt") if not re.fullmatch(r"\S+==\S+", x)
    ] == []


def test_the_environment_has_neither_langchain_nor_torch() -> None:
    assert _required() & {"langchain", "torch"} == set()


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.distribution)
def test_every_suite_is_of_the_version_that_is_installed(suite: Suite) -> None:
    assert suite.distribution in _required()
    assert pinned_version(suite.distribution, (ROOT / "constraints.txt").read_text())


def test_a_distribution_without_a_pin_is_named() -> None:
    with pytest.raises(ConformanceError, match=r"no version of langgraph$"):
        pinned_version("langgraph", "langgraph-prebuilt==1.0\n")


def test_another_version_replaces_one_pin_only() -> None:
    pins = "langchain-core==1.8.3\nlanggraph==1.2\nlanggraph-prebuilt==1.1\n"
    assert repinned("langgraph", "1.3", pins) == pins.replace("langgraph==1.2", "langgraph==1.3")


def test_only_what_is_pinned_can_be_pinned_otherwise() -> None:
    with pytest.raises(ConformanceError, match=r"no version of langgraph$"):
        repinned("langgraph", "1.3", "langgraph-prebuilt==1.0\n")


def test_another_langchain_core_has_a_folder_of_its_own() -> None:
    pinned, other = versions_of(None), versions_of("1.7.2")
    assert pinned.home == HOME
    assert other.home == HOME / "langchain-core-1.7.2"
    assert pinned_version("langchain-core", other.pins) == "1.7.2"
    assert versions_of(pinned_version("langchain-core", pinned.pins)) == pinned


def test_what_is_no_version_of_langchain_core_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["--langchain-core", "../1.7"])
    assert "'../1.7' is no version" in capsys.readouterr().err


class TestEnvironment:
    @pytest.fixture
    def checkout(self, tmp_path: Path) -> Path:
        """Return a folder with what says which packages are installed."""
        (tmp_path / "conformance").mkdir()
        for path in INPUTS:
            (tmp_path / path).write_text("as it was\n")
        return tmp_path

    @pytest.mark.parametrize("changed", INPUTS)
    def test_it_is_made_anew_when_what_it_installs_changes(
        self, changed: str, checkout: Path
    ) -> None:
        before = stamp_of(checkout, pins_of(checkout))
        assert stamp_of(checkout, pins_of(checkout)) == before
        (checkout / changed).write_text("changed\n")
        assert stamp_of(checkout, pins_of(checkout)) != before

    def test_it_is_sound_once_finished(self, tmp_path: Path) -> None:
        assert is_sound(*self._finished(tmp_path))

    def test_it_is_not_sound_before_it_is_finished(self, tmp_path: Path) -> None:
        environment, stamp = self._finished(tmp_path)
        stamp.unlink()
        assert not is_sound(environment, stamp)

    def test_it_is_not_sound_in_another_checkout(self, tmp_path: Path) -> None:
        environment, stamp = self._finished(tmp_path)
        stamp.write_text("another")
        assert not is_sound(environment, stamp)

    def test_it_is_not_sound_without_its_interpreter(self, tmp_path: Path) -> None:
        _, stamp = self._finished(tmp_path)
        assert not is_sound(Environment(tmp_path / "bin/python", "stamp"), stamp)

    def test_a_step_that_fails_ends_the_set_up(self, tmp_path: Path) -> None:
        with pytest.raises(ConformanceError, match="cannot be set up"):
            call([sys.executable, "-c", "raise SystemExit(3)"], tmp_path)

    def _finished(self, folder: Path) -> tuple[Environment, Path]:
        (folder / ".installed").write_text("stamp")
        return Environment(Path(sys.executable), "stamp"), folder / ".installed"


class TestSources:
    def test_only_tests_and_settings_are_unpacked(self, tmp_path: Path) -> None:
        archive = self._archive(tmp_path, "tests/test_a.py", "pyproject.toml", "package/a.py")
        folder = unpack(archive, tmp_path / "into")
        found = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
        assert sorted(found) == ["pyproject.toml", "tests/test_a.py"]

    def test_an_archive_without_tests_is_refused(self, tmp_path: Path) -> None:
        archive = self._archive(tmp_path, "pyproject.toml", "package/tests/test_a.py")
        with pytest.raises(ConformanceError, match=r"package-1\.0\.tar\.gz ships no tests"):
            unpack(archive, tmp_path / "into")

    def test_what_is_there_is_not_fetched_again(self, tmp_path: Path) -> None:
        there = tmp_path / "sources/package-1.0"
        there.mkdir(parents=True)
        assert fetch(Path("no such interpreter"), "package", "1.0", tmp_path) == there

    def _archive(self, place: Path, *names: str) -> Path:
        path = place / "package-1.0.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for name in names:
                archive.addfile(tarfile.TarInfo(f"package-1.0/{name}"), io.BytesIO())
        return path


def test_an_unknown_suite_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["langchain-cor"]) == 2
    assert "no such suite: langchain-cor" in capsys.readouterr().err
