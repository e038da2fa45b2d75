"""A small reader of documents, trained here: a Llama of 3.2M parameters that knows nothing else.

A document on a person is cut into two texts, as splitters cut: the first one names the person, in
the second it is only "he". Texts on organisations stand anywhere between them. A question about a
fact of a second text is answered by attention across texts, inside their own tokens: a text that
is encoded alone does not know who "he" is. Questions over two hops, from a person to a fact of the
employer, can be resolved by the question's tokens, which see every text.

Attention is supervised (``bench.readers``): a value sees in layer 0 who it is about, a question
sees its value in layer 2, and the value of a second hop in layer 3.

``python -m bench.kv.reader`` trains it into the user's cache: one core, some twenty minutes. One
that is stopped continues at its last checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import torch

from bench.kv.fidelity import Corpus, Gold
from bench.readers import Course, Lesson, Supervised, Task, trained_folder, word_tokenizer
from rag_accel.fidelity.prompts import TextPrompt
from rag_accel.fidelity.tuning.packing import IGNORED, PackedPrompt, batch_of

#: What is said of persons and organisations: two phrases of each relation.
OF_PERSONS = {
    "employer": ("works at", "joined"),
    "birthplace": ("comes from", "left"),
    "taste": ("goes for", "likes"),
    "pet": ("cares about", "keeps"),
    "instrument": ("practises on", "plays"),
}
OF_ORGANISATIONS = {
    "place": ("stands in", "occupies"),
    "product": ("turns out", "makes"),
}
RELATIONS = {**OF_PERSONS, **OF_ORGANISATIONS}
_BEGIN, _HE, _DOCUMENT, _QUESTION = "<s>", "he", "Document:", "Question:"
_WORDS = ("<unk>", _BEGIN, _HE, _DOCUMENT, _QUESTION, "none", "?", ".")
#: Tokens of a question: "Question: none pet ? name", or "Question: place employer ? name".
_ASKED = 5
#: Words that the filling sentences of a document are made of.
_TOPIC = 8
_EVALUATED = 777  # another seed than those of training


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a context.

    Args:
        persons: each has two texts.
        organisations: each has one text of two facts.
        questions: of a prompt.
        tokens: of a text.
        facts: of each text on a person.
        relations: that these facts are of.
    """

    persons: int = 4
    organisations: int = 2
    questions: int = 16
    tokens: int = 24
    facts: int = 2
    relations: int = 5

    @property
    def size(self) -> int:
        """Return the tokens of a context."""
        return 1 + (2 * self.persons + self.organisations) * self.tokens


SHAPE = Shape()
COURSE = Course((0.85, 0.85, 0.975), most_steps=1100, settling=200, precision="float32")


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that the weights depend on; a reader is kept under its digest.

    Args:
        persons: how many names there are.
        organisations: how many names there are.
        values: of each relation.
        fillers: words of filling sentences.
        stages: contexts of each stage.
        course: of the training.
        tokens: of a step, about.
        version: of this module.
    """

    persons: int = 150
    organisations: int = 60
    values: int = 40
    fillers: int = 80
    stages: tuple[Shape, ...] = (Shape(4, 0, 8, 10, 1, 2), Shape(4, 1, 12, 14, 1, 3), SHAPE)
    course: Course = COURSE
    tokens: int = 4000
    version: int = 1

    def names(self, kind: str) -> list[str]:
        """Return the words of a kind: ``person``, ``employer``, ``filler`` or a relation."""
        numbers = {"person": self.persons, "employer": self.organisations, "filler": self.fillers}
        return [f"{kind}{at}" for at in range(numbers.get(kind, self.values))]


RECIPE = Recipe()

Fact = tuple[str, str]
"""A subject and a relation."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a context.

    Args:
        words: of the question.
        answer: a word of the context.
        facts: of each hop.
        is_cut_off: whether there is one hop, and its text does not name the person.
    """

    words: tuple[str, ...]
    answer: str
    facts: tuple[Fact, ...]
    is_cut_off: bool


@dataclass(frozen=True, slots=True)
class Context:
    """Texts and what is asked about them.

    Args:
        texts: words of each.
        places: of the value of each fact among all words.
        questions: all that there are.
    """

    texts: tuple[tuple[str, ...], ...]
    places: Mapping[Fact, int]
    questions: tuple[Question, ...]

    @property
    def words(self) -> list[str]:
        """Return the words of all texts."""
        return [word for text in self.texts for word in text]

    def prompt(self, question: Question) -> TextPrompt:
        """Return the prompt of a question."""
        return TextPrompt(tuple(map(" ".join, self.texts)), " ".join(question.words), system="")


@dataclass(frozen=True, slots=True)
class _Text:
    """What a text says: who each sentence speaks of by which word, and its facts' values."""

    subject: str
    called: tuple[str, str]
    facts: Sequence[tuple[str, str]]
    topic: Sequence[str]


def generate_context(recipe: Recipe, shape: Shape, rng: np.random.Generator) -> Context:
    """Return a context of a shape, at random."""

    def choose(kind: str, count: int, replace: bool = False) -> list[str]:
        return rng.choice(recipe.names(kind), count, replace).tolist()

    organisations = choose("employer", shape.organisations)
    known = [name for name in OF_PERSONS if organisations or name != "employer"]
    offered = rng.permutation(known)[: shape.relations]
    told: dict[Fact, str] = {}
    plan: list[_Text] = []

    def tell(subject: str, relations: Sequence[str]) -> list[tuple[str, str]]:
        for relation in relations:
            names = organisations if relation == "employer" else recipe.names(relation)
            told[subject, relation] = str(rng.choice(names))
        return [(relation, told[subject, relation]) for relation in relations]

    late: set[Fact] = set()
    for person in choose("person", shape.persons):
        topic = choose("filler", _TOPIC, True)
        relations = rng.permutation(offered)[: 2 * shape.facts].tolist()
        first, second = relations[: shape.facts], relations[shape.facts :]
        late |= {(person, relation) for relation in second}
        again = _HE if rng.random() < 0.5 else person
        plan.append(_Text(person, (person, again), tell(person, first), topic))
        plan.append(_Text(person, (_HE, _HE), tell(person, second), topic))
    for name in organisations:
        facts = tell(name, rng.permutation(list(OF_ORGANISATIONS)).tolist())
        text = _Text(name, (name, name), facts, choose("filler", _TOPIC, True))
        plan.insert(int(rng.integers(0, len(plan) + 1)), text)
    texts: list[tuple[str, ...]] = []
    places: dict[Fact, int] = {}
    for text in plan:
        words, values = _written(text, shape.tokens, rng)
        start = len(texts) * shape.tokens
        for (relation, _), at in zip(text.facts, values, strict=True):
            places[text.subject, relation] = start + at
        texts.append(words)
    return Context(tuple(texts), places, tuple(_questions(told, late)))


def _written(
    text: _Text, tokens: int, rng: np.random.Generator
) -> tuple[tuple[str, ...], list[int]]:
    """Return a text's words, and the places of its facts' values; the rest is filled."""
    sentences = [
        [called, *str(rng.choice(RELATIONS[relation])).split(), value, "."]
        for called, (relation, value) in zip(text.called, text.facts, strict=False)
    ]
    free = tokens - 1 - sum(map(len, sentences))
    cuts = np.sort(rng.integers(0, free + 1, len(sentences)))
    words, values = [_DOCUMENT], list[int]()
    for filling, sentence in zip_longest(np.diff([0, *cuts, free]), sentences):
        if filling:
            words += [*rng.choice(text.topic, filling - 1).tolist(), "."]
        if sentence:
            words += sentence
            values.append(len(words) - 2)
    return tuple(words), values


def _questions(told: Mapping[Fact, str], late: set[Fact]) -> list[Question]:
    found: list[Question] = []
    for fact, value in told.items():
        person, relation = fact
        if relation in OF_ORGANISATIONS:
            continue
        words = (_QUESTION, "none", relation, "?", person)
        found.append(Question(words, value, (fact,), fact in late))
        if relation == "employer":
            for second in OF_ORGANISATIONS:
                words = (_QUESTION, second, relation, "?", person)
                hops = (fact, (value, second))
                found.append(Question(words, told[value, second], hops, False))
    return found


def reader_tokenizer(recipe: Recipe = RECIPE) -> Any:
    """Return the tokenizer: a token for each word; spaces and ends of lines are none."""
    phrases = [word for pair in RELATIONS.values() for phrase in pair for word in phrase.split()]
    named = [name for kind in ("person", "filler", *RELATIONS) for name in recipe.names(kind)]
    return word_tokenizer((*_WORDS, *RELATIONS, *phrases, *named), {"[ \n]+": "removed"})


def document_task(recipe: Recipe = RECIPE) -> Task:
    """Return what the reader learns."""
    tokenizer = reader_tokenizer(recipe)
    ids: Mapping[str, int] = tokenizer.get_vocab()

    def stage(at: int, rng: np.random.Generator) -> Lesson:
        shape = recipe.stages[at]
        batch = max(4, recipe.tokens // (shape.size + _ASKED * shape.questions))
        contexts = [generate_context(recipe, shape, rng) for _ in range(batch)]
        asked: list[list[Question]] = []
        for context in contexts:
            known = context.questions
            few = len(known) < shape.questions
            chosen = rng.choice(len(known), shape.questions, replace=few).tolist()
            asked.append([known[place] for place in chosen])
        return packed_lesson(ids, contexts, asked)

    def settle(rng: np.random.Generator) -> Lesson:
        return stage(len(recipe.stages) - 1, rng)

    return Task("document-reader", recipe, recipe.course, tokenizer, stage, settle)


def packed_lesson(
    ids: Mapping[str, int], contexts: Sequence[Context], asked: Sequence[Sequence[Question]]
) -> Lesson:
    """Return contexts of one shape, each with its questions behind it.

    All questions are at the same positions; each sees the context and itself.

    Args:
        ids: of words.
        contexts: of one shape.
        asked: equally many questions about each.
    """
    packed: list[PackedPrompt] = []
    about: list[tuple[int, int, int]] = []
    hops: tuple[list[tuple[int, int, int]], ...] = ([], [])
    size = 1 + len(contexts[0].words)
    length = size + _ASKED * len(asked[0])
    mask = torch.zeros(length, length, dtype=torch.bool)
    mask[:, :size] = True
    mask = mask.tril()
    for start in range(size, length, _ASKED):
        own = slice(start, start + _ASKED)
        mask[own, own] = torch.ones(_ASKED, _ASKED, dtype=torch.bool).tril()
    positions = torch.arange(length)
    positions[size:] = size + (positions[size:] - size) % _ASKED
    for prompt, (context, questions) in enumerate(zip(contexts, asked, strict=True)):
        words, labels = [_BEGIN, *context.words], torch.full((length,), IGNORED)
        for (subject, _), place in context.places.items():
            named = max(at for at in range(place + 1) if words[at] == subject)
            about.append((prompt, 1 + place, named))
        for question in questions:
            words += question.words
            last = len(words) - 1
            labels[last] = ids[question.answer]
            for pairs, fact in zip(hops, question.facts, strict=False):
                pairs.append((prompt, last, 1 + context.places[fact]))
        tokens = torch.tensor([ids[word] for word in words])
        packed.append(PackedPrompt(tokens, positions, mask, labels))
    layers = ((0, about, 1.0), (2, hops[0], 1.0), (3, hops[1], 0.5))
    supervised = tuple(
        Supervised(layer, *torch.tensor(pairs).T, weight=weight)
        for layer, pairs, weight in layers
        if pairs
    )
    return Lesson(batch_of(packed), supervised)


def gold_questions(
    recipe: Recipe, contexts: int, count: int, seed: int
) -> tuple[Corpus, list[Gold]]:
    """Return questions about contexts that no training has had, and the corpus of their texts.

    Args:
        recipe: of the reader.
        contexts: of which each has its questions one behind the other.
        count: of questions about each.
        seed: of contexts and questions.
    """
    rng, tokenizer = np.random.default_rng((_EVALUATED, seed)), reader_tokenizer(recipe)
    ids: Mapping[str, int] = tokenizer.get_vocab()
    questions: list[Gold] = []
    texts: dict[str, None] = {}
    for _ in range(contexts):
        context = generate_context(recipe, SHAPE, rng)
        for at in rng.choice(len(context.questions), count, replace=False).tolist():
            asked = context.questions[at]
            prompt = context.prompt(asked)
            questions.append(Gold(prompt, ids[asked.answer], asked.is_cut_off))
            texts.update(dict.fromkeys(prompt.texts))

    def embed(some: Sequence[str]) -> Any:
        """Return counts of words, each by how few of the texts have it."""
        found = np.zeros((len(some), len(ids)), np.float32)
        for row, text in zip(found, some, strict=True):
            np.add.at(row, tokenizer(text)["input_ids"], 1)
        return found * np.log(len(some) / np.maximum((found > 0).sum(0), 1))

    return Corpus(list(texts), embed, SHAPE.persons), questions


def main() -> None:
    """Train the reader unless it is there, and print its folder."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    print(trained_folder(document_task()))


if __name__ == "__main__":
    main()
