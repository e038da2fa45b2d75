"""``rag-accel demo``: an ordinary chain over a corpus, plain and accelerated."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langchain_core.documents import Document as LangChainDocument
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import (
    Runnable,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)

from langchain_rag_accel.accelerate import accelerate, explain
from rag_accel.accelerator import Accelerator
from rag_accel.config import Options
from rag_accel.engine_api import Document
from rag_accel.errors import ConfigError
from rag_accel.sample import smollm2_folder
from rag_accel.system.files import user_cache
from rag_accel_demo.extractive.chat_model import ExtractiveChatModel
from rag_accel_demo.extractive.prompt import format_passages
from rag_accel_demo.load import measure
from rag_accel_demo.local_model import (
    LocalLevel,
    local_as_json,
    local_table,
    measure_local_model,
)
from rag_accel_demo.material import Material, prepare
from rag_accel_demo.report import (
    as_json,
    compare,
    samples,
    size_note,
    table,
    time_spent,
    total,
)

TOP_K = 4


def build_chain(store: Any, reader: Any | None = None) -> Runnable[str, dict[str, Any]]:
    """Return question -> ``{"documents", "question", "answer"}`` over a vector store."""
    retriever = store.as_retriever(search_kwargs={"k": TOP_K})
    prompt = ChatPromptTemplate.from_messages(
        [("human", "Context:\n{context}\n\nQuestion: {question}")]
    )
    answer = RunnableLambda(prompt_values) | prompt | (reader or ExtractiveChatModel())
    return RunnableParallel(
        documents=retriever, question=RunnablePassthrough()
    ) | RunnablePassthrough.assign(answer=answer | StrOutputParser())


def prompt_values(values: dict[str, Any]) -> dict[str, str]:
    """Write the retrieved documents as numbered passages beside the question."""
    documents: list[LangChainDocument] = values["documents"]
    passages = [
        Document(str(document.id), document.page_content, document.metadata)
        for document in documents
    ]
    return {"context": format_passages(passages), "question": values["question"]}


HELP = "answer questions over real documents, plain and accelerated, and compare"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--docs", type=Path, help="folder of .txt and .md documents")
    parser.add_argument("--questions", type=Path, help="file with one question a line, or JSON")
    parser.add_argument("--json", action="store_true", help="print one JSON object and no prose")
    parser.add_argument("--cache", type=Path, help="folder of the cached index")


def command(arguments: argparse.Namespace) -> int:
    """Run the demo; return the exit status: 1 if an answer differs."""
    quiet = arguments.json

    def tell(text: str) -> None:
        print(text, file=sys.stderr if quiet else sys.stdout, flush=True)

    material = prepare(
        arguments.docs,
        arguments.questions,
        arguments.cache or user_cache(),
        progress=sys.stderr.isatty() and not quiet,
    )
    _introduce(material, tell)
    # Results are neither cached nor shared: every answer is worked out.
    options = Options.load(single_flight=False)
    with Accelerator(options=options) as accelerator:
        plain = build_chain(material.store)
        fast = accelerate(plain, accelerator=accelerator)
        levels = measure(plain, fast, material.questions, tell)
        comparison = total(
            compare(material.store, level.questions, level.plain.answers, level.accelerated.answers)
            for level in levels
        )
        text = explain(fast)
        spent = time_spent(accelerator.metrics.snapshot())
    if not quiet:
        tell(samples(levels[-1].questions, levels[-1].plain.answers))
        tell(f"\n{table(levels)}")
        if note := size_note(len(material.documents), len(material.questions)):
            tell(f"\n{note}")
        tell(
            f"\nidentical answers: {comparison.identical} of {comparison.total}"
            f" (score ties: {comparison.ties}), all levels together"
        )
        tell(f"\nwhere the accelerated arm's time went\n{spent}\n\n{text}")
    local = _local_model(material, arguments.cache or user_cache(), options, tell)
    if quiet:
        found = as_json(comparison, levels, text)
        print(json.dumps({**found, "local_model": local_as_json(local)}))
    different = [*comparison.different, *(one for level in local for one in level.different)]
    return 1 if different else 0


def _local_model(
    material: Material, cache: Path, options: Options, tell: Callable[[str], None]
) -> list[LocalLevel]:
    """Answer a few questions with a language model of this machine; nothing where there is none."""
    try:
        folder = smollm2_folder(cache)
    except ConfigError as error:
        tell(f"\nno language model of this machine: {error}")
        return []
    tell(f"\nthe same chain with a language model of this machine, {folder.name}, streamed")
    with Accelerator(options=options) as accelerator:
        levels = measure_local_model(
            folder,
            lambda model: build_chain(material.store, model),
            material.questions,
            accelerator,
            tell,
        )
    answers = sum(len(level.questions) for level in levels)
    different = sum(len(level.different) for level in levels)
    tell(f"\n{local_table(levels)}\n\nidentical answers: {answers - different} of {answers}")
    return levels


def _introduce(material: Material, tell: Callable[[str], None]) -> None:
    cached = "cached" if material.index_was_cached else "made now"
    tell(
        f"{len(material.documents)} chunks (index {cached}), "
        f"{len(material.questions)} distinct questions"
    )
    for skipped in material.skipped[:5]:
        tell(f"  skipped {skipped}")
    if len(material.skipped) > 5:
        tell(f"  and {len(material.skipped) - 5} more skipped")
