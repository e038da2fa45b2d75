"""Prompts of texts and of paths, and checks of a tiny model over them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fake_runner import tokenizer
from tiny_chat import model

from rag_accel.fidelity import CheckResult, TextPrompt, check

PASSAGES = (
    "The height of Mount Fuji is 3776 metres, said the guide to those who came along.",
    "A crane lifts loads by a rope over a pulley, and lets them down by it.",
    "The filter of the pump is cleaned every month, or when the water is no more.",
)
PATHS = ("guide -> in -> it", "guide -> in -> lane -> of -> keys", "lane -> holds -> values")
QUESTIONS = [f"What is said of number {at}?" for at in range(8)]
PROMPTS = {
    "fused": [
        TextPrompt((PASSAGES[at % 3], PASSAGES[(at + 1) % 3]), asked)
        for at, asked in enumerate(QUESTIONS)
    ],
    "dependency": [TextPrompt(PATHS, asked) for asked in QUESTIONS],
    "int8": [TextPrompt(PASSAGES[:2], asked) for asked in QUESTIONS],
}


def check_tiny(variant: str = "fused", **given: Any) -> CheckResult:
    """Check a variant of the tiny model, by answers of 4 tokens."""
    bounds = {"prompts": PROMPTS.get(variant), "tokens": 4, "pool_bytes": 1 << 25}
    return check(model(), tokenizer(), variant=variant, **{**bounds, **given})


def save_prompts(file: Path) -> Path:
    """Write the prompts of texts to a file as users do."""
    prompts = PROMPTS["fused"]
    lines = [{"question": each.question, "documents": list(each.texts)} for each in prompts]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file
