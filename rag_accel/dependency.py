"""Prompts of relation paths, and calls of a local language model with them (DepCache section 5).

llm = LocalLLM(folder, kv_reuse="dependency")
kv = compute_depkv(llm, DepPrompt.chain(system, paths, task))
print(generate_with_depkv(kv, max_tokens=64).text)

Without a model, ``encode_prompt`` returns a prompt's trees, positions and mask, and
``report_layouts`` the tokens and attended pairs of paths in each layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rag_accel.accelerator import Accelerator
from rag_accel.adoption.local_calls import LocalCalls
from rag_accel.engine_api import GenerationOutput
from rag_accel.engines.llm.local.local_llm import LocalLLM
from rag_accel.engines.llm.local.text.tokens import DependencyInput
from rag_accel.errors import ConfigError
from rag_accel.kv.dependency.encoded import EncodedNode, EncodedPrompt, encode_prompt
from rag_accel.kv.dependency.prompt import DepPrompt, LinearNode, TreeNode
from rag_accel.kv.dependency.report import LayoutCost, LayoutReport, report_layouts
from rag_accel.kv.dependency.tree import DependencyTree

__all__ = [
    "DepKV",
    "DepPrompt",
    "DependencyTree",
    "EncodedNode",
    "EncodedPrompt",
    "LayoutCost",
    "LayoutReport",
    "LinearNode",
    "TreeNode",
    "compute_depkv",
    "encode_prompt",
    "generate_with_depkv",
    "report_layouts",
]


@dataclass(frozen=True, slots=True, eq=False)
class DepKV:
    """A prompt whose relation paths were computed and kept, see ``compute_depkv``.

    As long as it is referenced, its engine lives. What the engine had to evict since is computed
    again.

    Args:
        prompt: the prompt.
        calls: run it.
    """

    prompt: DepPrompt
    calls: LocalCalls


def compute_depkv(
    llm: LocalLLM, prompt: DepPrompt, *, accelerator: Accelerator | None = None
) -> DepKV:
    """Compute the keys and values of a prompt's relation paths, as far as none were kept.

    Blocks until they are there.

    Args:
        llm: with ``kv_reuse="dependency"``.
        prompt: its text stands in it as it is, without a chat template.
        accelerator: schedules the work; None for the current run's, or the process default.

    Raises:
        ConfigError: this is no ``LocalLLM``, or nodes depend on each other in another way than a
            text, contexts behind it, and a text behind them.
        EngineError: the model computes no trees, or the prompt has no room in context or pool.
    """
    if not isinstance(llm, LocalLLM):
        raise ConfigError(
            "relation paths are computed by a local language model",
            where="compute_depkv",
            found=type(llm).__name__,
            valid='LocalLLM(..., kv_reuse="dependency")',
        )
    calls = LocalCalls(llm, llm, accelerator)
    calls.generate(DependencyInput(prompt=prompt, only_encoded=True))
    return DepKV(prompt, calls)


def generate_with_depkv(
    kv: DepKV, *, max_tokens: int | None = None, stop: Sequence[str] = (), **options: Any
) -> GenerationOutput:
    """Return the completion of a prompt whose relation paths were computed.

    Its ``use`` says how many tokens were reused.

    Args:
        kv: from ``compute_depkv``.
        max_tokens: most tokens of the completion.
        stop: texts that end it.
        options: of sampling, by their OpenAI names; without any, the most probable tokens.

    Raises:
        ConfigError: an unknown option, or a value out of range.
        EngineError: the prompt has no room in context or pool.
    """
    return kv.calls.generate(
        DependencyInput(prompt=kv.prompt, max_tokens=max_tokens, stop=tuple(stop), options=options)
    )
