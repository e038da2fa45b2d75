"""Programs over knowledge graphs, a model that writes their queries, and three ways to run them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatResult
from lc_fakes import SyncChat
from lc_recording import plain
from lc_runs import Runs
from pydantic import Field

from langchain_rag_accel import accelerate, activate
from rag_accel import Accelerator

Run = Callable[[Any, dict[str, Any]], Any]


class QueryWriter(SyncChat):
    """Write the query, or the entities, that belong to a question; answer any other prompt.

    Args:
        written: what is written for each question.
        meeting: where calls wait for each other, if they are to.
    """

    written: Mapping[str, str] = Field(default_factory=dict)
    meeting: Any = Field(default=None, exclude=True)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        if self.meeting is not None:
            self.meeting.wait(10.0)
        made = super()._generate(messages, stop, run_manager, **kwargs)
        prompt = str(messages[-1].text)
        for question, text in self.written.items():
            if prompt.endswith((f"The question is:\n{question}", f"\n\n{question}\nOutput:")):
                made.generations[0].message.content = text
                made.generations[0].text = text
        return made

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


def run_three_ways(
    make: Callable[[], Any], run: Run, accelerator: Accelerator
) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """Return what a program gives and tells its callbacks: bare, accelerated and activated.

    An error counts as what it gives.
    """
    found: list[tuple[str, list[tuple[Any, ...]]]] = []

    def note(program: Any) -> None:
        recorder = Runs()
        try:
            result = plain(run(program, {"callbacks": [recorder]}))
        except Exception as error:
            result = f"{type(error)}: {plain(str(error))}"
        found.append((result, recorder.log))

    note(make())
    note(accelerate(make(), accelerator=accelerator))
    with activate(accelerator):
        note(make())
    return found


def numbered(questions: int) -> Sequence[str]:
    return [f"question {number}" for number in range(questions)]
