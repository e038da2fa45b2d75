"""Check a wheel, a new one if none is named, where the checkout cannot be seen, as its users do.

The throw-away environment borrows the packages of the running one, so that this takes seconds:
the wheel comes first on its path, and the running environment's own ``.pth`` files, which lead to
the checkout, are not read there.

    python tests/smoke/check_wheel.py [WHEEL]
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SNIPPETS = [Path(__file__).with_name(f"{name}_snippet.py") for name in ("core", "user")]
#: Limits of the wheel, and of installing it and running a graph with numpy alone.
MOST_BYTES = 2_000_000
MOST_CPU_S = 10
PACKAGES = {
    "langchain_rag_accel": ROOT / "integrations/langchain_rag_accel",
    "llama_index_rag_accel": ROOT / "integrations/llama_index_rag_accel",
    "neo4j_graphrag_rag_accel": ROOT / "integrations/neo4j_graphrag_rag_accel",
    "vllm_rag_accel": ROOT / "integrations/vllm_rag_accel",
    "rag_accel": ROOT / "rag_accel",
    "rag_accel_adapters": ROOT / "adapters/rag_accel_adapters",
    "rag_accel_demo": ROOT / "demo/rag_accel_demo",
}


def main() -> int:
    """Run every check; the first that fails ends the program with its output."""
    with tempfile.TemporaryDirectory(prefix="rag-accel-wheel-") as folder:
        place = Path(folder)
        wheel = Path(sys.argv[1]).resolve() if sys.argv[1:] else build(place)
        check_contents(wheel)
        core, script = (Path(shutil.copy(snippet, place)) for snippet in SNIPPETS)
        check_core(wheel, core, place / "core")
        python = install(wheel, place / "venv")
        check_origin(python, place)
        check_commands(python.with_name("rag-accel"), place)
        check_types(python, script)
        run([python, script], place)
    print(
        "the wheel is sound: contents, its core with numpy alone, origin, commands, types and a run"
    )
    return 0


def build(place: Path) -> Path:
    """Return the wheel, built into ``place``."""
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", place, ROOT], place)
    (wheel,) = place.glob("*.whl")
    return wheel


def check_contents(wheel: Path) -> None:
    """Refuse a wheel that holds anything but the packages, all of them whole and typed."""
    size = wheel.stat().st_size
    expect(size <= MOST_BYTES, f"the wheel has {size:,} bytes, more than {MOST_BYTES:,}")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    inside = {name.partition("/")[0] for name in names}
    meta = {name for name in inside if name.endswith(".dist-info")}
    expect(inside - meta == set(PACKAGES), f"the wheel holds {sorted(inside - meta)}")
    expect(len(meta) == 1, f"the wheel holds the metadata {sorted(meta)}")
    for package, folder in PACKAGES.items():
        expect(f"{package}/py.typed" in names, f"{package} is not marked as typed")
        files = (path for path in folder.rglob("*") if path.is_file())
        for path in files:
            name = f"{package}/{path.relative_to(folder).as_posix()}"
            expect("__pycache__" in name or name in names, f"{name} is not in the wheel")


def install(wheel: Path, place: Path) -> Path:
    """Return the python of a new environment that holds the wheel and borrows everything else."""
    python, site = install_alone(wheel, place)
    site.joinpath("borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def install_alone(wheel: Path, place: Path) -> tuple[Path, Path]:
    """Return the python and the packages' folder of a new environment that holds the wheel."""
    venv.create(place)
    python = place / "bin" / "python"
    run([*pip(python), "install", "--quiet", "--no-deps", "--no-index", wheel], place)
    scheme = {"base": str(place), "platbase": str(place)}
    return python, Path(sysconfig.get_path("purelib", "venv", scheme))


def pip(python: Path) -> list[str | Path]:
    """Return the command that runs our pip on another environment."""
    return [sys.executable, "-m", "pip", "--python", python]


def check_core(wheel: Path, script: Path, place: Path) -> None:
    """Make sure that numpy is all that the core needs, and that it is quickly there and in use."""
    before = cpu_s()
    python, site = install_alone(wheel, place)
    for name in {file.parts[0] for file in metadata.files("numpy") or ()} - {".."}:
        (site / name).symlink_to(Path(metadata.distribution("numpy").locate_file(name)))
    run([*pip(python), "check"], place)
    listed = json.loads(run([*pip(python), "list", "--format=json"], place))
    names = {package["name"] for package in listed}
    expect(names == {"numpy", "rag-accel"}, f"the core stands among {sorted(names)}")
    run([python, script], place)
    run([python.with_name("rag-accel"), "doctor"], place)
    took = cpu_s() - before
    expect(took <= MOST_CPU_S, f"the core took {took:.1f} s of CPU time, more than {MOST_CPU_S}")


def cpu_s() -> float:
    """Return the CPU time of all children of this process that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def check_origin(python: Path, place: Path) -> None:
    """Make sure that what is imported is the installed wheel and not the checkout."""
    code = "import sys, importlib as i, json; names = sys.argv[1:]"
    code += "; print(json.dumps([i.import_module(name).__file__ for name in names]))"
    for file in json.loads(run([python, "-c", code, *PACKAGES], place)):
        expect(Path(file).is_relative_to(place.resolve()), f"imported from {file}")


def check_commands(program: Path, place: Path) -> None:
    """Make sure that the command line and the commands that join by entry point are there."""
    found = json.loads(run([program, "doctor", "--json"], place))
    incomplete = {name: missing for name, missing in found["extras"].items() if missing}
    elsewhere = {"ray"}  # has an environment of its own, see the Makefile
    expect(incomplete.keys() <= elsewhere, f"doctor misses {incomplete}")
    expect("--questions" in run([program, "demo", "--help"], place), "demo is not available")


def check_types(python: Path, script: Path) -> None:
    """Check the user's snippet strictly against the types that the wheel carries."""
    settings = script.with_name("pyrightconfig.json")
    settings.write_text(json.dumps({"include": ["*_snippet.py"], "typeCheckingMode": "strict"}))
    pyright = Path(sys.executable).with_name("pyright")
    run([pyright, "--project", settings, "--pythonpath", python], script.parent)


def run(command: list[str | Path], place: Path) -> str:
    """Return a command's output, run outside the checkout; end the program if it fails."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "RAG_ACCEL"))}
    done = subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, check=False
    )
    said = f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    expect(done.returncode == 0, f"exit status {done.returncode}: {said}")
    return done.stdout


def expect(holds: bool, complaint: str) -> None:
    """End the program with a complaint unless a condition holds."""
    if not holds:
        sys.exit(f"check_wheel: {complaint}")


if __name__ == "__main__":
    sys.exit(main())
