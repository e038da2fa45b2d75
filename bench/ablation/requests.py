"""Answer questions over documents on an emulated device: the passes, and order among requests.

Embedding (MiniLM), searching and reranking are computed here; the model is emulated, because a
prompt that is resumed and a list that is read while it is written need a server that offers both.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bench.ablation import switches
from bench.ablation.advanced_qa import Ours
from bench.ablation.measured import (
    LATENCY,
    STEP_TIMEOUT_S,
    Ablation,
    Arm,
    Gave,
    ablate,
    timed_answers,
    under,
)
from bench.ablation.qa_setting import (
    LEADING,
    LOADED,
    LOADED_TOP_K,
    Setting,
    Variant,
    open_setting,
)
from bench.ablation.switches import Lacking, Switch
from bench.emulated.table import DeviceTable
from bench.measure import median
from bench.paired import in_ms
from rag_accel.engines.embedding.compiled_model import wait_until_compiled
from rag_accel.engines.rerank.engine import PairScorer
from rag_accel.graph import END, START, FrozenRAGraph, RAGraph
from rag_accel.passes.manager import RUNTIME_PASSES, STATIC_PASSES
from rag_accel.workflows import prompts, steps
from rag_accel_demo.material import Material

PASSES = (*(one.name for one in STATIC_PASSES), *RUNTIME_PASSES)
#: What an instruction of some length says, again and again: about 1500 tokens.
INSTRUCTIONS = (
    "You answer questions of people who know their field. Keep to the passages, name none of them, "
    "leave out what they do not say, and write in full sentences of moderate length. "
) * 36
TOGETHER = 6
_TOP_K = 12
#: More than the reranker takes at once.
_MANY = 66
_WORDS = 50
_PLACES = 4
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        documents: passages that are indexed, each of at most 50 words.
        upload_words: words that a request uploads.
        turns: runs of each arm, one request at a time.
        together: runs of each arm with several requests at once.
    """

    documents: int
    upload_words: int
    turns: int
    together: int


def all_but(name: str) -> str:
    """Return the option ``passes`` that leaves one pass out."""
    return ",".join(one for one in PASSES if one != name)


@contextmanager
def opened(
    material: Material, scorer: PairScorer, table: DeviceTable, sizes: Sizes
) -> Iterator[Setting]:
    """Index the beginnings of documents and start the devices."""
    documents = tuple(
        replace(one, text=" ".join(one.text.split()[:_WORDS])) for one in material.documents
    )
    with open_setting(
        replace(material, documents=documents),
        scorer,
        table,
        documents=sizes.documents,
        upload_words=sizes.upload_words,
        loaded_places=_PLACES,
    ) as setting:
        yield setting


def measure(setting: Setting, sizes: Sizes) -> list[Ablation]:
    """Measure each pass where it rewrites something, and what orders requests."""
    return [
        *_uploading(setting, sizes.turns),
        *_graphs(setting, sizes.turns),
        *_together(setting, sizes.together),
    ]


# One request at a time -------------------------------------------------------------------------

#: Passes that change something about a tree of answers over an upload and three searches.
OF_TREE = ("prune_dependencies", "rerank_by_source", "pipeline_decoding", "join_prefill")


def _uploading(setting: Setting, turns: int) -> list[Ablation]:
    def arm(ours: Ours, variant: Variant) -> Arm:
        def answer(turn: int) -> Gave:
            request = setting.request(turn)
            gave = timed_answers(lambda _: [ours.answer(variant, request)])(turn)
            setting.forget(request)
            return gave

        return answer

    with ExitStack() as stack:
        open_arm = _opener(stack, setting, top_k=_TOP_K)
        on = arm(open_arm({}), LEADING)
        off = {name: arm(open_arm({"passes": all_but(name)}), LEADING) for name in OF_TREE}
        off["noise"] = arm(open_arm({}), LEADING)
        off["all_passes"] = arm(open_arm({"passes": "none"}), LEADING)
        return ablate("tree with upload", LATENCY, on, off, turns)


def long_prompt() -> FrozenRAGraph:
    """Return a search, a reranking and an answer whose prompt begins with long instructions."""
    graph = RAGraph()
    graph.add_retrieval("search", query="input", top_k=_TOP_K, output="found")
    graph.add_rerank("rerank", documents="found", top_n=3, output="docs")
    graph.add_generation("answer", INSTRUCTIONS + prompts.ANSWER)
    for source, target in _line(["search", "rerank", "answer"]):
        graph.add_edge(source, target)
    return graph.freeze()


def many_passages() -> FrozenRAGraph:
    """Return a search that finds more passages than the reranker takes at once, and a reranking."""
    graph = RAGraph()
    graph.add_retrieval("search", query="input", top_k=_MANY, output="found")
    graph.add_rerank("rerank", documents="found", top_n=3, output="best")
    for source, target in _line(["search", "rerank"]):
        graph.add_edge(source, target)
    return graph.freeze()


def line_of_searches() -> FrozenRAGraph:
    """Return three searches beside each other in what they read, written one after the other."""
    graph = RAGraph()
    for number in (1, 2, 3):
        graph.add_generation(
            f"rephrase{number}", f"Say it in {number} words: {{input}}", output=f"query{number}"
        )
        graph.add_retrieval(
            f"search{number}", query=f"query{number}", top_k=_TOP_K, output=f"found{number}"
        )
    found = [f"found{number}" for number in (1, 2, 3)]
    graph.add_function("merge", steps.merged, inputs=found, output="found")
    graph.add_rerank("rerank", documents="found", top_n=3, output="docs")
    graph.add_generation("answer", prompts.ANSWER)
    stages = [f"{what}{number}" for number in (1, 2, 3) for what in ("rephrase", "search")]
    for source, target in _line([*stages, "merge", "rerank", "answer"]):
        graph.add_edge(source, target)
    return graph.freeze()


@dataclass(frozen=True, slots=True)
class _Graph:
    """A graph and a pass that rewrites it."""

    name: str
    make: Callable[[], FrozenRAGraph]
    regime: str
    at_once: int = 1


GRAPHS = (
    _Graph("prune_dependencies", line_of_searches, "line of stages"),
    _Graph("split_prefill", long_prompt, "long prompt"),
    _Graph("decompose_stages", many_passages, "66 passages"),
    _Graph("decompose_stages", many_passages, "66 passages 2 at once", 2),
)


def _graphs(setting: Setting, turns: int) -> list[Ablation]:
    found: list[Ablation] = []
    with ExitStack() as stack:
        open_arm = _opener(stack, setting)
        on = open_arm({})
        lacking = {one.name: open_arm({"passes": all_but(one.name)}) for one in GRAPHS}
        for one in GRAPHS:
            arm = partial(_at_once, setting, one.make(), one.at_once)
            off = {one.name: arm(lacking[one.name])}
            found += ablate(one.regime, LATENCY, arm(on), off, turns)
    return found


def _at_once(setting: Setting, graph: FrozenRAGraph, count: int, ours: Ours) -> Arm:
    """Run a graph for some requests at once and wait for all of them."""

    def run(turn: int) -> list[str]:
        questions = (setting.request(turn * count + place).question for place in range(count))
        handles = [ours.accelerator.submit(graph, input=question) for question in questions]
        return [_plain(handle.result()) for handle in handles]

    return timed_answers(run)


def _plain(result: Any) -> Any:
    """Return a text as it is, and the ids of documents: their scores may differ in the last bit."""
    return result if isinstance(result, str) else [one.document.id for one in result]


def _line(names: Sequence[str]) -> list[tuple[str, str]]:
    return list(itertools.pairwise([START, *names, END]))


# Several at once -------------------------------------------------------------------------------


LACKING: Mapping[str, Lacking] = {
    **{name: Lacking({"passes": all_but(name)}) for name in OF_TREE[1:]},
    "depth_order": Lacking(made_under=switches.blind_to_depth),
    "joining_waiting_steps": Lacking(switch=switches.no_interrupts),
}


def _together(setting: Setting, turns: int) -> list[Ablation]:
    questions = [setting.request(place).question for place in range(TOGETHER)]

    def arm(ours: Ours, switch: Switch = nullcontext) -> Arm:
        def run(turn: int) -> Gave:
            answers, latencies_s = ours.under_load(LOADED, questions, [0.0] * TOGETHER)
            return Gave(in_ms(median(latencies_s)), answers)

        return under(switch, run)

    with ExitStack() as stack:
        open_arm = _opener(stack, setting, setting.loaded_device, top_k=LOADED_TOP_K)
        on = arm(open_arm({}))
        off: dict[str, Arm] = {}
        for name, one in LACKING.items():
            with one.made_under():
                off[name] = arm(open_arm(one.options), one.switch)
        return ablate(f"{TOGETHER} at once", LATENCY, on, off, turns)


def _opener(
    stack: ExitStack, setting: Setting, device: Any = None, **given: Any
) -> Callable[[Mapping[str, Any]], Ours]:
    """Return what opens an arm under options; its models are compiled before it is used."""

    def open_arm(options: Mapping[str, Any]) -> Ours:
        chosen = {"passes": "all", **given, **options}
        arm = Ours.opened(
            setting, device or setting.device, step_timeout_s=STEP_TIMEOUT_S, **chosen
        )
        ours = stack.enter_context(arm)
        wait_until_compiled(_PATIENCE_S)
        return ours

    return open_arm
