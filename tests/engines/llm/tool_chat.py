"""A chat template that takes tools, and a component's model whose answers are written down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_runner import FakeRunner, tokenizer
from tiny_chat import model

from rag_accel.engines.llm.local.choice import LocalModel
from rag_accel.engines.llm.local.engine import LocalLLMEngine

#: As Qwen 2.5's, for a tokenizer whose turns begin with ``<|im_start|>``.
QWEN = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content }}{%- endif %}
    {{- '\\n\\n# Tools\\n\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for call in message.tool_calls %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response name="' + message.name + '">\\n' }}
        {{- message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
#: The same for ``fake_runner.tokenizer``.
TEMPLATE = QWEN.replace("<|im_start|>", "<|turn|>").replace("<|im_end|>", "</s>")

CALL = (
    'Let me see.\n<tool_call>\n{"name": "height", "arguments": {"of": "Fuji — 富士"}}\n</tool_call>'
)
ARGUMENTS = {"of": "Fuji — 富士"}
MALFORMED = {
    "cut off": '<tool_call>\n{"name": "height", "arguments": {"of": "Fu',
    "no object": '<tool_call>["height"]</tool_call>',
    "no name": '<tool_call>{"arguments": {}}</tool_call>',
    "arguments that are none": '<tool_call>{"name": "height", "arguments": [1]}</tool_call>',
    "bare and cut off": '{"name": "height", "parameters": {"of": "Fu',
}


def rendered(messages: list[dict[str, Any]], tools: list[Any] | None) -> str:
    """Return what ``apply_chat_template`` makes of a prompt."""
    return tokenizer().apply_chat_template(
        messages, tools=tools, chat_template=TEMPLATE, add_generation_prompt=True, tokenize=False
    )


def script(monkeypatch: pytest.MonkeyPatch, answer: Callable[[str], str]) -> list[str]:
    """Have local models answer as a function of the prompt says; return the prompts they get."""
    prompts: list[str] = []
    turn = tokenizer().convert_tokens_to_ids("<|turn|>")

    def make(local: LocalModel, options: Any) -> LocalLLMEngine:
        runner = FakeRunner(peak=_next)
        return LocalLLMEngine(
            runner, local.tokenizer, template=local.template, options=local.bounds
        )

    def _next(history: tuple[int, ...]) -> int | None:
        begun = len(history) - 1 - history[::-1].index(turn)
        prompt = tokenizer().decode(history[:begun]) + "<|turn|>assistant\n"
        start = len(tokenizer()(prompt, add_special_tokens=False)["input_ids"])
        if len(history) < start:
            return None
        if len(history) == start:
            prompts.append(prompt)
        ids = tokenizer()(answer(prompt), add_special_tokens=False)["input_ids"]
        return [*ids, tokenizer().eos_token_id][len(history) - start]

    monkeypatch.setattr(LocalModel, "make", make)
    return prompts


def scripted_model(accelerator: Any, **named: Any) -> dict[str, Any]:
    """Return the arguments of a component whose template takes tools."""
    return {
        "model": model(),
        "tokenizer": tokenizer(),
        "max_tokens": 400,
        "chat_template": TEMPLATE,
        "accelerator": accelerator,
        **named,
    }
