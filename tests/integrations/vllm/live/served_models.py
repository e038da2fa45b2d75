"""Random models whose attention is loud enough that reuse and full attention differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[4]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY = 2048


def make_models(folder: Path) -> None:
    """Write ``llama`` and ``qwen3``, float32, with one tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    common: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 0,
    }
    words = make_tokenizer()
    for name, config, kind, factor in (
        ("llama", LlamaConfig, LlamaForCausalLM, 3.0),
        ("qwen3", Qwen3Config, Qwen3ForCausalLM, 1.0),
    ):
        torch.manual_seed(0)
        model: Any = kind(config(**common)).float()
        _make_loud(model, factor)
        model.save_pretrained(folder / name)
        words.save_pretrained(folder / name)


def make_tokenizer(
    pre_tokenizer: Any = None, decoder: Any = None, alphabet: list[str] | None = None
) -> Any:
    """Return a BPE tokenizer with a chat template, trained on the documentation.

    It is a byte-level one unless told.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoder or decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|end|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=alphabet or pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))]
    made.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>", pad_token="<|end|>")
    fast.chat_template = TEMPLATE
    return fast


def _make_loud(model: Any, factor: float) -> None:
    import torch

    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "q_proj.weight" in name or "k_proj.weight" in name:
                weights.mul_(factor)
            elif "embed_tokens" in name:
                weights.mul_(25)
