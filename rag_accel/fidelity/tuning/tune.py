"""The fine-tuning of a named model to dependency attention, continued where it stopped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rag_accel.engines.llm.local.model.families import check_paths
from rag_accel.engines.llm.local.model.loading import load_source
from rag_accel.errors import ConfigError
from rag_accel.fidelity.tuning.checkpoints import TuningFolder, TuningState
from rag_accel.fidelity.tuning.options import TuningOptions
from rag_accel.fidelity.tuning.packing import PackedPrompt, PromptPacker
from rag_accel.fidelity.tuning.questions import GraphNames, GraphQuestions, generate_questions
from rag_accel.fidelity.tuning.training import Trainer, exact_match
from rag_accel.system.files import lock_file

_BEGIN = ("Bel", "Cor", "Dra", "Fen", "Gal", "Hol", "Jor", "Kes", "Lun", "Mar", "Nor", "Ost")
_END = ("ada", "brook", "dale", "eton", "ford", "ina", "mere", "ora", "stead", "ton", "vik", "wyn")
_FIRST = (
    *("works for", "was founded by", "is located in", "is married to"),
    *("belongs to", "studied at", "was written by", "depends on"),
)
_SECOND = (
    *("was born in", "is owned by", "is the capital of", "was designed by"),
    *("reports to", "is part of", "was taught by", "is next to"),
)


def _ask(head: str, first: str, second: str) -> str:
    return (
        f"Start at {head}, follow '{first}', then follow '{second}'. Where does this lead? "
        "Answer with the name alone."
    )


#: Names that tokenizers of English cut into a few tokens each.
ENGLISH = GraphNames(
    tuple(begin + end for begin, end in product(_BEGIN, _END)), _FIRST, _SECOND, _ask
)


#: Of given prompts, one of so many is held out.
_HELD_OUT = 10
_TRAINED, _TESTED = 0, 1  # streams of generated prompts
_LOCK = ".tuning.lock"

#: Is told the steps that are done, those of all, and the loss of the last one.
Progress = Callable[[int, int, float], None]


@dataclass(frozen=True, slots=True)
class TuningReport:
    """The result of a fine-tuning.

    Args:
        folder: of the model.
        steps: that were trained.
        continued_at: the step that it was continued at; 0 where it was begun.
        first_loss: before the first step, in nats a token of the answers.
        last_loss: before the last step.
        exact_before: share of held-out answers that were right in each token, before.
        exact_after: the same, of the weights as they were written.
        held_out: how many answers those are of.
    """

    folder: Path
    steps: int
    continued_at: int
    first_loss: float
    last_loss: float
    exact_before: float
    exact_after: float
    held_out: int

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as values of JSON."""
        return {**asdict(self), "folder": str(self.folder)}

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.steps} steps, continued at {self.continued_at}",
                f"loss (nats a token) {self.first_loss:.3f} -> {self.last_loss:.3f}",
                f"exact match of {self.held_out} held-out answers "
                f"{self.exact_before:.3f} -> {self.exact_after:.3f}",
                f"written to {self.folder}",
            ]
        )


def tune_dependency(
    model: str | Path,
    out: str | Path,
    *,
    prompts: Sequence[GraphQuestions] | None = None,
    names: GraphNames = ENGLISH,
    options: TuningOptions | None = None,
    progress: Progress | None = None,
) -> TuningReport:
    """Fine-tune a model to answer behind trees of relation paths, and write it to a folder.

    DepCache section 3.3. In each step prompts have the mask of their trees and the
    positions of a scheme. Called again with the same settings it continues at the last
    checkpoint, with the weights that one uninterrupted call would give on the same machine; of a
    finished one it returns the report. A second process waits for the first.

    Differs: the paper takes answers of GPT-4o to questions of TriviaQA; here graphs are generated
    from a seed, or prompts are the caller's.

    Args:
        model: a folder, or a name on the hub, of a model that the local engine runs.
        out: the folder to write, which ``LocalLLM`` loads.
        prompts: to train on; a tenth of them is held out. None for generated ones.
        names: of generated graphs.
        options: bounds and rates.
        progress: is called behind each step.

    Raises:
        ConfigError: the model is not supported or not there, prompts are too few or too long, the
            loss diverges, or the folder has other files or a fine-tuning with other settings.
        ImportError: transformers is missing; names the extra.
        OSError: the folder cannot be written.
    """
    chosen = options or TuningOptions()
    path = Path(out).expanduser()
    source, tokenizer = load_source(model)
    check_paths(source)
    dtype = source.dtype
    recipe = {**_recipe(chosen, prompts, names), "model": _digest(source)}
    source = source.float()
    with _locked(path):
        folder = TuningFolder(path, recipe)
        done = folder.result()
        if done is not None:
            return TuningReport(path, **done)
        run = _TuningRun(
            source, PromptPacker(tokenizer, scheme=chosen.scheme), prompts, names, chosen
        )
        begun, state = run.train(folder, progress or (lambda done, steps, loss: None))
        source = source.to(dtype)
        source.save_pretrained(path)
        tokenizer.save_pretrained(path)
        right, total = run.match(source.float())
        report = TuningReport(
            *(path, state.step, begun, state.losses[0], state.losses[-1]),
            *(state.match[0] / total, right / total, total),
        )
        folder.finish({name: value for name, value in report.to_dict().items() if name != "folder"})
        return report


class _TuningRun:
    """The prompts and steps of one fine-tuning."""

    def __init__(
        self,
        model: Any,
        packer: PromptPacker,
        prompts: Sequence[GraphQuestions] | None,
        names: GraphNames,
        options: TuningOptions,
    ) -> None:
        self._packer, self._names, self._options = packer, names, options
        self._trainer = Trainer(model, options.rate, options.steps, options.precision)
        if prompts is None:
            rng = np.random.default_rng((options.seed, _TESTED))
            count = options.held_out
            self._given = None
            self._tested = [packer.pack(self._generated(rng)) for _ in range(count)]
        else:
            if len(prompts) < 2:
                raise ConfigError(
                    "too few prompts to train on", found=len(prompts), valid="2 or more"
                )
            packed = [packer.pack(prompt) for prompt in prompts]
            self._tested = packed[::_HELD_OUT]
            self._given = [prompt for at, prompt in enumerate(packed) if at % _HELD_OUT]
        self._check_room(model)

    def train(self, folder: TuningFolder, progress: Progress) -> tuple[int, TuningState]:
        """Train all steps from the last checkpoint on; return where it began and ended."""
        options, trainer = self._options, self._trainer
        state = folder.restore(trainer.model, trainer.optimizer)
        if state is None:
            state = TuningState(0, (), self.match(trainer.model))
        begun, losses = state.step, list(state.losses)
        for step in range(begun, options.steps):
            losses.append(trainer.train(self._prompts(step), step))
            if (step + 1) % options.checkpoint_every == 0 or step + 1 == options.steps:
                state = TuningState(step + 1, tuple(losses), state.match)
                folder.save(state, trainer.model, trainer.optimizer)
            progress(step + 1, options.steps, losses[-1])
        return begun, state

    def match(self, model: Any) -> tuple[int, int]:
        """Return how many held-out answers are right, and of how many."""
        return exact_match(model, self._tested, self._options.precision)

    def _prompts(self, step: int) -> list[PackedPrompt]:
        """Return the prompts of a step, which depend on nothing but its number and the seed."""
        batch = self._options.batch
        if self._given is None:
            rng = np.random.default_rng((self._options.seed, _TRAINED, step))
            return [self._packer.pack(self._generated(rng)) for _ in range(batch)]
        found: list[PackedPrompt] = []
        for at in range(step * batch, (step + 1) * batch):
            epoch, place = divmod(at, len(self._given))
            order = np.random.default_rng((self._options.seed, _TRAINED, epoch))
            found.append(self._given[order.permutation(len(self._given))[place]])
        return found

    def _generated(self, rng: np.random.Generator) -> GraphQuestions:
        return generate_questions(self._names, self._options.shape, rng)

    def _check_room(self, model: Any) -> None:
        context = model.config.max_position_embeddings
        packed = [*self._tested, *(self._given or ())]
        longest = max(int(prompt.positions.max()) + 1 for prompt in packed)
        if longest > context:
            raise ConfigError(
                "a prompt has no room in the model's context",
                found=f"{longest} positions",
                valid=f"at most {context}",
                hint="give fewer or shorter paths",
            )


def _recipe(
    options: TuningOptions, prompts: Sequence[GraphQuestions] | None, names: GraphNames
) -> dict[str, Any]:
    """Return what the weights depend on, but the model."""
    found = asdict(options)
    del found["checkpoint_every"]
    if prompts is None:
        asked = names.question("a", "b", "c")
        text = repr((names.entities, names.first_relations, names.second_relations, asked))
    else:
        text = repr([(prompt.paths, prompt.questions) for prompt in prompts])
    return {**found, "prompts": hashlib.sha256(text.encode()).hexdigest()[:16]}


def _digest(model: Any) -> str:
    found = hashlib.blake2b(digest_size=8)
    for name, weights in model.state_dict().items():
        found.update(name.encode())
        found.update(weights.detach().contiguous().view(torch.uint8).numpy())
    return found.hexdigest()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from the same folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / _LOCK, "ab") as file:
        lock_file(file.fileno())
        yield
