"""A check measures what fused prompts change, keeps its verdict and says what is wrong by name."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from check_kit import PASSAGES, PROMPTS, check_tiny, save_prompts
from fake_runner import TEMPLATE, tokenizer
from tiny_chat import model

from rag_accel.cli import main
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.errors import ConfigError
from rag_accel.fidelity import TextPrompt, variants
from rag_accel.kv.verdicts import FUSED, default_folder
from rag_accel.testing.clock import ManualClock

GIVEN = PROMPTS["fused"]
check = partial(check_tiny, ratios=(0.0, 1.0))


def test_recomputing_all_is_what_full_attention_gives() -> None:
    none, everything = check().measured
    assert (everything.ratio, everything.top1) == (1.0, 1.0)
    assert everything.kl < 1e-8
    assert none.kl > 100 * everything.kl


def test_what_is_proposed_meets_the_target_and_is_kept() -> None:
    found = check(target=0.0)
    assert (found.ratio, found.passed) == (0.0, True)
    kept = FUSED.read(default_folder(), load(model(), tokenizer()).runner.identity())
    assert kept is not None
    assert (kept.ratio, kept.target, kept.prompts, kept.tokens) == (0.0, 0.0, 8, 4)
    assert (kept.top1, kept.top1_error) == (found.measured[0].top1, found.measured[0].top1_error)
    assert set(kept.versions) == {"rag-accel", "transformers", "torch"}


def test_what_is_measured_does_not_depend_on_which_prompt_came_first() -> None:
    ways = [check(prompts=prompts, ratios=(0.0, 0.5)) for prompts in (GIVEN, GIVEN[::-1])]
    one, other = ([each.kl for each in found.measured] for found in ways)
    assert one == pytest.approx(other, rel=1e-3)


def test_the_time_ends_it_between_prompts() -> None:
    clock = ManualClock()
    done: list[tuple[int, ...]] = []

    def tick(*seen: int) -> None:
        done.append(seen)
        clock.advance(1.0)

    found = check(prompts=[*GIVEN, *GIVEN], limit_s=9.5, clock=clock, progress=tick)
    assert (found.prompts, found.complete) == (10, False)
    assert done == [(at, 16) for at in range(1, 11)]
    assert "as many as the time allowed" in str(found)


def test_too_little_time_keeps_no_verdict() -> None:
    clock = ManualClock()
    with pytest.raises(ConfigError, match=r"the time was over.*found 7 prompts"):
        check(limit_s=6.5, clock=clock, progress=lambda *_: clock.advance(1.0))
    assert not default_folder().exists()


def test_a_date_in_the_head_is_named() -> None:
    found = check(template="Today: {{ strftime_now('%d %b %Y') }}\n" + TEMPLATE)
    assert "the chat template writes the day" in found.heads[0]
    assert found.heads[0] in str(found)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"target": 1.5}, "target"),
        ({"target": float("nan")}, "target"),
        ({"ratios": (0.1, -0.1)}, "ratios"),
        ({"ratios": (0.5, 1.0)}, "no ratio to propose"),
        ({"ratios": ()}, "no ratio to propose"),
        ({"tokens": 0}, "tokens"),
        ({"limit_s": -1}, "limit_s"),
        ({"prompts": GIVEN[:7]}, "too few prompts"),
        ({"prompts": None, "count": 7}, "too few prompts"),
        ({"prompts": [*GIVEN, TextPrompt(("Short.",), "Why?")]}, "can be told apart"),
        ({"prompts": [*GIVEN, TextPrompt(PASSAGES * 40, "Why?")]}, "no room; at prompt 9"),
        ({"pool_bytes": 1 << 15}, "no room; at prompt 1"),
        ({"variant": "int4", "prompts": GIVEN}, r"unknown variant.*fused \| dependency \| int8"),
    ],
)
def test_bad_input_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check(**given)
    assert not default_folder().exists()


def test_prompts_are_of_the_lengths_that_have_room_the_shorter_ones_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(variants, "_LENGTHS", (400, 1200, 5000))
    monkeypatch.setattr(variants, "_CHUNKS", 20)
    clock = ManualClock()
    wanted = {"prompts": None, "count": 16, "limit_s": 8.5, "clock": clock}
    found = check(**wanted, pool_bytes=1 << 30, progress=lambda *_: clock.advance(1.0))
    assert (found.prompts, found.complete) == (9, False)
    assert "prompts of one search each" in found.compared
    least, most = (
        int(size.replace(",", "")) for size in re.findall(r"[\d,]+(?= to| tok)", found.compared)
    )
    assert 400 < least < 656
    assert 1200 < most < 1456


# The command


def test_the_command_prints_figures_and_proposes(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = save_prompts(tmp_path / "prompts.jsonl")
    line = ["check", str(checkpoint), "--prompts", str(file), "--target", "0"]
    assert main(line) == 0
    shown, progress = capsys.readouterr()
    assert 'proposed: kv_reuse="fused", recompute_ratio=0\n' in shown
    assert [f"{ratio}%" in shown for ratio in (0, 5, 15, 30, 50)] == [True] * 5
    assert "8 of 8 prompts" in progress


def test_its_earlier_name_says_by_its_status_that_fused_does_not_pay(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = save_prompts(tmp_path / "prompts.jsonl")
    line = ["cache", "check", str(checkpoint), "--prompts", str(file), "--target", "1"]
    assert main([*line, "--folder", str(tmp_path / "kept"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["ratio"] is None
    assert [one["ratio"] for one in found["measured"]] == [0.0, 0.05, 0.15, 0.3, 0.5]
    assert Path(found["file"]).parent == tmp_path / "kept"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--prompts", "none.jsonl"], "cannot read prompts"),
        (["--template", "none.jinja"], "a file cannot be read"),
        (["--count", "3"], "too few prompts"),
        (["--dtype", "int3"], "dtype"),
    ],
)
def test_the_command_names_what_is_wrong(
    checkpoint: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(checkpoint), *options]) == 2
    assert said in capsys.readouterr().err


def test_the_earlier_name_knows_one_way_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["cache", "check", "m", "--paths", "--weights", "int8"])
    assert "not allowed with" in capsys.readouterr().err
