"""A small reader of graphs, trained here: a Llama of 3.2M parameters that knows nothing else.

It learns to answer two-hop questions from relation paths that stand one below the other in causal
text, as models are trained (``bench.readers``).

``python -m bench.graph.reader`` trains it into the user's cache: one core, some ten minutes. One
that is stopped continues at its last checkpoint.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.readers import (
    Course,
    Lesson,
    Supervised,
    Task,
    digest_of,
    trained_folder,
    word_tokenizer,
)
from rag_accel.fidelity.tuning.options import TuningOptions
from rag_accel.fidelity.tuning.packing import IGNORED, PackedBatch, PromptPacker, batch_of
from rag_accel.fidelity.tuning.questions import GraphNames, GraphShape, generate_questions
from rag_accel.fidelity.tuning.tune import tune_dependency
from rag_accel.system.files import user_cache
from rag_accel_demo.load import torch_threads

_WORDS = ("<unk>", "<s>", "Facts:", "Question:", "of", "\n")

_logger = logging.getLogger("bench.graph.reader")


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that the weights depend on; a reader is kept under its digest.

    Args:
        entities: how many names there are.
        relations: of each hop.
        stages: graphs of each stage, (subgraphs, first hops, second hops), and prompts of a step.
        enough: the moving share of right answers that ends each stage.
        most_steps: of all stages together.
        settling: further steps, of graphs of 1 to 8 subgraphs, while the rate falls.
        tokens: of a settling step, about.
        questions: most of a prompt.
        rate: the learning rate.
        supervision: the weight of the attention's loss.
        seed: of weights and prompts.
        version: of this module.
    """

    entities: int = 160
    relations: int = 8
    stages: tuple[tuple[int, int, int, int], ...] = (
        (1, 2, 2, 64),
        (2, 2, 2, 36),
        (3, 3, 2, 16),
    )
    enough: tuple[float, ...] = (0.85, 0.85, 0.985)
    most_steps: int = 900
    settling: int = 60
    tokens: int = 5000
    questions: int = 18
    rate: float = 2e-3
    supervision: float = 0.3
    seed: int = 0
    version: int = 1


RECIPE = Recipe()
#: Of the reader that is tuned behind the paper's positions.
TUNING = TuningOptions(
    steps=60,
    batch=16,
    rate=5e-4,
    scheme="preorder",
    shape=GraphShape(3, 3, 2, 18),
    precision="bfloat16",
)


def graph_names(recipe: Recipe = RECIPE) -> GraphNames:
    """Return the names of the reader's graphs."""
    return GraphNames(
        tuple(f"e{at}" for at in range(recipe.entities)),
        tuple(f"r{at}" for at in range(recipe.relations)),
        tuple(f"s{at}" for at in range(recipe.relations)),
        lambda head, first, second: f"{first} {second} of {head}",
    )


def reader_folder(recipe: Recipe = RECIPE, cache: Path | None = None) -> Path:
    """Return the folder of a trained reader, trained first if it is not in the user's cache."""
    return trained_folder(graph_task(recipe), cache)


def tuned_folder(
    folder: Path,
    recipe: Recipe = RECIPE,
    options: TuningOptions = TUNING,
    cache: Path | None = None,
) -> Path:
    """Return the folder of a reader tuned behind trees, tuned first if it is not in the cache."""
    digest = digest_of([asdict(recipe), asdict(options)])
    tuned = (cache or user_cache()) / f"graph-reader-tuned-{digest}"

    def show(done: int, steps: int, loss: float) -> None:
        _logger.info("tuned %d of %d steps, loss %.3f", done, steps, loss)

    with torch_threads(1):
        names = graph_names(recipe)
        tune_dependency(folder, tuned, names=names, options=options, progress=show)
    return tuned


def reader_tokenizer(recipe: Recipe = RECIPE) -> Any:
    """Return the tokenizer: a token for each name; arrows and spaces are none."""
    names = graph_names(recipe)
    words = (*_WORDS, *names.entities, *names.first_relations, *names.second_relations)
    return word_tokenizer(words, {"\n": "isolated", "( |->)+": "removed"})


def graph_task(recipe: Recipe = RECIPE) -> Task:
    """Return what the reader learns."""
    names, tokenizer = graph_names(recipe), reader_tokenizer(recipe)
    packer = PromptPacker(tokenizer, layout="flat")

    def lesson(shape: GraphShape, batch: int, rng: np.random.Generator) -> Lesson:
        prompts = [generate_questions(names, shape, rng) for _ in range(batch)]
        packed = batch_of([packer.pack(prompt) for prompt in prompts])
        return Lesson(packed, supervised(packed))

    def stage(at: int, rng: np.random.Generator) -> Lesson:
        *sizes, batch = recipe.stages[at]
        return lesson(GraphShape(*sizes, questions=recipe.questions), batch, rng)

    def settle(rng: np.random.Generator) -> Lesson:
        shape = GraphShape(int(rng.integers(1, 9)), 3, 2, recipe.questions)
        batch = max(1, recipe.tokens // (108 * shape.subgraphs + 5 * recipe.questions))
        return lesson(shape, batch, rng)

    course = Course(
        recipe.enough,
        recipe.most_steps,
        recipe.settling,
        recipe.rate,
        recipe.supervision,
        recipe.seed,
    )
    return Task("graph-reader", recipe, course, tokenizer, stage, settle)


def supervised(packed: PackedBatch) -> tuple[Supervised, ...]:
    """Return the attention that is supervised in flat graphs.

    In layer 0 a path's last entity sees its relations and its first entity, and a question's last
    token its relations; in layer 2 the question sees the entity that is its answer.
    """
    # A question is "Question: r s of a", a path "a r m s leaf".
    prompt, asked = (packed.labels != IGNORED).nonzero(as_tuple=True)
    ids = packed.ids
    head, first, second = (ids[prompt, asked - back] for back in (0, 3, 2))
    is_leaf = (
        (ids[prompt, :-4] == head[:, None])
        & (ids[prompt, 1:-3] == first[:, None])
        & (ids[prompt, 3:-1] == second[:, None])
    )
    leaf = is_leaf.float().argmax(-1) + 4
    return (
        Supervised(0, prompt, leaf, leaf - 1, 0.5),
        Supervised(0, prompt, leaf, leaf - 3, 0.5),
        Supervised(0, prompt, asked, asked - 3, 0.5),
        Supervised(0, prompt, asked, asked - 2, 0.5),
        Supervised(2, prompt, asked, leaf),
        Supervised(0, prompt, leaf, leaf - 4),
    )


def main() -> None:
    """Train the reader unless it is there, tune it, and print both folders."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    folder = reader_folder()
    print(folder, tuned_folder(folder), sep="\n")


if __name__ == "__main__":
    main()
