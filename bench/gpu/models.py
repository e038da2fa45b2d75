"""Models of random weights in published shapes, their tokenizer of whole words, and texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from bench.gpu.device import MeasuredDevice, need
from rag_accel.fidelity.prompts import TextPrompt

_SPECIAL = ("<unk>", "<s>", "</s>", "<|turn|>", "->", "Facts:", "system", "user", "assistant")
_TEMPLATE = (
    "{% for m in messages %}<|turn|> {{ m.role }}\n{{ m.content }} </s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|> assistant\n{% endif %}"
)
_SYSTEM = "w1 w2 w3 w4 w5 w6 w7 w8"


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """The shape of a Llama.

    Args:
        name: in rows.
        key: in names of ratios.
        hidden: width.
        layers: of it.
        heads: of queries.
        kv_heads: of keys and values.
        mlp: width of the MLP.
        vocabulary: tokens.
        tied: whether the last matrix is that of the embeddings.
        context: most tokens of a sequence.
    """

    name: str
    key: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int
    vocabulary: int = 128_256
    tied: bool = False
    context: int = 131_072

    @property
    def token_bytes(self) -> int:
        """Return the bytes of a token's keys and values in bfloat16."""
        return 4 * self.layers * self.kv_heads * self.hidden // self.heads


LLAMA_1B = DecoderShape("Llama 3.2 1B", "1b", 2048, 16, 32, 8, 8192, tied=True)
LLAMA_8B = DecoderShape("Llama 3.1 8B", "8b", 4096, 32, 32, 8, 14_336)
TINY_LLAMA = DecoderShape("tiny Llama", "tiny", 64, 2, 4, 2, 128, 2048, context=4096)


@dataclass(frozen=True, slots=True)
class EncoderShape:
    """The shape of a BERT."""

    hidden: int = 384
    layers: int = 6
    heads: int = 12
    mlp: int = 1536
    vocabulary: int = 30_522


MINILM = EncoderShape()
TINY_ENCODER = EncoderShape(32, 2, 2, 64, 1000)


def make_decoder(shape: DecoderShape, device: MeasuredDevice, dtype: str = "bfloat16") -> Any:
    """Return a model on a device; its weights are the same each time there.

    Matrices keep the size of a vector. Drawn as small as transformers does, attention would be
    nearly even, and wrong states would hardly show. It never says a token that no text has.
    """
    torch, transformers = need("torch"), need("transformers")
    config = transformers.LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.context,
        tie_word_embeddings=shape.tied,
        initializer_range=shape.hidden**-0.5,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        bos_token_id=1,
        eos_token_id=2,
    )
    number = torch.device(device.name)
    with torch.random.fork_rng(devices=[number] if number.type == "cuda" else []), number:
        torch.manual_seed(0)
        auto = transformers.AutoModelForCausalLM
        model = auto.from_config(config, dtype=getattr(torch, dtype)).eval()
    with torch.no_grad():
        model.lm_head.weight[: len(_SPECIAL)] = 0
    return model


def make_encoder(shape: EncoderShape) -> Any:
    """Return a model in float32 on the processor; its weights are the same each time."""
    torch, transformers = need("torch"), need("transformers")
    config = transformers.BertConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        initializer_range=shape.hidden**-0.5,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.BertModel(config, add_pooling_layer=False).eval()


@cache
def make_tokenizer(vocabulary: int) -> Any:
    """Return a tokenizer of so many whole words, ``w0`` and so on, with a chat template."""
    tokenizers, transformers = need("tokenizers"), need("transformers")
    words = [*_SPECIAL, *(f"w{at}" for at in range(vocabulary - len(_SPECIAL)))]
    ids = {word: at for at, word in enumerate(words)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<unk>",
    )
    fast.chat_template = _TEMPLATE
    return fast


def texts_of(count: int, words: int, vocabulary: int, seed: int) -> tuple[str, ...]:
    """Return so many texts of so many words, which are tokens, drawn with a seed."""
    draw, most = Random(seed), vocabulary - len(_SPECIAL)
    return tuple(" ".join(f"w{draw.randrange(most)}" for _ in range(words)) for _ in range(count))


def prompt_of(texts: Sequence[str], question: int) -> TextPrompt:
    """Return a prompt of texts in their order, and a question of its own."""
    return TextPrompt(tuple(texts), f"w{question + 10} w11 w12 w13", _SYSTEM)


def paths_of(entities: int, each: int, vocabulary: int, seed: int) -> tuple[str, ...]:
    """Return relation paths of two hops, of which those of an entity begin alike."""
    names = texts_of(entities * (1 + 3 * each), 3, vocabulary, seed)
    found: list[str] = []
    for entity in range(entities):
        own = names[entity * (1 + 3 * each) :]
        for at in range(each):
            relation, middle, end = own[1 + 3 * (at // 2)], own[2 + 3 * (at // 2)], own[3 + 3 * at]
            found.append(f"{own[0]} -> {relation} -> {middle} -> {relation} -> {end}")
    return tuple(found)
