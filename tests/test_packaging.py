"""The distribution holds what it says, needs what it says, and its commands are the known ones."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rag_accel.system.doctor import EXTRAS, examine

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]
PACKAGES = [
    Path(path) for path in SETTINGS["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
]
POINTS = [(group, name) for group, names in PROJECT["entry-points"].items() for name in names]


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().split()
    return {canonicalize_name(name): version for name, version in (x.split("==") for x in lines)}


def _requirements() -> list[Requirement]:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    return [Requirement(text) for group in groups for text in group]


def test_every_package_of_the_distribution_is_typed() -> None:
    assert [path.name for path in PACKAGES if not (ROOT / path / "py.typed").exists()] == []


def test_the_folders_around_the_packages_are_no_packages() -> None:
    assert not (ROOT / "integrations/__init__.py").exists()
    assert not (ROOT / "adapters/__init__.py").exists()
    assert not (ROOT / "demo/__init__.py").exists()


def test_the_core_needs_numpy_only() -> None:
    assert [Requirement(text).name for text in PROJECT["dependencies"]] == ["numpy"]


def test_every_requirement_is_pinned_within_its_range() -> None:
    pins = _pins()
    for requirement in _requirements():
        name = canonicalize_name(requirement.name)
        if name != canonicalize_name(PROJECT["name"]):
            assert name in pins, f"{name} is not in constraints.txt"
            assert requirement.specifier.contains(pins[name]), f"{requirement} but {pins[name]}"


def test_the_lowest_environment_has_the_lower_bounds() -> None:
    text = (ROOT / "tests/environments/lowest/requirements.txt").read_text()
    pins = {canonicalize_name(name): version for name, version in re.findall(r"(.+)==(.+)", text)}
    extras = {"langchain", *re.findall(r"^-e \.\[(.*)\]$", text, re.MULTILINE)[0].split(",")}
    needed = [*PROJECT["dependencies"]]
    for extra in extras:
        needed += PROJECT["optional-dependencies"][extra]
    names = {canonicalize_name(Requirement(need).name) for need in needed}
    assert names - {canonicalize_name(PROJECT["name"])} <= set(pins)
    for requirement in _requirements():
        pin = pins.get(canonicalize_name(requirement.name))
        lowest = {spec.version for spec in requirement.specifier if spec.operator == ">="}
        assert pin is None or lowest == {pin}, requirement


def test_pins_name_versions_that_every_index_has() -> None:
    assert [name for name, version in _pins().items() if "+" in version] == []


def test_the_distribution_requires_itself_only_by_extras_that_exist() -> None:
    own = [one for one in _requirements() if one.name == PROJECT["name"]]
    assert own
    for requirement in own:
        assert requirement.extras <= set(PROJECT["optional-dependencies"])


def test_the_doctor_knows_every_extra_that_users_install() -> None:
    for_developers = {"bench", "test", "check", "mutation"}
    assert set(EXTRAS) == set(PROJECT["optional-dependencies"]) - for_developers


def test_the_doctor_tells_the_version_of_the_driver_of_graph_databases() -> None:
    assert examine()["versions"]["neo4j"] == metadata.version("neo4j")


@pytest.mark.parametrize(("group", "name"), POINTS)
def test_an_entry_point_leads_to_a_callable(group: str, name: str) -> None:
    module, _, attribute = PROJECT["entry-points"][group][name].partition(":")
    assert callable(getattr(importlib.import_module(module), attribute))


@pytest.mark.parametrize(("group", "name"), POINTS)
def test_an_entry_point_is_installed(group: str, name: str) -> None:
    found = metadata.distribution(PROJECT["name"]).entry_points.select(group=group, name=name)
    assert [point.value for point in found] == [PROJECT["entry-points"][group][name]]


def test_continuous_integration_runs_two_commands() -> None:
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    lines = [line for line in script.read_text().splitlines() if line.startswith("make ")]
    assert lines == ["make test", "make check"]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
class TestMakefile:
    """What make would do, without doing it."""

    def test_a_new_checkout_gets_an_environment_first(self, tmp_path: Path) -> None:
        planned = self._plan("test", tmp_path / "env")
        assert re.search(
            r"-m venv --clear .*env\n(.*\n)*.*pip install .*-c constraints.txt", planned
        )
        assert planned.index("pip install") < planned.index("> ") < planned.index("-m pytest")

    def test_a_finished_environment_is_left_alone(self, tmp_path: Path) -> None:
        self._finish(tmp_path / "env", ROOT)
        planned = self._plan("test", tmp_path / "env")
        assert "venv --clear" not in planned
        assert "pip install" not in planned

    def test_an_environment_of_a_moved_checkout_is_made_anew(self, tmp_path: Path) -> None:
        self._finish(tmp_path / "env", tmp_path / "elsewhere")
        assert "venv --clear" in self._plan("test", tmp_path / "env")

    def test_an_environment_without_its_interpreter_is_made_anew(self, tmp_path: Path) -> None:
        self._finish(tmp_path / "env", ROOT)
        (tmp_path / "env/bin/python").unlink()
        assert "venv --clear" in self._plan("test", tmp_path / "env")

    def test_new_requirements_are_installed_into_the_environment(self, tmp_path: Path) -> None:
        self._finish(tmp_path / "env", ROOT)
        os.utime(tmp_path / "env/.installed", (0, 0))
        planned = self._plan("test", tmp_path / "env")
        assert "pip install" in planned
        assert "venv --clear" not in planned

    @pytest.mark.parametrize(
        "target",
        ["install", "demo", "test", "test-all", "check", "release", "conformance", "bench"],
    )
    def test_a_target_has_something_to_do(self, target: str, tmp_path: Path) -> None:
        assert self._plan(target, tmp_path / "env").strip()

    def _plan(self, target: str, environment: Path) -> str:
        line = ["make", "--dry-run", target, f"VENV={environment}"]
        clean = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
        done = subprocess.run(line, cwd=ROOT, env=clean, capture_output=True, text=True, check=True)
        return done.stdout

    def _finish(self, environment: Path, checkout: Path) -> None:
        """Make what a finished environment looks like to make."""
        (environment / "bin").mkdir(parents=True)
        python = environment / "bin/python"
        python.write_text("#!/bin/sh\n")
        python.chmod(0o755)
        (environment / ".installed").write_text(f"{checkout}\n")


class TestWheelCheck:
    """What ``make check`` refuses."""

    @pytest.fixture
    def check(self) -> ModuleType:
        path = ROOT / "tests/smoke/check_wheel.py"
        spec = importlib.util.spec_from_file_location("check_wheel", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def test_a_whole_wheel_is_accepted(self, check: ModuleType, tmp_path: Path) -> None:
        check.check_contents(self._wheel(check, tmp_path))

    def test_a_large_wheel_is_refused(
        self, check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(check, "MOST_BYTES", 1_000)
        with pytest.raises(SystemExit, match=r"bytes, more than 1,000"):
            check.check_contents(self._wheel(check, tmp_path))

    def test_a_wheel_with_anything_else_is_refused(self, check: ModuleType, tmp_path: Path) -> None:
        with pytest.raises(SystemExit, match="tests"):
            check.check_contents(self._wheel(check, tmp_path, extra="tests/test_errors.py"))

    def test_a_wheel_without_one_of_our_files_is_refused(
        self, check: ModuleType, tmp_path: Path
    ) -> None:
        with pytest.raises(SystemExit, match=r"rag_accel/errors\.py is not in the wheel"):
            check.check_contents(self._wheel(check, tmp_path, without="rag_accel/errors.py"))

    def test_a_wheel_without_the_questions_of_the_demo_is_refused(
        self, check: ModuleType, tmp_path: Path
    ) -> None:
        name = "rag_accel_demo/questions.json"
        with pytest.raises(SystemExit, match=r"questions\.json is not in the wheel"):
            check.check_contents(self._wheel(check, tmp_path, without=name))

    def test_an_untyped_wheel_is_refused(self, check: ModuleType, tmp_path: Path) -> None:
        with pytest.raises(SystemExit, match="not marked as typed"):
            check.check_contents(self._wheel(check, tmp_path, without="rag_accel/py.typed"))

    def _wheel(self, check: ModuleType, place: Path, extra: str = "", without: str = "") -> Path:
        names = {"rag_accel-1.dist-info/METADATA", *([extra] if extra else [])}
        for package, folder in check.PACKAGES.items():
            files = (path for path in folder.rglob("*") if path.is_file())
            names |= {f"{package}/{path.relative_to(folder).as_posix()}" for path in files}
        with zipfile.ZipFile(place / "rag_accel-1.whl", "w") as archive:
            for name in sorted(names - {without}):
                archive.writestr(name, "")
        return place / "rag_accel-1.whl"
