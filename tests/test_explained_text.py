"""Explanations are texts, and notebooks show them as tables."""

from __future__ import annotations

import pickle
from html.parser import HTMLParser
from typing import Any

from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableSequence
from llama_index.core.llms import MockLLM

import langchain_rag_accel
import llama_index_rag_accel
from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.explained_text import ExplainedText
from rag_accel.interception import plain

TEXT = ExplainedText(
    "A title\nand its second line: of two\n"
    "  part: how <it> runs\n"
    '    inner: "so"\n'
    "  no colon\n"
    "next:"
)


class Shown(HTMLParser):
    """What a page shows: titles, and the cells of the rows of each table."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.titles: list[str] = []
        self.tables: list[list[list[str]]] = []
        self._target: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "div"):
            self._target = self.tables[-1][-1] if tag == "td" else self.titles
            self._target.append("")

    def handle_data(self, data: str) -> None:
        if data.strip("\n"):
            self._target[-1] += data


class Finding(BaseRetriever):
    """A retriever that finds one document."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [Document(query)]


def test_a_notebook_shows_titles_and_a_row_for_each_part() -> None:
    shown = Shown(TEXT._repr_html_())
    assert shown.titles == ["A title", "and its second line: of two", "next:"]
    assert shown.tables == [
        [["part", "how <it> runs"], ["\N{EM SPACE}inner", '"so"'], ["no colon"]]
    ]


def test_its_tables_are_closed_at_the_end() -> None:
    page = ExplainedText("title\n  part: runs")._repr_html_()
    assert page.count("<table>") == page.count("</table>") == 1
    assert page.endswith("</table>")


def test_it_is_a_text_in_all_other_respects() -> None:
    again = pickle.loads(pickle.dumps(TEXT))
    assert (again, hash(again), type(again)) == (str(TEXT), hash(str(TEXT)), ExplainedText)
    assert f"{TEXT}".splitlines()[0] == "A title"


def test_a_terminal_of_ipython_prints_its_lines() -> None:
    class Printer:
        printed = ""

        def text(self, obj: str) -> None:
            self.printed += obj

    printer = Printer()
    TEXT._repr_pretty_(printer, cycle=False)
    assert printer.printed == str(TEXT)


def test_every_explanation_is_shown_so() -> None:
    graph = RAGraph().add_generation("answer", "Say {input}")
    graph.add_edge(START, "answer").add_edge("answer", END)
    with Accelerator(llm=str) as accelerator:
        chain = langchain_rag_accel.accelerate(
            RunnableSequence(Finding(), FakeListChatModel(responses=["a"])), accelerator=accelerator
        )
        llm = llama_index_rag_accel.accelerate(MockLLM(), accelerator=accelerator)
        explained = (
            langchain_rag_accel.explain(chain),
            llama_index_rag_accel.explain(llm),
            accelerator.explain(graph),
            accelerator.explain(graph, "e-graph"),
            plain.explain(graph),
        )
    rows = list[list[str]]()
    for text in explained:
        assert isinstance(text, ExplainedText)
        shown = Shown(text._repr_html_())
        added = [cells for table in shown.tables for cells in table]
        assert len(shown.titles) + len(added) == len(text.splitlines())
        rows += added
    borrowed = (
        "borrowed: admitted by the scheduler, runs where its caller is"
        " (no engine of this library computes what this class does)"
    )
    assert ["program.0", f"Finding: {borrowed}"] in rows
