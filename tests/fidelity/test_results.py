"""Figures and verdicts stay those of earlier releases, for the same model and prompts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from fake_runner import tokenizer
from int8_kit import give_folders
from tiny_chat import model

from rag_accel.fidelity import TextPrompt, check_paths, check_reuse, check_weights
from rag_accel.kv.agreement import PATHS_CHECKS, WEIGHTS_CHECKS
from rag_accel.kv.reuse_check import REUSE_CHECKS

PASSAGES = (
    "The height of Mount Fuji is 3776 metres, said the guide to those who came along.",
    "A crane lifts loads by a rope over a pulley, and lets them down by it.",
    "The filter of the pump is cleaned every month, or when the water is no more.",
)
PATHS = ("guide -> in -> it", "guide -> in -> lane -> of -> keys", "lane -> holds -> values")
#: Files that an earlier release has written, and the secret of their folder.
WRITTEN = Path(__file__).parent / "verdicts"
SECRET = "4a88bb16337f0aca74b103c42c14ef30f2a058b68cda56e4ebed46ddde2b5490"
OWN = "43b19fb4016249eca982e81ab68a03e5588738ad384835783919b21957cc0fa1"
ROUNDED = "275882d189f2bbf137ab8f49e614597de647750e73d23a98a3b0649427af6519"


def prompts(texts: Callable[[int], tuple[str, ...]]) -> list[TextPrompt]:
    return [TextPrompt(texts(at), f"What is said of number {at}?") for at in range(8)]


def near(values: dict[str, Any]) -> dict[str, Any]:
    """Return values of which those with fractions are compared nearly."""
    return {
        name: pytest.approx(value, rel=1e-3) if isinstance(value, float) else value
        for name, value in values.items()
    }


def found(result: Any) -> dict[str, Any]:
    values = result.to_dict()
    assert Path(values.pop("file")).is_file()
    assert values.pop("model") == "LlamaForCausalLM"
    return values


def test_fused_prompts_have_the_figures_of_each_ratio() -> None:
    given = prompts(lambda at: (PASSAGES[at % 3], PASSAGES[(at + 1) % 3]))
    values = found(
        check_reuse(model(), tokenizer(), prompts=given, tokens=4, ratios=(0.3, 0.0, 0.15))
    )
    names = ("ratio", "top1", "top1_error", "kl", "kl_error")
    assert values.pop("measured") == tuple(
        near(dict(zip(names, row, strict=True)))
        for row in (
            (0.0, 0.9375, 0.04091585441924857, 0.006830387132898009, 0.0010365317656905553),
            (0.15, 0.875, 0.0472455591261534, 0.005282776010482854, 0.0008086993647217564),
            (0.3, 0.96875, 0.03125, 0.0041038218399659775, 0.0007292451154951977),
        )
    )
    assert values == {
        "target": 0.95,
        "ratio": None,
        "prompts": 8,
        "compared": "8 prompts, of 187 to 202 tokens",
        "tokens": 4,
        "complete": True,
        "heads": (),
    }


def test_trees_of_paths_have_the_figures_and_layouts() -> None:
    values = found(check_paths(model(), tokenizer(), prompts=prompts(lambda _: PATHS), tokens=4))
    assert values == near(
        {
            "option": 'kv_reuse="dependency"',
            "target": 0.95,
            "passed": False,
            "top1": 0.4375,
            "top1_error": 0.0625,
            "kl": 0.2995454925713029,
            "kl_error": 0.01923534570035361,
            "prompts": 8,
            "compared": "8 prompts, of 123 to 123 tokens",
            "tokens": 4,
            "complete": True,
            "layouts": {
                "flat": {"tokens": 416, "attended_pairs": 74528},
                "tree": {"tokens": 312, "attended_pairs": 57944},
            },
        }
    )


def test_int8_weights_have_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_folders(tmp_path / "cache", monkeypatch)
    given = prompts(lambda _: PASSAGES[:2])
    values = found(check_weights(model(), tokenizer(), prompts=given, tokens=4, pool_bytes=1 << 24))
    assert values == near(
        {
            "option": 'weights="int8"',
            "target": 0.95,
            "passed": False,
            "top1": 0.96875,
            "top1_error": 0.03125,
            "kl": 0.0006976292676134518,
            "kl_error": 7.926875051643283e-05,
            "prompts": 8,
            "compared": "8 prompts, of 187 to 187 tokens",
            "tokens": 4,
            "complete": True,
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "kept"
    path.mkdir(mode=0o700)
    for file in WRITTEN.iterdir():
        shutil.copyfile(file, path / file.name)
    (path / ".secret").write_bytes(bytes.fromhex(SECRET))
    (path / ".secret").chmod(0o600)
    return path


@pytest.mark.parametrize(
    ("kind", "identity", "passed", "top1", "kl"),
    [
        (REUSE_CHECKS, OWN, False, 0.96875, None),
        (PATHS_CHECKS, OWN, False, 0.4375, 0.2995454925713029),
        (WEIGHTS_CHECKS, ROUNDED, False, 0.96875, 0.0006976292676134518),
    ],
)
def test_verdicts_of_an_earlier_release_are_read(
    folder: Path, kind: Any, identity: str, passed: bool, top1: float, kl: float | None
) -> None:
    verdict = kind.read(folder, identity)
    assert verdict is not None
    assert (verdict.target, verdict.top1, verdict.prompts, verdict.tokens) == (0.95, top1, 8, 4)
    assert getattr(verdict, "passed", False) == passed
    assert getattr(verdict, "kl", None) == kl
    assert verdict.versions["transformers"] == "5.24.0"
