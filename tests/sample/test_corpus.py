"""Test the corpus that is read from the machine's own Python libraries."""

from __future__ import annotations

import sys
from importlib.metadata import Distribution, DistributionFinder, MetadataPathFinder
from pathlib import Path

import pytest

from rag_accel.errors import ConfigError, DocumentError
from rag_accel.sample import LoadReport, read_corpus
from rag_accel.sample.chunking import count_words

LONG = " ".join(["These words explain it at some length."] * 12)


@pytest.fixture
def stdlib(tmp_path: Path) -> Path:
    root = tmp_path / "python"
    files = {
        "alpha.py": f'"""First of all. {LONG}"""',
        "_private.py": f'"""Private. {LONG}"""',
        "broken.py": '"""Broken"""\ndef',
        "beta/__init__.py": f'"""The second. {LONG}"""',
        "beta/gamma.py": f'"""Its part. {LONG}"""',
        "beta/tests/test_it.py": f'"""A test. {LONG}"""',
        "test/support.py": f'"""Another test. {LONG}"""',
        "site-packages/other.py": f'"""Another owner. {LONG}"""',
    }
    for name, code in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    return root


def _packages(root: Path, **modules: list[str]) -> list[Distribution]:
    for name, files in modules.items():
        info = root / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nSummary: All about {name}.\n\n"
        (info / "METADATA").write_text(f"{head}{name} is described here. {LONG}")
        for file in files:
            path = root / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f'"""Doing what {file} does. {LONG}"""')
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in [*files, "../../bin/x.py"]))
    context = DistributionFinder.Context(path=[str(root)])
    return list(MetadataPathFinder.find_distributions(context))


def test_public_modules_are_read_in_the_order_of_their_paths(stdlib: Path) -> None:
    report = read_corpus(stdlib=stdlib, distributions=[])
    assert [one.id for one in report.documents] == ["alpha", "beta", "beta.gamma"]
    assert report.documents[2].metadata["source"] == "python/beta/gamma.py"


def test_a_file_that_is_not_python_is_named_and_skipped(stdlib: Path) -> None:
    (skipped,) = read_corpus(stdlib=stdlib, distributions=[]).skipped
    assert skipped.path == "python/broken.py"
    assert "SyntaxError" in skipped.reason


def test_packages_take_turns_after_the_standard_library(stdlib: Path, tmp_path: Path) -> None:
    found = _packages(
        tmp_path / "site",
        zeta=["zeta/__init__.py", "zeta/deep/er.py", "zeta/main.py", "zeta/_private.py"],
        eta=["eta.py"],
    )
    report = read_corpus(stdlib=stdlib, distributions=found)
    assert [one.id for one in report.documents][3:] == [
        "eta:description",
        "zeta:description",
        "eta",
        "zeta",
        "zeta.main",
        "zeta.deep.er",
    ]
    assert report.documents[3].text.startswith("eta: All about eta.")


def test_the_bound_keeps_the_standard_library_first(stdlib: Path, tmp_path: Path) -> None:
    found = _packages(tmp_path / "site", zeta=["zeta/__init__.py"])
    report = read_corpus(4, stdlib=stdlib, distributions=found)
    assert [one.id for one in report.documents] == [
        "alpha",
        "beta",
        "beta.gamma",
        "zeta:description",
    ]


def test_equal_texts_are_read_once(stdlib: Path) -> None:
    (stdlib / "again.py").write_text((stdlib / "alpha.py").read_text())
    ids = [one.id for one in read_corpus(stdlib=stdlib, distributions=[]).documents]
    assert ids == ["again", "beta", "beta.gamma"]


def test_the_language_reference_comes_first(stdlib: Path) -> None:
    topics = {"with": f'The "with" statement\n****\n\nIt wraps a block. {LONG}'}
    (stdlib / "pydoc_data").mkdir()
    (stdlib / "pydoc_data" / "topics.py").write_text(f"topics = {topics!r}\nraise SystemExit")
    document = read_corpus(stdlib=stdlib, distributions=[]).documents[0]
    assert document.id == "language.with"
    assert document.metadata["title"] == 'The "with" statement'
    assert document.text.startswith("language.with: It wraps a block.")


@pytest.mark.parametrize(
    "nested", ["-" * 100_000 + "1", "x" + ".x" * 100_000, "(" * 5000], ids=lambda code: code[:2]
)
def test_a_file_that_nests_too_deep_is_named_and_skipped(stdlib: Path, nested: str) -> None:
    (stdlib / "broken.py").write_text(f'"""a"""\n{nested}')
    report = read_corpus(stdlib=stdlib, distributions=[])
    assert [one.path for one in report.skipped] == ["python/broken.py"]
    assert len(report.documents) == 3


@pytest.mark.parametrize(
    "code",
    [
        "topics = {",
        "topics = {'a': print()}",
        "topics = 5",
        "topics = {[]: 'a'}",
        "topics = {'a': " + "-" * 100_000 + "1}",
        "topics = {'a': 1" + "+1" * 100_000 + "}",
    ],
    ids=lambda code: code[:18],
)
def test_a_damaged_language_reference_does_not_stop_the_reading(stdlib: Path, code: str) -> None:
    (stdlib / "pydoc_data").mkdir()
    (stdlib / "pydoc_data" / "topics.py").write_text(code)
    assert len(read_corpus(stdlib=stdlib, distributions=[]).documents) == 3


def test_no_documentation_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="no documentation found"):
        read_corpus(stdlib=tmp_path, distributions=[])


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_below_one_is_an_error(size: int) -> None:
    with pytest.raises(ConfigError, match="max_chunks"):
        read_corpus(size)


def test_the_default_corpus_has_two_thousand_chunks_of_passage_size(corpus: LoadReport) -> None:
    sizes = sorted(count_words(one.text) for one in corpus.documents)
    assert len(sizes) == 2200
    assert sizes[-1] <= 240
    assert 80 <= sizes[len(sizes) // 2] <= 180


def test_the_default_corpus_has_unique_ids_and_full_metadata(corpus: LoadReport) -> None:
    assert len({one.id for one in corpus.documents}) == len(corpus.documents)
    for one in corpus.documents:
        assert set(one.metadata) == {"source", "title", "qualname"}
        assert one.text.startswith(one.metadata["qualname"])


def test_the_default_corpus_documents_the_standard_library(corpus: LoadReport) -> None:
    by_id = {one.id: one for one in corpus.documents}
    assert by_id["json.dumps"].text.startswith("json.dumps(obj, ...): Serialize obj to a JSON")
    assert {"subprocess", "pathlib.Path", "language.with"} <= set(by_id)


def test_reading_runs_nothing_of_what_it_reads(stdlib: Path) -> None:
    (stdlib / "alpha.py").write_text(f'"""First of all. {LONG}"""\nraise SystemExit("run")')
    assert read_corpus(stdlib=stdlib, distributions=[]).documents[0].id == "alpha"
    assert "alpha" not in sys.modules


def test_reading_twice_gives_the_same_documents(corpus: LoadReport) -> None:
    assert read_corpus(300).documents == corpus.documents[:300]
