"""A model is tuned behind the mask of a tree, continues where it stopped, and refuses the rest."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch
from fake_runner import tokenizer
from tiny_chat import model

from rag_accel.cli import main
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.errors import ConfigError, DocumentError
from rag_accel.fidelity.tuning import (
    GraphNames,
    GraphQuestions,
    GraphShape,
    TuningOptions,
    TuningReport,
    generate_questions,
    load_graph_questions,
    tune_dependency,
)
from rag_accel.fidelity.tuning.checkpoints import TuningFolder
from rag_accel.fidelity.tuning.packing import IGNORED, PromptPacker, batch_of
from rag_accel.fidelity.tuning.training import answer_logits, exact_match

NAMES = GraphNames(
    ("Ada", "Bob", "Cyd", "Dan", "Eva"),
    ("has", "is"),
    ("of", "in"),
    lambda head, first, second: f"{head} {first} {second}",
)
SMALL = TuningOptions(
    steps=6, batch=2, rate=3e-3, shape=GraphShape(1, 2, 1, 2), held_out=2, checkpoint_every=2
)
PROMPT = GraphQuestions(
    (("Ada", " -> has ->", " Bob"), ("Ada", " -> has ->", " Cyd")),
    (("Who?", "Bob"), ("And who else?", "Cyd")),
)


def tune(checkpoint: Path, out: Path, **given: Any) -> TuningReport:
    return tune_dependency(checkpoint, out, **{"names": NAMES, "options": SMALL, **given})


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


class Stopped(Exception):
    """A caller that gives up."""


def stop_at(step: int) -> Any:
    def progress(done: int, steps: int, loss: float) -> None:
        if done == step:
            raise Stopped

    return progress


# Prompts ------------------------------------------------------------------------------------------


def test_a_question_has_the_logits_that_it_has_alone() -> None:
    packer = PromptPacker(tokenizer())
    both = batch_of([packer.pack(PROMPT)])
    with torch.no_grad():
        together = answer_logits(model(), both)
        alone = [
            answer_logits(model(), batch_of([packer.pack(replace(PROMPT, questions=(one,)))]))
            for one in PROMPT.questions
        ]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=1e-4)


def test_a_padded_prompt_has_the_logits_that_it_has_alone() -> None:
    packer = PromptPacker(tokenizer())
    short = packer.pack(replace(PROMPT, questions=PROMPT.questions[:1]))
    with torch.no_grad():
        alone = answer_logits(model(), batch_of([short]))
        padded = answer_logits(model(), batch_of([short, packer.pack(PROMPT)]))
    torch.testing.assert_close(padded[: len(alone)], alone, atol=1e-5, rtol=1e-4)


def test_flat_is_causal_text_and_a_tree_hides_siblings() -> None:
    one = replace(PROMPT, questions=PROMPT.questions[:1])
    flat = PromptPacker(tokenizer(), layout="flat").pack(one)
    size = len(flat.ids)
    assert torch.equal(flat.mask, torch.ones(size, size).tril().bool())
    assert torch.equal(flat.positions, torch.arange(size))
    tree = PromptPacker(tokenizer()).pack(one)
    assert len(tree.ids) < size
    assert not torch.equal(tree.mask, torch.ones_like(tree.mask).tril())


def test_exact_match_counts_whole_answers() -> None:
    packed = PromptPacker(tokenizer()).pack(PROMPT)
    right, total = exact_match(model(), [packed])
    assert (right, total) == (0, 2)
    # A model that is right about the first token alone is right about no answer of several.
    with torch.no_grad():
        found = answer_logits(model(), batch_of([packed])).argmax(-1)
    labels = packed.labels.clone()
    labels[labels != IGNORED] = found
    assert exact_match(model(), [replace(packed, labels=labels)]) == (2, 2)
    last = int((labels != IGNORED).nonzero()[-1])
    labels[last] = (labels[last] + 1) % len(tokenizer())
    assert exact_match(model(), [replace(packed, labels=labels)]) == (1, 2)


def test_generated_answers_are_where_the_relations_lead() -> None:
    found = generate_questions(NAMES, GraphShape(1, 2, 2, 4), np.random.default_rng(3))
    assert len(found.paths) == len(found.questions) == 4
    for question, answer in found.questions:
        head, first, second = question.split()
        leads = [
            path[4]
            for path in found.paths
            if (path[0], path[1], path[3]) == (head, f" -> {first} ->", f" -> {second} ->")
        ]
        assert leads == [f" {answer}"]


def test_too_few_names_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="entities"):
        generate_questions(NAMES, GraphShape(4, 2, 1), np.random.default_rng(0))
    with pytest.raises(ConfigError, match="subgraphs"):
        GraphShape(0)


# Tuning -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_loss_falls_and_the_model_loads_in_the_engine(
    checkpoint: Path, tmp_path: Path, precision: str
) -> None:
    report = tune(checkpoint, tmp_path / "out", options=replace(SMALL, precision=precision))
    assert report.last_loss < 0.9 * report.first_loss
    assert (report.steps, report.continued_at, report.held_out) == (6, 0, 4)
    loaded = load(str(tmp_path / "out"), options=LocalOptions(kv_reuse="dependency"))
    assert loaded.config.vocab_size == model().config.vocab_size
    assert not (tmp_path / "out" / "tuning.pt").exists()


def test_a_stopped_one_continues_to_the_same_weights(checkpoint: Path, tmp_path: Path) -> None:
    tune(checkpoint, tmp_path / "whole")
    with pytest.raises(Stopped):
        tune(checkpoint, tmp_path / "stopped", progress=stop_at(5))
    report = tune(checkpoint, tmp_path / "stopped")
    assert report.continued_at == 4
    whole, continued = weights_of(tmp_path / "whole"), weights_of(tmp_path / "stopped")
    assert whole.keys() == continued.keys()
    assert all(torch.equal(whole[name], continued[name]) for name in whole)


def test_a_finished_one_is_not_trained_again(checkpoint: Path, tmp_path: Path) -> None:
    first = tune(checkpoint, tmp_path)
    assert tune(checkpoint, tmp_path, progress=stop_at(1)) == first


def test_two_that_write_one_folder_train_once(checkpoint: Path, tmp_path: Path) -> None:
    steps: list[int] = []
    with ThreadPoolExecutor(2) as pool:
        running = [
            pool.submit(tune, checkpoint, tmp_path, progress=lambda *told: steps.append(told[0]))
            for _ in range(2)
        ]
        first, second = (one.result(timeout=300) for one in running)
    assert first == second
    assert steps == [1, 2, 3, 4, 5, 6]


def test_one_that_ends_before_its_result_is_written_is_not_lost(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*given: object) -> None:
        raise Stopped

    with monkeypatch.context() as patched:
        patched.setattr(TuningFolder, "finish", stopped)
        with pytest.raises(Stopped):
            tune(checkpoint, tmp_path)
    assert tune(checkpoint, tmp_path, progress=stop_at(1)).continued_at == SMALL.steps


@pytest.mark.parametrize(("name", "value"), [("rate", 1e-4), ("scheme", "preorder"), ("seed", 1)])
@pytest.mark.parametrize("finished", [False, True])
def test_other_settings_are_refused_by_name(
    checkpoint: Path, tmp_path: Path, name: str, value: Any, finished: bool
) -> None:
    if finished:
        tune(checkpoint, tmp_path)
    else:
        with pytest.raises(Stopped):
            tune(checkpoint, tmp_path, progress=stop_at(3))
    with pytest.raises(ConfigError, match=f"another value of {name}"):
        tune(checkpoint, tmp_path, options=replace(SMALL, **{name: value}))


def test_another_model_and_other_prompts_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    tune(checkpoint, tmp_path / "out")
    with pytest.raises(ConfigError, match="another value of prompts"):
        tune(checkpoint, tmp_path / "out", prompts=[PROMPT, PROMPT])
    with pytest.raises(ConfigError, match="another value of model"):
        tune(tmp_path / "out", tmp_path / "out")


def test_other_files_stay_as_they_are(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="other files"):
        tune(checkpoint, checkpoint)
    (tmp_path / "tuning.pt").write_bytes(b"no checkpoint")
    with pytest.raises(ConfigError, match="cannot be continued"):
        tune(checkpoint, tmp_path)
    (tmp_path / "tuning.pt").unlink()
    (tmp_path / "tuning.json").write_text("[]")
    with pytest.raises(ConfigError, match="cannot be continued"):
        tune(checkpoint, tmp_path)


def test_a_checkpoint_with_code_in_it_is_not_run(checkpoint: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    out = tmp_path / "out"
    out.mkdir()

    class Attack:
        def __reduce__(self) -> Any:
            return Path.touch, (ran,)

    torch.save({"recipe": Attack()}, out / "tuning.pt")
    with pytest.raises(ConfigError, match="cannot be continued"):
        tune(checkpoint, out)
    assert not ran.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [("steps", 0), ("batch", True), ("rate", -1.0), ("scheme", "depth"), ("precision", "int8")],
)
def test_options_out_of_range_are_refused(name: str, value: Any) -> None:
    given: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=value if isinstance(value, str) else name):
        TuningOptions(**given)


def test_a_loss_that_diverges_is_named(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a finite number"):
        tune(checkpoint, tmp_path, options=replace(SMALL, rate=1e30))
    assert not (tmp_path / "model.safetensors").exists()


def test_a_prompt_longer_than_the_context_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    long = replace(PROMPT, paths=(("Ada", " -> has ->", " Bob" * 700),))
    with pytest.raises(ConfigError, match="no room"):
        tune(checkpoint, tmp_path, prompts=[long, PROMPT])


# The command --------------------------------------------------------------------------------------

LINE = {"paths": ["Ada -> has -> Bob", "Ada -> has -> Cyd"], "question": "Who?", "answer": "Bob"}


def test_the_command_tunes_on_a_file_of_prompts(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps(LINE) for _ in range(3)))
    line = ["tune", "dependency", str(checkpoint), "--out", str(tmp_path / "out")]
    line += ["--prompts", str(file), "--steps", "2", "--batch", "2", "--json"]
    assert main(line) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["steps"] == 2
    assert err.count("of 2 steps") == 2


def test_the_command_says_that_it_can_be_continued(
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rag_accel.cli.tune._show", interrupted)
    assert main(["tune", "dependency", str(checkpoint), "--out", str(tmp_path / "out")]) == 130
    assert "continues" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"paths": []}, "no list of paths"),
        ({"paths": ["Ada"]}, "a path 'Ada'"),
        ({"paths": [3]}, "a path 3"),
        ({"question": " "}, "no question"),
        ({"answer": None}, "no answer"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, changed: Any, said: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps(LINE) + "\n\n" + json.dumps({**LINE, **changed}))
    with pytest.raises(DocumentError, match=said) as error:
        load_graph_questions(file)
    assert "line 3" in str(error.value)
