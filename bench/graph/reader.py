"""A small reader of graphs, trained here: a Llama of 3.2M parameters that knows nothing else.

It learns to answer two-hop questions from relation paths that stand one below the other in causal
text, as models are trained. Attention to the right tokens is supervised until it answers most of
them; without that, induction over two relations does not begin within minutes.

``python -m bench.graph.reader`` trains it into the user's cache: one core, some ten minutes. One
that is stopped continues at its last checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from rag_accel.fidelity.tuning.checkpoints import StateFile
from rag_accel.fidelity.tuning.options import TuningOptions
from rag_accel.fidelity.tuning.packing import IGNORED, PackedBatch, PromptPacker, batch_of
from rag_accel.fidelity.tuning.questions import GraphNames, GraphShape, generate_questions
from rag_accel.fidelity.tuning.tune import tune_dependency
from rag_accel.system.files import folder_made_once, user_cache
from rag_accel_demo.load import torch_threads

_WORDS = ("<unk>", "<s>", "Facts:", "Question:", "of", "\n")
_TEMPLATE = "<s>{% for message in messages %}{{ message['content'] }}{% endfor %}"
_HEADS, _LAYERS, _WIDTH = 4, 4, 256
_EMBEDDING_SCALE = 5.0
#: Steps between two checkpoints, half a minute or so.
CHECKPOINT_EVERY = 50
_MEMBERS = ("shares", "random", "model", "optimizers")

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
    folder = (cache or user_cache()) / f"graph-reader-{_digest(asdict(recipe))}"
    file = folder.with_name(f"{folder.name}.pt")
    state = StateFile(file, _MEMBERS, "remove the file: it is trained from the beginning")

    def make(made: Path) -> None:
        model = train_reader(recipe, state)
        model.save_pretrained(made)
        reader_tokenizer(recipe).save_pretrained(made)

    folder_made_once(folder, make)
    state.remove()  # no sooner: until the folder is there, it is all that is left of a training
    return folder


def tuned_folder(
    folder: Path,
    recipe: Recipe = RECIPE,
    options: TuningOptions = TUNING,
    cache: Path | None = None,
) -> Path:
    """Return the folder of a reader tuned behind trees, tuned first if it is not in the cache."""
    digest = _digest([asdict(recipe), asdict(options)])
    tuned = (cache or user_cache()) / f"graph-reader-tuned-{digest}"

    def show(done: int, steps: int, loss: float) -> None:
        _logger.info("tuned %d of %d steps, loss %.3f", done, steps, loss)

    with torch_threads(1):
        names = graph_names(recipe)
        tune_dependency(folder, tuned, names=names, options=options, progress=show)
    return tuned


def reader_tokenizer(recipe: Recipe = RECIPE) -> Any:
    """Return the tokenizer: a token for each name; arrows and spaces are none."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = graph_names(recipe)
    words = (*_WORDS, *names.entities, *names.first_relations, *names.second_relations)
    ids = {word: at for at, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    made.normalizer = normalizers.Replace("->", "")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("\n"), "isolated"),
            pre_tokenizers.Split(Regex(" +"), "removed"),
        ]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", unk_token="<unk>")
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def train_reader(recipe: Recipe, state: StateFile) -> Any:
    """Return a reader, trained on one thread from the last checkpoint on.

    Raises:
        ConfigError: the checkpoint is damaged.
        OSError: a checkpoint cannot be written.
    """
    with torch_threads(1), torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return _Training(recipe, state).run()


class _Training:
    """One run of a recipe.

    Args:
        recipe: all that the weights depend on.
        state: has the last checkpoint: the weights, and the share of right answers of each step
            that was trained, by which the stages of the others are told.

    Raises:
        ConfigError: the checkpoint is damaged.
    """

    def __init__(self, recipe: Recipe, state: StateFile) -> None:
        self._recipe, self._state = recipe, state
        self._names = graph_names(recipe)
        self._packer = PromptPacker(reader_tokenizer(recipe), layout="flat")
        self._rng = np.random.default_rng(recipe.seed)
        self._model = _fresh_model(recipe)
        self._optimizers = _optimizers(self._model, recipe.rate)
        self._shares: list[float] = []
        self._restore()
        self._known = deque(self._shares)

    def run(self) -> Any:
        recipe, step = self._recipe, 0
        for (*sizes, batch), enough in zip(recipe.stages, recipe.enough, strict=True):
            shape = GraphShape(*sizes, questions=recipe.questions)
            right = 0.0
            while right < enough and step < recipe.most_steps:
                scale = min(1.0, (step + 1) / 40)
                share = self._share(partial(self._step, shape, batch, right < 0.95, scale))
                right = 0.95 * right + 0.05 * share
                step += 1
                if step % 20 == 0:
                    _logger.info("step %d, graphs of %s, right %.3f", step, sizes, right)
        for at in range(recipe.settling):
            share = self._share(partial(self._settle, at))
            _logger.info("settling %d, right %.3f", at, share)
        return self._model.eval()

    def _restore(self) -> None:
        found = self._state.read()
        if found is None:
            return
        self._shares = [*found["shares"]]
        self._rng.bit_generator.state = json.loads(found["random"])
        self._model.load_state_dict(found["model"])
        for optimizer, values in zip(self._optimizers, found["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        _logger.info("continued behind step %d", len(self._shares))

    def _share(self, train: Callable[[], float]) -> float:
        """Return the share of right answers of the next step, which the checkpoint may have."""
        if self._known:
            return self._known.popleft()
        self._shares.append(train())
        if len(self._shares) % CHECKPOINT_EVERY == 0:
            self._state.write(
                {
                    "shares": self._shares,
                    "random": json.dumps(self._rng.bit_generator.state),  # has numbers of 128 bits
                    "model": self._model.state_dict(),
                    "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
                }
            )
        return self._shares[-1]

    def _settle(self, at: int) -> float:
        recipe = self._recipe
        shape = GraphShape(int(self._rng.integers(1, 9)), 3, 2, recipe.questions)
        batch = max(1, recipe.tokens // (108 * shape.subgraphs + 5 * recipe.questions))
        return self._step(shape, batch, False, 0.5 * max(0.05, 1 - at / recipe.settling))

    def _step(self, shape: GraphShape, batch: int, supervised: bool, scale: float) -> float:
        """Train one step; return the share of right answers before it."""
        prompts = [generate_questions(self._names, shape, self._rng) for _ in range(batch)]
        packed = batch_of([self._packer.pack(prompt) for prompt in prompts])
        rows = packed.labels != IGNORED
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = self._model.model(
                packed.ids,
                position_ids=packed.positions,
                attention_mask=packed.mask.bfloat16(),
                output_attentions=supervised,
                use_cache=False,
            )
            logits = self._model.lm_head(found.last_hidden_state[rows]).float()
        wanted = packed.labels[rows]
        loss = functional.cross_entropy(logits, wanted)
        if supervised:
            loss = loss - self._recipe.supervision * _attended(found.attentions, packed)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["full"] * scale
            optimizer.step()
            optimizer.zero_grad()
        return float((logits.argmax(-1) == wanted).float().mean())


def _attended(attentions: Any, packed: PackedBatch) -> torch.Tensor:
    """Return how far attention is on the right tokens, as mean logarithms of its weights.

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
    low = attentions[0].float().mean(1)
    high = attentions[2].float().mean(1)

    def log(weights: torch.Tensor, row: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
        return (weights[prompt, row, slot] + 1e-6).log().mean()

    near = log(low, leaf, leaf - 1) + log(low, leaf, leaf - 3)
    near = near + log(low, asked, asked - 3) + log(low, asked, asked - 2)
    return log(high, asked, leaf) + log(low, leaf, leaf - 4) + 0.5 * near


def _digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def _fresh_model(recipe: Recipe) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    vocabulary = len(_WORDS) + recipe.entities + 2 * recipe.relations
    config = LlamaConfig(
        vocab_size=-(-vocabulary // 32) * 32,
        hidden_size=_WIDTH,
        intermediate_size=672,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        num_key_value_heads=_HEADS,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=None,
    )
    model: Any = LlamaForCausalLM(config)
    model.set_attn_implementation("eager")  # which returns the weights that are supervised
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() == 2:
                weights.normal_(std=weights.shape[1] ** -0.5)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weights.zero_()  # each layer begins as if it were not there
        # Embeddings are tied: large at the input, and made small again before the output.
        model.model.embed_tokens.weight.mul_(_EMBEDDING_SCALE)
        model.model.norm.weight.fill_(1 / _EMBEDDING_SCALE)
        for layer in model.model.layers:
            # A token that looks for its like finds it from the beginning.
            layer.self_attn.q_proj.weight.mul_(0.7)
            layer.self_attn.k_proj.weight.copy_(layer.self_attn.q_proj.weight)
    return model


def _optimizers(model: Any, rate: float) -> list[torch.optim.Optimizer]:
    layers = [weights for weights in model.model.layers.parameters() if weights.dim() == 2]
    norms = [weights for weights in model.model.layers.parameters() if weights.dim() == 1]
    groups = [
        {"params": norms, "full": rate},
        {"params": [model.model.embed_tokens.weight], "full": rate * _EMBEDDING_SCALE},
        {"params": [model.model.norm.weight], "full": rate / _EMBEDDING_SCALE},
    ]
    muon = torch.optim.Muon(layers, lr=rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    muon.param_groups[0]["full"] = rate
    return [muon, torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)]


def main() -> None:
    """Train the reader unless it is there, tune it, and print both folders."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    folder = reader_folder()
    print(folder, tuned_folder(folder), sep="\n")


if __name__ == "__main__":
    main()
