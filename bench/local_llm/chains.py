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
from rag_accel.engines.llm.local.local_llm import LocalLLM

Chain = Runnable[Asked, str]

PROMPT = ChatPromptTemplate.from_messages([("system", SYSTEM), ("human", HUMAN)])
_ROLES = {"system": "system", "human": "user", "ai": "assistant"}


@dataclass(frozen=True)
class PlainModel:
    """A model as langchain_huggingface runs it: a pipeline of transformers, greedy.

    Args:
        folder: a checkpoint.
        batch_size: prompts that the pipeline pads and generates together.
        dtype: of weights and computation; ``auto`` for that of the checkpoint.
    """

    folder: str
    batch_size: int
    dtype: str = "auto"

    @cached_property
    def pipeline(self) -> Any:
        """Return the pipeline, loaded."""
        from langchain_huggingface import HuggingFacePipeline

        return HuggingFacePipeline.from_model_id(
            self.folder,
            task="text-generation",
            batch_size=self.batch_size,
            model_kwargs={"dtype": self.dtype},
            pipeline_kwargs={"do_sample": False, "return_full_text": False},
        )

    @property
    def tokenizer(self) -> Any:
        """Return its tokenizer."""
        return self.pipeline.pipeline.tokenizer

    @property
    def dtype_name(self) -> str:
        """Return the dtype it has, without torch's prefix."""
        return str(self.pipeline.pipeline.model.dtype).removeprefix("torch.")

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

    def ids(self, asked: Asked) -> list[int]:
        """Return the tokens of a prompt."""
        rendered = self.rendered(PROMPT.invoke(asked))
        return self.tokenizer(rendered, add_special_tokens=False)["input_ids"]


def our_chain(folder: str, accelerator: Accelerator, tokens: int, **bounds: Any) -> Chain:
    """Return the same chain over the engine here.

    Args:
        folder: a checkpoint.
        accelerator: computes.
        tokens: most of an answer.
        bounds: of the ``LocalLLM``, and its dtype.
    """
    llm = LocalLLM(folder, **bounds)
    model = ChatRagAccel(model=llm, max_tokens=tokens, accelerator=accelerator)
    return PROMPT | model | StrOutputParser()


@dataclass(frozen=True, slots=True)
class Streamed:
    """A streamed answer.

    Args:
        first_s: seconds to the first text of it.
        answer: all of it.
        first: the first piece of it that is not empty.
        total_s: seconds to its end.
    """

    first_s: float
    answer: str
    first: str = ""
    total_s: float = 0.0


def streamed(pieces: Any) -> Streamed:
    """Read a stream to its end; the clock begins with this call."""
    started, first_s, found = time.perf_counter(), 0.0, list[str]()
    for piece in pieces:
        if piece and not found:
            first_s = time.perf_counter() - started
        if piece:
            found.append(piece)
    total_s = time.perf_counter() - started
    return Streamed(first_s or total_s, "".join(found), "".join(found[:1]), total_s)
