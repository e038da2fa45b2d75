"""The check of trees of relation paths: measured, kept, said, and warned of until it has passed."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from fake_runner import tokenizer
from int8_kit import give_folders
from tiny_chat import model

from rag_accel import ConfigError, UncheckedReuseWarning
from rag_accel.cli import main
from rag_accel.config import KvReuse, Options
from rag_accel.engines.llm.local.choice import LocalModel
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.reuse import unchecked
from rag_accel.engines.llm.local.text.prompting import Prompting
from rag_accel.fidelity import AgreementCheck, TextPrompt, check_paths
from rag_accel.fidelity.paths_check import path_prompts

POOL = 1 << 25
TEXTS = ("guide -> in -> it", "guide -> in -> lane -> of -> keys", "lane -> holds -> values")
PROMPTS = [TextPrompt(TEXTS, f"What is said of number {at}?") for at in range(8)]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_folders(tmp_path / "cache", monkeypatch)
    monkeypatch.setattr(unchecked, "_warned", set())


def check(**given: Any) -> AgreementCheck:
    given = {"prompts": PROMPTS, "tokens": 4, "pool_bytes": POOL, **given}
    return check_paths(model(), tokenizer(), **given)


def use(kv_reuse: KvReuse = "dependency") -> None:
    """Make an engine that computes trees, or reuses in another way, and end it."""
    bounds = LocalOptions(kv_reuse=kv_reuse, pool_bytes=POOL)
    LocalModel(model(), tokenizer(), None, None, bounds).make(Options()).close()


def test_a_random_model_does_not_agree_and_that_is_kept_and_warned_of() -> None:
    found = check()
    assert not found.passed
    assert found.kl > 0
    assert 'kv_reuse="dependency" does not agree' in str(found)
    with pytest.warns(UncheckedReuseWarning, match=r"agrees in \d+% of the tokens"):
        use()


def test_the_savings_of_trees_are_said_of_the_compared_prompts() -> None:
    found = check()
    prompting = Prompting(tokenizer())
    written = trees = 0
    for prompt in PROMPTS:
        whole = prompt.generation_input(1, only_paths=True)
        tree = prompting.tree(whole.messages, whole.chunk_spans)
        assert tree is not None
        written += len(prompting.whole(whole.messages)) - len(tree.head) - len(tree.task)
        trees += len(tree.tree.ids)
    assert found.layouts is not None
    fewer, share = found.layouts.redundant_share(), found.layouts.attended_share()
    assert f"the paths have {trees} tokens instead of {written} (-{fewer:.0%}), " in str(found)
    assert f"and prompts {share:.0%} of the attended pairs" in str(found)
    assert 0 < fewer < 1
    assert 0 < share < 1
    costs = json.loads(json.dumps(found.to_dict()))["layouts"]
    assert costs["tree"]["tokens"] == trees
    assert costs["flat"]["tokens"] == written


def test_a_check_that_passed_is_silent() -> None:
    assert check(target=0.0).passed
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        use()


def test_a_model_that_was_not_checked_is_warned_of_once() -> None:
    with pytest.warns(UncheckedReuseWarning, match="check_paths"):
        use()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        use()


def test_a_warning_of_fused_texts_hides_none_of_trees() -> None:
    with pytest.warns(UncheckedReuseWarning, match="check_reuse"):
        use("fused")
    with pytest.warns(UncheckedReuseWarning, match="check_paths"):
        use()


def test_prompts_without_paths_are_named() -> None:
    plain = [TextPrompt(("A crane lifts loads by a rope.",), str(at)) for at in range(8)]
    with pytest.raises(ConfigError, match="no two texts of a prompt are relation paths"):
        check(prompts=plain)


@pytest.mark.slow  # parses the whole standard library
def test_generated_prompts_have_a_tree_each() -> None:
    prompts = path_prompts(8)
    assert prompts == path_prompts(8)
    for prompt in prompts:
        heads = [text.split(" -> ")[0] for text in prompt.texts]
        assert len(set(heads)) < len(heads)
        assert any(head in prompt.question for head in heads)


def test_the_command_knows_one_way_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["cache", "check", "m", "--paths", "--weights", "int8"])
    assert "not allowed with" in capsys.readouterr().err
