"""The figures that the README and ``docs/results.md`` state, and the chart of the README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.report import figure, spread
from bench.results import SuiteResult
from bench.suites import ratio_definitions


@dataclass(frozen=True, slots=True)
class Claim:
    """A figure that stands for a suite.

    Args:
        suite: measures it.
        ratio: its name there.
        text: what is compared, in words.
        beside: what belongs to the figure wherever it is stated, with ratios of any suite in it.
    """

    suite: str
    ratio: str
    text: str
    beside: str = ""


@dataclass(frozen=True, slots=True)
class Gain:
    """The gain for a program that has certain parts.

    Args:
        stack: the parts.
        acts: the mechanism that acts on them.
        gained: by how much, with ratios as ``{suite[ratio]:.1f}``.
    """

    stack: str
    acts: str
    gained: str


_FULL = (
    "; approximate: with SmolLM2 135M {kv_fidelity[full_top1]:.0%} of the most probable tokens stay"
)
CLAIMS = (
    Claim("demo", "demo_throughput_64", "answers per second of the demo's chain, 64 users"),
    Claim("demo", "demo_vs_best_peer", "answers per second of the demo's chain, 64 users"),
    Claim(
        "embedding_concurrency", "embedding_vs_best_peer", "texts embedded per second, 64 callers"
    ),
    Claim(
        "together",
        "all_on_vs_off",
        "answers per second of four programs with a local model, 16 users",
    ),
    Claim(
        "serving_peers",
        "throughput_8_vs_genai",
        "tokens per second of the local model, 8 users",
    ),
    Claim(
        "kv_ttft",
        "reuse_vs_full",
        'speed to the first token with `kv_reuse="full"`, texts seen before',
        _FULL,
    ),
    Claim("llama_index", "ingestion_vs_plain", "texts per second of a LlamaIndex ingestion"),
    Claim(
        "overhead",
        "nothing_helps_16_leaf_ms",
        "milliseconds that a call takes longer where nothing helps, 16 users",
    ),
)
GAINS = (
    Gain(
        "a local embedding model: `HuggingFaceEmbeddings`, `HuggingFaceEmbedding`",
        "it is compiled, and texts of all requests share its steps",
        "64 users: {demo[demo_throughput_64]:.1f} times the answers/s; "
        "{demo[demo_vs_best_peer]:.2f} of a micro-batcher built by hand",
    ),
    Gain(
        "`InMemoryVectorStore`, `SimpleVectorStore`",
        "an engine keeps their vectors as one matrix",
        "a search {default_stores[in_memory_vs_plain]:.0f} times, "
        "a query {llama_index[simple_store_vs_plain]:.0f} times as fast",
    ),
    Gain(
        "`FAISS`, `FaissVectorStore`, flat",
        "searches share looks at the index",
        "64 users of `FAISS`: {default_stores[faiss_vs_plain_64]:.1f} times the searches/s",
    ),
    Gain(
        "`OpenAIEmbeddings`, `OpenAIEmbedding`",
        "small requests share calls of the server",
        "32 users: {embedding_concurrency[hosted_vs_plain]:.1f} times the texts/s",
    ),
    Gain(
        "`ChatOpenAI`, `OpenAI` where the endpoint limits the rate",
        "calls wait for their turn once it refuses some",
        "60 users: {endpoints[first_answered]:.0%} answered, "
        "{endpoints[first_calls]:.1f} calls an answer",
    ),
    Gain(
        "a language model here: `ChatHuggingFace`, `HuggingFaceLLM`, `ChatRagAccel`",
        "a step computes a token of every user's answer",
        "8 users: {serving[throughput_8]:.1f} times the tokens/s; "
        "{serving_peers[throughput_8_vs_genai]:.2f} of openvino-genai",
    ),
    Gain(
        'the same with `kv_reuse="full"`',
        "a retrieved text is prefilled once, wherever it stands",
        "the first token {kv_ttft[reuse_vs_full]:.0f} times as fast" + _FULL,
    ),
    Gain(
        "LlamaIndex: ingestion, `HyDE`",
        "texts of all nodes and queries share steps, calls run in parallel",
        "{llama_index[ingestion_vs_plain]:.1f} times the texts/s; "
        "16 queries at once {llama_index[hyde_16]:.0f} times as fast",
    ),
    Gain(
        "a remote model, and nothing else that takes time",
        "limits and deadlines only",
        "none: a call takes {overhead[nothing_helps_16_leaf_ms]:.2f} ms longer",
    ),
)
#: The workloads, systems and metric of the chart: the shape in which the opponent does best.
_LOADS = {f"{users}, ainvoke from tasks": users for users in ("1 user", "16 users", "64 users")}
_PEERS = ("onnxruntime, micro-batcher", "openvino, micro-batcher")
_METRIC = "answers_per_s"


def headlines(results: Sequence[SuiteResult]) -> str:
    """Return the claims, as far as they were measured: claim, figure, how to check it."""
    by_suite, ratios = {result.suite: result for result in results}, _ratios(results)
    lines = ["| claim | figure | check it by |", "| --- | ---: | --- |"]
    for claim in CLAIMS:
        result, beside = by_suite.get(claim.suite), _filled(claim.beside, ratios)
        if result is None or claim.ratio not in result.ratios or beside is None:
            continue
        against = ratio_definitions(claim.suite)[claim.ratio].partition(":")[0]
        value = f"{figure(result.ratios[claim.ratio])}{spread(result, claim.ratio)}{beside}"
        form = " --quick" * bool(result.environment.get("quick"))
        command = f"`python -m bench {claim.suite}{form}`"
        lines.append(f"| {claim.text}, {against} | {value} | {command} |")
    return "\n".join(lines)


def gains(results: Sequence[SuiteResult]) -> str:
    """Return the gains, as far as they were measured, by the parts that a program has."""
    ratios = _ratios(results)
    filled = ((gain, _filled(gain.gained, ratios)) for gain in GAINS)
    rows = (f"| {gain.stack} | {gain.acts} | {text} |" for gain, text in filled if text is not None)
    return "\n".join(["| your stack | what acts | measured |", "| --- | --- | --- |", *rows])


def _ratios(results: Sequence[SuiteResult]) -> Mapping[str, Mapping[str, float]]:
    return {result.suite: result.ratios for result in results}


def _filled(text: str, ratios: Mapping[str, Mapping[str, float]]) -> str | None:
    """Return a text with its ratios; None where one was not measured."""
    try:
        return text.format_map(ratios)
    except KeyError:
        return None


def draw_demo(result: SuiteResult, path: Path) -> None:
    """Draw how many answers a second the demo's chain gives: plain, built by hand, accelerated.

    Nothing is drawn of a result without these figures.
    """
    from rag_accel_demo.charts import bar_chart

    rows = [row for row in result.rows if row.metric == _METRIC and row.workload in _LOADS]
    found = {(row.workload, row.system): row for row in rows}
    if not found:
        return

    def rates(*systems: str) -> list[float | None]:
        of_each = ([found.get((load, system)) for system in systems] for load in _LOADS)
        return [max((row.median for row in rows if row), default=None) for rows in of_each]

    told = result.environment
    chart = bar_chart(
        "Answers per second of a LangChain chain over FAISS",
        list(_LOADS.values()),
        {
            "plain": rates("plain"),
            "accelerated": rates("accelerated"),
            "a micro-batcher built by hand": rates(*_PEERS),
        },
        "answers per second",
        f"{told.get('cpu')}, {told.get('cores')} cores, {str(told.get('date'))[:10]}; n = "
        f"{min(row.n for row in found.values())} runs a bar; plain at its best torch threads; "
        "by hand: over OpenVINO or ONNX Runtime, 64 users only",
    )
    path.write_text(chart.svg(), encoding="utf-8")
