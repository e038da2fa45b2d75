"""One LangChain chain over both arms: prompt, model, parser."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompt_values import PromptValue
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda

from bench.local_llm.prompts import HUMAN, SYSTEM, Asked
from langchain_rag_accel.components.local_chat import ChatRagAccel
from rag_accel.accelerator import Accelerator

Chain = Runnable[Asked, str]

PROMPT = ChatPromptTemplate.from_messages([("system", SYSTEM), ("human", HUMAN)])
_ROLES = {"system": "system", "human": "user", "ai": "assistant"}


@dataclass(frozen=True)
class PlainModel:
    """A model as langchain_huggingface runs it: a pipeline of transformers, greedy.

    Args:
        folder: a checkpoint.
        batch_size: prompts that the pipeline pads and generates together.
    """

    folder: str
    batch_size: int

    @cached_property
    def pipeline(self) -> Any:
        """Return the pipeline, loaded in the dtype of the checkpoint."""
        from langchain_huggingface import HuggingFacePipeline

        return HuggingFacePipeline.from_model_id(
            self.folder,
            task="text-generation",
            batch_size=self.batch_size,
            model_kwargs={"dtype": "auto"},
            pipeline_kwargs={"do_sample": False, "return_full_text": False},
        )

    @property
    def tokenizer(self) -> Any:
        """Return its tokenizer."""
        return self.pipeline.pipeline.tokenizer

    def chain(self, tokens: int) -> Chain:
        """Return the chain that answers in at most so many tokens."""
        model = self.pipeline.bind(pipeline_kwargs={"max_new_tokens": tokens})
        return PROMPT | RunnableLambda(self.rendered) | model | StrOutputParser()

    def rendered(self, prompt: PromptValue) -> str:
        """Return a prompt by the tokenizer's chat template."""
        turns = [
            {"role": _ROLES[message.type], "content": message.content}
            for message in prompt.to_messages()
        ]
        text: str = self.tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, tokenize=False
        )
        return text


def our_chain(folder: str, accelerator: Accelerator, tokens: int) -> Chain:
    """Return the same chain over the engine here."""
    model = ChatRagAccel(model=folder, max_tokens=tokens, accelerator=accelerator)
    return PROMPT | model | StrOutputParser()


@dataclass(frozen=True, slots=True)
class Streamed:
    """A streamed answer: seconds to the first text of it, and all of it."""

    first_s: float
    answer: str


def streamed(pieces: Any) -> Streamed:
    """Read a stream to its end; the clock begins with this call."""
    started, first_s, found = time.perf_counter(), 0.0, list[str]()
    for piece in pieces:
        if piece and not found:
            first_s = time.perf_counter() - started
        if piece:
            found.append(piece)
    return Streamed(first_s or time.perf_counter() - started, "".join(found))
