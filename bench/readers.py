"""Small readers of a task, trained here: Llamas of 3.2M parameters that know nothing else.

They learn tasks of which induction does not begin within minutes from answers alone: attention to
the right tokens is supervised until a reader answers most questions.

A training takes one core. It continues at its last checkpoint if it is stopped.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from rag_accel.fidelity.tuning.checkpoints import StateFile
from rag_accel.fidelity.tuning.packing import IGNORED, PackedBatch
from rag_accel.system.files import folder_made_once, user_cache
from rag_accel_demo.load import torch_threads

_TEMPLATE = "<s>{% for message in messages %}{{ message['content'] }}{% endfor %}"
_HEADS, _LAYERS, _WIDTH = 4, 4, 256
_EMBEDDING_SCALE = 5.0
#: Steps between two checkpoints, half a minute or so.
CHECKPOINT_EVERY = 50
_MEMBERS = ("shares", "random", "model", "optimizers")

_logger = logging.getLogger("bench.readers")


@dataclass(frozen=True, slots=True)
class Course:
    """A training apart from its task.

    Args:
        enough: the moving share of right answers that ends each stage.
        most_steps: of all stages together.
        settling: further steps, in which the rate falls.
        rate: the learning rate.
        supervision: the weight of the attention's loss.
        seed: of weights and prompts.
        precision: of matrix products, ``bfloat16`` or ``float32``; which is faster depends on the
            processor.
    """

    enough: tuple[float, ...]
    most_steps: int
    settling: int
    rate: float = 2e-3
    supervision: float = 0.3
    seed: int = 0
    precision: str = "bfloat16"


@dataclass(frozen=True, slots=True, eq=False)
class Supervised:
    """Attention of one layer that is supervised: each row is to see its slot.

    Args:
        layer: of the model.
        prompts: ``[pairs], int64``, places in the batch.
        rows: ``[pairs], int64``: tokens that look.
        slots: ``[pairs], int64``: tokens that they are to look at.
        weight: of the mean logarithm of these weights in the loss.
    """

    layer: int
    prompts: torch.Tensor
    rows: torch.Tensor
    slots: torch.Tensor
    weight: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """The prompts of a step, and the attention that is supervised in them."""

    packed: PackedBatch
    supervised: Sequence[Supervised]


@dataclass(frozen=True, slots=True)
class Task:
    """A task that a reader learns.

    Args:
        name: of its folder in the user's cache.
        recipe: a dataclass of all that the weights depend on; the folder has its digest.
        course: of the training.
        tokenizer: of transformers.
        stage: returns prompts of a stage by its number, which are supervised.
        settle: returns prompts of a settling step.
    """

    name: str
    recipe: Any
    course: Course
    tokenizer: Any
    stage: Callable[[int, np.random.Generator], Lesson]
    settle: Callable[[np.random.Generator], Lesson]

    def folder(self, cache: Path | None = None) -> Path:
        """Return the folder of the trained reader, which need not be there."""
        return (cache or user_cache()) / f"{self.name}-{digest_of(asdict(self.recipe))}"


def digest_of(values: Any) -> str:
    """Return the digest of values of JSON."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def trained_folder(task: Task, cache: Path | None = None) -> Path:
    """Return the folder of a trained reader, trained first if it is not in the user's cache.

    Raises:
        ConfigError: the checkpoint of an earlier training is damaged.
        OSError: a checkpoint or the reader cannot be written.
    """
    folder = task.folder(cache)
    file = folder.with_name(f"{folder.name}.pt")
    state = StateFile(file, _MEMBERS, "remove the file: it is trained from the beginning")

    def make(made: Path) -> None:
        with torch_threads(1), torch.random.fork_rng(devices=[]):
            torch.manual_seed(task.course.seed)
            _Training(task, state).run().save_pretrained(made)
        task.tokenizer.save_pretrained(made)

    folder_made_once(folder, make)
    state.remove()  # no sooner: until the folder is there, it is all that is left of a training
    return folder


def word_tokenizer(words: Sequence[str], splits: Mapping[str, str]) -> Any:
    """Return a tokenizer of whole words, whose chat template joins messages.

    Args:
        words: by their ids, ``<unk>`` and ``<s>``, which begins a chat, among them.
        splits: patterns of what cuts a text into words, and whether it is ``removed`` or
            ``isolated``, a word itself.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {word: at for at, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), way) for pattern, way in splits.items()]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", unk_token="<unk>")
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


class _Training:
    """One run of a course.

    Args:
        task: what is learned.
        state: has the last checkpoint: the weights, and the share of right answers of each step
            that was trained, by which the stages of the others are told.

    Raises:
        ConfigError: the checkpoint is damaged.
    """

    def __init__(self, task: Task, state: StateFile) -> None:
        self._task, self._course, self._state = task, task.course, state
        self._rng = np.random.default_rng(task.course.seed)
        self._model = _fresh_model(len(task.tokenizer))
        self._optimizers = _optimizers(self._model, task.course.rate)
        self._shares: list[float] = []
        self._restore()
        self._known = deque(self._shares)

    def run(self) -> Any:
        course, step = self._course, 0
        for stage, enough in enumerate(course.enough):
            right = 0.0
            while right < enough and step < course.most_steps:
                lesson = partial(self._task.stage, stage, self._rng)
                scale = min(1.0, (step + 1) / 40)
                share = self._share(partial(self._step, lesson, right < 0.95, scale))
                right = 0.95 * right + 0.05 * share
                step += 1
                if step % 20 == 0:
                    _logger.info("step %d, stage %d, right %.3f", step, stage, right)
        for at in range(course.settling):
            lesson = partial(self._task.settle, self._rng)
            scale = 0.5 * max(0.05, 1 - at / course.settling)
            share = self._share(partial(self._step, lesson, False, scale))
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

    def _step(self, prepare: Callable[[], Lesson], is_supervised: bool, scale: float) -> float:
        """Train one step; return the share of right answers before it."""
        lesson = prepare()
        packed = lesson.packed
        rows, dtype = packed.labels != IGNORED, getattr(torch, self._course.precision)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            found = self._model.model(
                packed.ids,
                position_ids=packed.positions,
                attention_mask=packed.mask.to(dtype),
                output_attentions=is_supervised,
                use_cache=False,
            )
            logits = self._model.lm_head(found.last_hidden_state[rows]).float()
        wanted = packed.labels[rows]
        loss = functional.cross_entropy(logits, wanted)
        if is_supervised:
            seen = attended(found.attentions, lesson.supervised)
            loss = loss - self._course.supervision * seen
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["full"] * scale
            optimizer.step()
            optimizer.zero_grad()
        return float((logits.argmax(-1) == wanted).float().mean())


def attended(attentions: Sequence[torch.Tensor], supervised: Sequence[Supervised]) -> torch.Tensor:
    """Return how far attention is on the right tokens, as weighted mean logarithms.

    Args:
        attentions: of each layer, ``[prompts, heads, rows, slots]``; heads are meaned.
        supervised: which are looked at.
    """
    layers = {each.layer for each in supervised}
    means = {layer: attentions[layer].float().mean(1) for layer in sorted(layers)}
    found = torch.zeros(())
    for each in supervised:
        weights = means[each.layer][each.prompts, each.rows, each.slots]
        found = found + each.weight * (weights + 1e-6).log().mean()
    return found


def _fresh_model(words: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=-(-words // 32) * 32,
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
