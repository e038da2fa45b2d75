"""The standard library becomes a graph of what its source files state."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rag_accel.errors import ConfigError, DocumentError
from rag_accel.sample import LibraryGraph, read_library_graph
from rag_accel.sample.source_triples import RELATIONS, Triple

PUMP = '''"""Pumps of a plant.

They move water.
"""
import os.path
import numpy as np
from valves.gate import Gate as G, close_all
from . import tools
from .tools import Wrench
if os.name:
    from typing import Generic

class Broken(Exception):
    """A pump that moves nothing."""

class _Hidden:
    def open(self): pass

class Pump(G, Generic[int], tools.Tool, object):
    class Valve: pass

    def __init__(self, size: "Size", *, speed: list[int] = ()) -> None:
        self.start(size)

    def start(self, power) -> bool:
        "Start the pump.  "
        np.linalg.norm(power)
        if not power:
            raise Broken(close_all())
        raise ValueError

    def _private(self): raise KeyError

def drain(pump: Pump, close_all, /) -> Wrench:
    close_all()
    Broken = 1
    def inner(): raise OSError
    try:
        return len(inner())
    except Exception as error:
        raise error
    raise Broken
'''


def graph_of(tmp_path: Path, files: dict[str, str | bytes]) -> LibraryGraph:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_library_graph(stdlib=tmp_path)


@pytest.fixture
def pump(tmp_path: Path) -> LibraryGraph:
    return graph_of(tmp_path, {"plant/pump.py": PUMP})


def tails(graph: LibraryGraph, head: str, relation: str) -> list[str]:
    return [tail for one, name, tail in graph.triples if (one, name) == (head, relation)]


# The standard library ----------------------------------------------------------------------------


def test_the_library_has_tens_of_thousands_of_triples(library: LibraryGraph) -> None:
    assert 25_000 < len(library.triples) < 60_000
    assert 10_000 < len(library.entities) < 25_000
    assert 4_000 < len(library.texts) < len(library.entities)
    assert library.skipped == ()


def test_every_relation_occurs_and_no_triple_twice(library: LibraryGraph) -> None:
    counts = Counter(relation for _, relation, _ in library.triples)
    assert set(counts) == set(RELATIONS)
    assert min(counts.values()) > 30
    assert len(set(library.triples)) == len(library.triples)


def test_names_are_words_without_line_breaks(library: LibraryGraph) -> None:
    names = library.entities
    assert all(name and name == name.strip() and "\n" not in name for name in names)
    assert all(name and "\n" not in name for name in library.texts.values())


def test_texts_belong_to_entities_of_the_graph(library: LibraryGraph) -> None:
    assert library.texts.keys() <= set(library.entities)
    assert library.texts["json"].startswith("JSON (JavaScript Object Notation)")


def test_facts_that_every_python_has(library: LibraryGraph) -> None:
    facts = {
        ("json", "imports", "json.decoder"),
        ("json", "defines function", "json.loads"),
        ("json.decoder", "defines class", "json.decoder.JSONDecodeError"),
        ("json.decoder.JSONDecodeError", "inherits from", "ValueError"),
        ("json.decoder.JSONDecoder", "has method", "json.decoder.JSONDecoder.decode"),
        ("json.decoder.JSONDecoder.decode", "takes parameter", "s"),
        ("json.decoder.JSONDecoder.decode", "raises", "json.decoder.JSONDecodeError"),
        ("json.decoder.JSONDecoder.decode", "calls", "json.decoder.JSONDecoder.raw_decode"),
    }
    assert facts <= set(library.triples)


@pytest.mark.cross_product(keep=2)
@pytest.mark.parametrize("limit", [1, 2_000, 20_000])
def test_a_limit_cuts_the_first_triples(library: LibraryGraph, limit: int) -> None:
    cut = read_library_graph(limit)
    assert cut.triples == library.triples[:limit]
    assert cut.texts.items() <= library.texts.items()
    assert cut.texts.keys() <= set(cut.entities)


def test_packages_are_read_alone_and_as_in_the_whole(library: LibraryGraph) -> None:
    found = read_library_graph(packages={"json", "abc"})
    heads = {"json", "abc"}
    expected = [one for one in library.triples if one[0].partition(".")[0] in heads]
    assert list(found.triples) == expected


@pytest.mark.processes
def test_another_process_reads_the_same(tmp_path: Path, pump: LibraryGraph) -> None:
    code = (
        "import pathlib, sys\n"
        "from rag_accel.sample import read_library_graph\n"
        "found = read_library_graph(stdlib=pathlib.Path(sys.argv[1]))\n"
        "print((found.triples, found.texts))"
    )
    for seed in ("1", "2"):
        line = [sys.executable, "-c", code, str(tmp_path)]
        told = subprocess.run(
            line,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert told.stdout.strip() == str((pump.triples, pump.texts))


# One file ----------------------------------------------------------------------------------------


def test_imports_are_those_of_the_whole_file(pump: LibraryGraph) -> None:
    assert sorted(tails(pump, "plant.pump", "imports")) == [
        "numpy",
        "os.path",
        "plant.tools",
        "typing",
        "valves.gate",
    ]


def test_public_definitions_belong_to_what_they_stand_in(pump: LibraryGraph) -> None:
    assert tails(pump, "plant.pump", "defines class") == ["plant.pump.Broken", "plant.pump.Pump"]
    assert tails(pump, "plant.pump", "defines function") == ["plant.pump.drain"]
    assert tails(pump, "plant.pump.Pump", "defines class") == ["plant.pump.Pump.Valve"]
    assert tails(pump, "plant.pump.Pump", "has method") == [
        "plant.pump.Pump.__init__",
        "plant.pump.Pump.start",
    ]
    assert not any("_Hidden" in name or "_private" in name for name in pump.entities)


def test_bases_are_named_in_full(pump: LibraryGraph) -> None:
    assert tails(pump, "plant.pump.Pump", "inherits from") == [
        "valves.gate.Gate",
        "typing.Generic",
        "plant.tools.Tool",
        "object",
    ]
    assert tails(pump, "plant.pump.Broken", "inherits from") == ["Exception"]


def test_parameters_and_types(pump: LibraryGraph) -> None:
    assert tails(pump, "plant.pump.Pump.__init__", "takes parameter") == ["size", "speed"]
    assert tails(pump, "plant.pump.Pump.__init__", "accepts type") == ["Size", "list[int]"]
    assert tails(pump, "plant.pump.Pump.__init__", "returns") == ["None"]
    assert tails(pump, "plant.pump.drain", "takes parameter") == ["pump", "close_all"]
    assert tails(pump, "plant.pump.drain", "accepts type") == ["plant.pump.Pump"]
    assert tails(pump, "plant.pump.drain", "returns") == ["plant.tools.Wrench"]


def test_calls_go_to_imports_definitions_and_methods_of_the_class(pump: LibraryGraph) -> None:
    assert tails(pump, "plant.pump.Pump.__init__", "calls") == ["plant.pump.Pump.start"]
    assert tails(pump, "plant.pump.Pump.start", "calls") == [
        "numpy.linalg.norm",
        "plant.pump.Broken",
        "valves.gate.close_all",
    ]
    assert tails(pump, "plant.pump.Pump.start", "raises") == ["plant.pump.Broken", "ValueError"]


def test_parameters_variables_and_inner_functions_say_nothing(pump: LibraryGraph) -> None:
    assert tails(pump, "plant.pump.drain", "calls") == []
    assert tails(pump, "plant.pump.drain", "raises") == []


def test_the_first_line_of_a_docstring_is_the_text(pump: LibraryGraph) -> None:
    assert pump.texts == {
        "plant.pump": "Pumps of a plant.",
        "plant.pump.Broken": "A pump that moves nothing.",
        "plant.pump.Pump.start": "Start the pump.",
    }


def test_relative_imports_of_a_package_start_at_itself(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "a/__init__.py": "from . import x\nfrom .y import z",
        "a/b/__init__.py": "from ..c import d",
    }
    expected: tuple[Triple, ...] = (
        ("a", "imports", "a.x"),
        ("a", "imports", "a.y"),
        ("a.b", "imports", "a.c"),
    )
    assert graph_of(tmp_path, files).triples == expected


# Files that cannot be read, and what is not the library -----------------------------------------


def test_files_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "bad.py": "def f(:",
        "good.py": "import os",
        "null.py": b"\0",
        "text.py": b"\xff\xfe",
    }
    found = graph_of(tmp_path, files)
    assert found.triples == (("good", "imports", "os"),)
    assert [one.path for one in found.skipped] == [
        "python/bad.py",
        "python/null.py",
        "python/text.py",
    ]
    assert found.skipped[0].reason.startswith("SyntaxError")


def test_nothing_is_imported(tmp_path: Path) -> None:
    text = f"import os\nopen({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit"
    graph_of(tmp_path, {"danger.py": text})
    assert not (tmp_path / "ran").exists()


def test_tests_and_installed_packages_are_left_out(tmp_path: Path) -> None:
    names = ("test/a.py", "json/tests/b.py", "site-packages/c.py", "no-name.py", "d.txt", "e.py")
    assert graph_of(tmp_path, dict.fromkeys(names, "import os")).triples == (
        ("e", "imports", "os"),
    )


def test_a_folder_without_modules_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="no modules found"):
        read_library_graph(stdlib=tmp_path)


def test_a_limit_below_one_is_an_error() -> None:
    with pytest.raises(ConfigError, match="limit"):
        read_library_graph(0)
