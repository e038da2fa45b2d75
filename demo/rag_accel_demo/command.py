"""``rag-accel demo``: an ordinary chain over a corpus, plain and accelerated."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
from rag_accel_demo.extent import FULL, QUICK, Extent
from rag_accel_demo.extractive.chat_model import ExtractiveChatModel
from rag_accel_demo.extractive.prompt import format_passages
from rag_accel_demo.findings import Findings, compiled_phrase
from rag_accel_demo.levels import Level, measure
from rag_accel_demo.load import run_load
from rag_accel_demo.local_model import (
    LOCAL_HEAD,
    LocalLevel,
    local_as_json,
    local_rows,
    measure_local_model,
)
from rag_accel_demo.material import Material, hide_loading_bars, prepare
from rag_accel_demo.progress import LOCAL_ANSWER, PhaseBar
from rag_accel_demo.report import (
    HEAD,
    Comparison,
    Sample,
    as_json,
    compare,
    rows,
    sample_text,
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


#: Asked in addition, of the shipped corpus: their answers were read and are right.
SHOWN = (
    "In Slicings, what happens if the slice list contains at least one comma?",
    "Which exception does RawConfigParser.add_section raise if a section by the given name "
    "already exists?",
    "What does base64 offer if I want to encode bytes-like object b in base85 format?",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--docs", type=Path, help="folder of .txt and .md documents")
    parser.add_argument("--questions", type=Path, help="file with one question a line, or JSON")
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="within two minutes; the default")
    extent.add_argument("--full", action="store_true", help="more chunks, questions and turns")
    parser.add_argument(
        "--html", type=Path, metavar="PATH", help="of the page; default: ./demo.html"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object and no prose")
    parser.add_argument("--cache", type=Path, help="folder of the cached index")


def command(arguments: argparse.Namespace) -> int:
    """Run the demo; return the exit status: 1 if an answer differs."""
    # Only this command draws: others list it among the commands without loading matplotlib.
    from rag_accel_demo.charts import machine
    from rag_accel_demo.page import writable_page, write_page

    quiet = arguments.json
    place = writable_page(arguments.html)
    hide_loading_bars()
    extent = FULL if arguments.full else QUICK
    cache = arguments.cache or user_cache()
    # Results are neither cached nor shared: every answer is worked out.
    options = Options.load(single_flight=False)
    lines = sys.stderr if quiet else sys.stdout
    with PhaseBar(sys.stderr.isatty() and not quiet, lines) as progress:
        progress.begin("read documents")
        material = prepare(
            arguments.docs,
            arguments.questions,
            cache,
            progress=progress,
            max_chunks=extent.max_chunks,
        )
        about = introduction(material)
        progress.write(about)
        progress.expect(extent.answers(len(material.questions)))
        asked = () if arguments.docs or arguments.questions else SHOWN
        chain = measure_chain(material, asked, extent, options, progress)
        local, no_model = measure_local(material, cache, extent, options, progress)
    findings = Findings(
        run=extent.name,
        machine=machine(),
        comparison=chain.comparison,
        levels=chain.levels,
        local=local,
        no_model=no_model,
        compiled=compiled_phrase(chain.explained),
    )
    write_page(place, findings, chain.shown, chain.explained, about)
    if quiet:
        found = as_json(chain.comparison, chain.levels, chain.explained)
        found |= {"local_model": local_as_json(local), "run": extent.name}
        found |= {"machine": findings.machine, "findings": findings.lines()}
        print(json.dumps({**found, "html": os.path.relpath(place)}))
    else:
        print("\n".join(_prose(findings, material, chain, extent)), flush=True)
        if arguments.html is None and place.parent != Path.cwd():
            print(f"The current folder takes no file: the page is in {place.parent}.")
        print(place)
    return 1 if findings.different else 0


@dataclass(frozen=True, slots=True)
class ChainRun:
    """Whatever was measured of the chain.

    Args:
        levels: both arms at each number of users.
        comparison: of all answers of both arms.
        shown: a few questions with their answers.
        explained: how each part of the accelerated chain runs.
        spent: where the time of the accelerated arm went.
    """

    levels: tuple[Level, ...]
    comparison: Comparison
    shown: tuple[Sample, ...]
    explained: str
    spent: str


def measure_chain(
    material: Material,
    shown: Sequence[str],
    extent: Extent,
    options: Options,
    progress: PhaseBar,
) -> ChainRun:
    """Ask both arms of the chain, and ask them the questions to be shown as well."""
    plain = build_chain(material.store)
    with Accelerator(options=options) as accelerator:
        fast = accelerate(plain, accelerator=accelerator)
        levels = measure(plain, fast, material.questions, extent, accelerator, progress)
        before, after = (run_load(chain, shown, 1, "threads").answers for chain in (plain, fast))
        explained = explain(fast)
        spent = time_spent(accelerator.metrics.snapshot())
    last = levels[-1]
    comparisons = [compare(material.store, shown, before, after)]
    comparisons += [
        compare(material.store, level.questions, level.plain.answers, level.accelerated.answers)
        for level in levels
    ]
    found = samples((*shown, *last.questions), (*after, *last.accelerated.answers))
    return ChainRun(tuple(levels), total(comparisons), tuple(found), explained, spent)


def measure_local(
    material: Material, cache: Path, extent: Extent, options: Options, progress: PhaseBar
) -> tuple[list[LocalLevel], str]:
    """Ask a language model of this machine; without one, return no level and why."""
    try:
        folder = smollm2_folder(cache)
    except ConfigError as error:
        return [], str(error)
    progress.expect(LOCAL_ANSWER * extent.local.answers())
    tell: Callable[[str], None] | None = None
    if extent.shows_details:
        tell = progress.write
        tell(f"\nthe same chain with a language model of this machine, {folder.name}, streamed")
    with Accelerator(options=options) as accelerator:
        levels = measure_local_model(
            folder,
            lambda model: build_chain(material.store, model),
            material.questions,
            extent.local,
            accelerator,
            progress,
            tell,
        )
    return levels, ""


def introduction(material: Material) -> str:
    """Return how much is asked about how much, and what could not be read."""
    cached = "cached" if material.index_was_cached else "made now"
    lines = [
        f"{len(material.documents)} chunks (index {cached}), "
        f"{len(material.questions)} distinct questions",
        *(f"  skipped {skipped}" for skipped in material.skipped[:5]),
    ]
    if len(material.skipped) > 5:
        lines.append(f"  and {len(material.skipped) - 5} more skipped")
    return "\n".join(lines)


def _prose(
    findings: Findings, material: Material, chain: ChainRun, extent: Extent
) -> Iterator[str]:
    """Yield the texts of the result: questions, tables, findings."""
    yield from map(sample_text, chain.shown)
    yield f"\n{table(HEAD, rows(findings.levels))}"
    if findings.local:
        yield f"\n{table(LOCAL_HEAD, local_rows(findings.local))}"
    if note := size_note(len(material.documents), len(material.questions)):
        yield f"\n{note}"
    if extent.shows_details:
        yield f"\nwhere the accelerated arm's time went\n{chain.spent}\n\n{chain.explained}"
    yield ""
    yield from findings.lines()
