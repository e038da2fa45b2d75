"""SmolLM2 135M Instruct where its package is installed, and what ``generate`` makes of chats."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from rag_accel.errors import ConfigError
from rag_accel.sample import smollm2_folder

SYSTEM = "Answer the question using the context. Be brief."
FACTS = (
    ("The Eiffel Tower stands in Paris and was completed in 1889.", "Where is the Eiffel Tower?"),
    ("Mount Fuji is 3776 metres high.", "How high is Mount Fuji?"),
    ("A crane lifts loads by a rope over a pulley.", "What does a crane lift loads by?"),
    ("Water boils at 100 degrees Celsius at sea level.", "When does water boil?"),
    ("The filter of the pump is cleaned every month.", "How often is the filter cleaned?"),
)


def folder() -> str:
    """Return the folder of the model; skip the test where there is none."""
    try:
        return str(smollm2_folder())
    except ConfigError as error:
        pytest.skip(str(error).splitlines()[0])


@cache
def model(dtype: str = "float32") -> Any:
    """Return the model as transformers loads it."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder(), dtype=dtype).eval()


@cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder())


def chat(at: int) -> list[tuple[str, str]]:
    """Return the roles and contents of the chat of a number."""
    facts = [FACTS[(at + step) % len(FACTS)][0] for step in range(1 + at % 3)]
    context = "\n\n".join(f"[{place}] {fact}" for place, fact in enumerate(facts, start=1))
    question = FACTS[at % len(FACTS)][1]
    return [("system", SYSTEM), ("user", f"Context:\n{context}\n\nQuestion {at}: {question}")]


def generated(at: int, tokens: int) -> str:
    """Return the text that ``generate`` makes of a chat, alone and greedily."""
    messages = [{"role": role, "content": content} for role, content in chat(at)]
    ids = tokenizer().apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        made = model().generate(**ids, max_new_tokens=tokens, do_sample=False)
    return tokenizer().decode(made[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
