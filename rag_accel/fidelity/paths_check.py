"""The check of trees of relation paths: the fidelity of their answers to those of the flat text."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rag_accel.clock import Clock
from rag_accel.engines.llm.local.model.loading import LoadedModel, load
from rag_accel.engines.llm.local.options import POOL_BYTES, LocalOptions
from rag_accel.engines.llm.local.text.prompting import Prompting
from rag_accel.engines.llm.local.text.tokens import TokenInput
from rag_accel.errors import ConfigError
from rag_accel.fidelity.agreement import AgreementCheck, kept_check
from rag_accel.fidelity.check_plan import COUNT, LIMIT_S, TARGET, TOKENS, CheckPlan
from rag_accel.fidelity.divergence import Divergence, divergence
from rag_accel.fidelity.forced import ForcedEngine
from rag_accel.fidelity.prompts import TextPrompt
from rag_accel.kv.agreement import PATHS_CHECKS
from rag_accel.kv.dependency.report import report_prompts
from rag_accel.kv.dependency.tokens import TreePrompt
from rag_accel.sample.graph_questions import chain_questions
from rag_accel.sample.library_graph import read_library_graph
from rag_accel.system.processor import usable_cores

SYSTEM = "Answer the question from the facts. Be brief."
#: Of generated prompts: entities, and paths of each.
_ENTITIES, _PATHS = 3, 6


def check_paths(
    model: Any,
    tokenizer: Any = None,
    *,
    prompts: Sequence[TextPrompt] | None = None,
    target: float = TARGET,
    count: int = COUNT,
    tokens: int = TOKENS,
    limit_s: float = LIMIT_S,
    folder: str | Path | None = None,
    dtype: str | None = None,
    template: str | None = None,
    pool_bytes: int = POOL_BYTES,
    progress: Callable[[int, int], None] | None = None,
    clock: Clock | None = None,
) -> AgreementCheck:
    """Compare answers over trees of relation paths with those over the text, and keep the verdict.

    Takes a minute or more. Each prompt is answered greedily as it stands; then a tree of its paths
    is given these tokens, and the distributions that it had for them are compared.

    Args:
        model: a folder, a name on the hub, or a causal language model of transformers.
        tokenizer: the tokenizer of a model object.
        prompts: texts that are paths, and a question; by default made of Python's standard library.

    The other options are those of ``check_reuse``.

    Raises:
        ConfigError: an option is out of range, the model is not supported or computes no trees, a
            prompt has no two paths that begin alike, or no room, or the time is over before 8
            prompts were compared.
        EngineError: the chat template refuses a prompt.
        OSError: the verdict cannot be written.
    """
    plan = CheckPlan(
        path_prompts(count) if prompts is None else prompts,
        target=target,
        count=count,
        tokens=tokens,
        limit_s=limit_s,
        template=template,
        progress=progress,
        clock=clock,
    )
    options = LocalOptions(kv_reuse="dependency", pool_bytes=pool_bytes)
    loaded = load(model, tokenizer, dtype=dtype, options=options)
    with _PathsComparison(loaded, plan) as comparison:
        compared = plan.compare(loaded, comparison.of, comparison.read)
    layouts = report_prompts(comparison.compared)
    option = 'kv_reuse="dependency"'
    return kept_check(PATHS_CHECKS, option, loaded, plan, compared, folder, layouts)


def path_prompts(count: int, seed: int = 0) -> list[TextPrompt]:
    """Return prompts of paths of the standard library's graph, one of whose entities is asked of.

    Args:
        count: of prompts.
        seed: of the choice.
    """
    triples = read_library_graph().triples
    edges: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for head, relation, tail in triples:
        edges[head].append((relation, tail))
    draw = random.Random(seed)
    rich = [head for head, out in edges.items() if len(out) >= _PATHS]
    asked = [question for question in chain_questions(triples) if question.seeds[0] in set(rich)]
    prompts: list[TextPrompt] = []
    for question in draw.sample(asked, count):
        seeds = [question.seeds[0], *draw.sample(rich, _ENTITIES - 1)]
        draw.shuffle(seeds)
        texts = [text for entity in dict.fromkeys(seeds) for text in _paths(edges, entity, draw)]
        prompts.append(TextPrompt(tuple(texts), question.text, SYSTEM))
    return prompts


def _paths(edges: dict[str, list[tuple[str, str]]], entity: str, draw: random.Random) -> list[str]:
    found: list[str] = []
    for relation, middle in draw.sample(edges[entity], _PATHS):
        path = f"{entity} -> {relation} -> {middle}"
        further = [edge for edge in edges.get(middle, ()) if edge[1] not in (entity, middle)]
        if further:
            second, end = draw.choice(further)
            path += f" -> {second} -> {end}"
        found.append(path)
    return list(dict.fromkeys(found))


class _PathsComparison:
    """The engines of a model over flat text and over trees, one after the other in one pool."""

    def __init__(self, loaded: LoadedModel, plan: CheckPlan) -> None:
        self._ends, self._tokens, threads = loaded.ends, plan.tokens, usable_cores()
        self._prompting = Prompting(loaded.tokenizer, template=plan.template)
        # None keeps a lane when its prompt has ended: the next engine needs the room.
        trees = LocalOptions(kv_reuse="dependency", prefix_lanes=0)
        flat = LocalOptions(prefix_lanes=0)
        self._flat = ForcedEngine(loaded, flat, threads, plan.template)
        self._trees = ForcedEngine(loaded, trees, threads, plan.template)
        #: of each compared prompt, the number of its tokens as text, and those with a tree
        self.compared: list[tuple[int, TreePrompt]] = []

    def __enter__(self) -> _PathsComparison:
        return self

    def __exit__(self, *error: object) -> None:
        for engine in (self._flat, self._trees):
            engine.close()

    def read(self, prompt: TextPrompt) -> TreePrompt:
        """Return the tokens of a prompt's tree.

        Raises:
            ConfigError: it has none.
        """
        whole = prompt.generation_input(1, only_paths=True)
        found = self._prompting.tree(whole.messages, whole.chunk_spans)
        if found is None:
            self._prompting.whole(whole.messages)  # says why, if it is refused
            raise ConfigError(
                "no two texts of a prompt are relation paths that begin alike",
                found=prompt.question,
                valid="texts such as 'Ada -> knows -> Alan'",
            )
        return found

    def of(self, prompt: TextPrompt, tree: TreePrompt) -> Divergence:
        """Return the divergence of the tree over the tokens that the flat text gives."""
        ids = self._prompting.whole(prompt.messages)
        asked = TokenInput(ids=ids, ends=self._ends, most=self._tokens)
        output, full = self._flat.answer(asked, len(ids))
        again = prompt.generation_input(len(output.tokens), only_paths=True)
        _, near = self._trees.answer(again, len(tree.ids), output.tokens)
        self.compared.append((len(ids), tree))
        return divergence(full, near)
