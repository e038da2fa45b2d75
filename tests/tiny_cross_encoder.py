"""A tiny random cross-encoder, in a folder as users have theirs."""

from __future__ import annotations

from pathlib import Path

WORDS = [f"word{number}" for number in range(60)]


def save_cross_encoder(folder: Path, labels: int = 1) -> str:
    """Save a tiny random cross-encoder; return its folder."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    folder.mkdir()
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(tokens))
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=len(tokens),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        num_labels=labels,
        initializer_range=1.0,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    return str(folder)
