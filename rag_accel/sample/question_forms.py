"""Find what the sentences of a document state, and turn statements into questions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from rag_accel.engine_api import Document
from rag_accel.engines.llm.extractive.sentences import split_sentences
from rag_accel.sample.phrases import (
    ALSO_NOUNS,
    SYNONYMS,
    begins_with_determiner,
    clause,
    is_thing,
    lowered,
    noun_phrase,
    with_article,
)

_TITLE_WORDS = 6
# Read the sentences of a document together with what each of them is about.
#
# The rules for questions look at a sentence from each of its verbs, and each question repeats the
# name of what it is about: both are bounded, far beyond what anybody would ask about.
_MAX_SENTENCE_LETTERS = 1000
_MAX_NAME_LETTERS = 200
_TITLE_END = re.compile(r"(?<=\w), |(?<=\w): |\s[\u2014\u2013|\u00b7-]+\s")
_NAMED = re.compile(r"([A-Za-z_][\w.]*\.\w+)(?:\([^)]*\))?:\s+(.+)")


@dataclass(frozen=True, slots=True)
class Fact:
    """Hold one sentence and how to speak of where it stands.

    Args:
        subject: what the sentence is about, such as ``json.dumps`` or a document's title.
        place: where to look, such as ``json`` or a document's title.
        body: the sentence without the name in front of it.
        is_code: whether the subject is a function, method or class.
        is_summary: whether it is the first sentence on a named function, method or class.
        parameter_of: the function whose parameter the sentence describes, if any.
    """

    subject: str
    place: str
    body: str
    is_code: bool
    is_summary: bool = False
    parameter_of: str | None = None


def read_facts(document: Document) -> Iterator[Fact]:
    """Yield a document's sentences of up to 1000 letters with the name that each is about."""
    qualname = str(document.metadata.get("qualname", document.id))
    title = str(document.metadata.get("title", document.id))
    is_code = str(document.metadata.get("source", "")).endswith(".py") and title == qualname
    place = _module(document) if is_code else short_title(title)
    subject = qualname if is_code else place
    is_function = is_code and document.text.startswith(f"{qualname}(")
    text = document.text if is_code else document.text.removeprefix(f"{title}: ")
    for sentence in split_sentences(text):
        if len(sentence) > _MAX_SENTENCE_LETTERS:
            continue
        named = _NAMED.fullmatch(sentence)
        is_summary = named is not None and is_code
        if named and is_summary:
            subject = named[1]
        yield Fact(
            subject=_spoken(subject) if is_code else subject,
            place=place,
            body=named[2] if named and is_summary else sentence,
            is_code=is_code,
            is_summary=is_summary,
            parameter_of=_spoken(qualname) if is_function else None,
        )


def short_title(title: str) -> str:
    """Return a title without its section and site: at most six words one would say aloud."""
    head = _TITLE_END.split(title.strip(), maxsplit=1)[0]
    return (" ".join(head.split()[:_TITLE_WORDS]) or title)[:_MAX_NAME_LETTERS]


def _module(document: Document) -> str:
    """Return what a developer would call the place: ``email.utils``, or a package's own name."""
    names = str(document.metadata.get("qualname", document.id)).split(".")
    parts = PurePosixPath(str(document.metadata.get("source", ""))).with_suffix("").parts
    if parts[:1] != ("python",):
        return names[0][:_MAX_NAME_LETTERS]
    return ".".join(name for name in names[:2] if name in parts)[:_MAX_NAME_LETTERS]


def _spoken(qualname: str) -> str:
    """Shorten a long qualified name to what one says: ``Class.method`` or ``function``."""
    names = qualname.split(".")
    if len(names) > 3:
        qualname = ".".join(names[-2:]) if names[-2][:1].isupper() else names[-1]
    return qualname[:_MAX_NAME_LETTERS]


# Turn one statement of a document into questions a developer might have asked.
#
# Each rule understands one shape of sentence and offers several wordings; ``None`` where the shape
# does not fit. The rules know English grammar only as far as technical writing needs it.


_IMPERATIVE = re.compile(r"(?:Helper to |Utility to |Function to |Used to )?([A-Z][a-z]+)\s+(.+)")
_WHETHER = re.compile(
    r"(?:Returns?\s+(?:True|true|a true value|whether)(?:\s+(?:if|when|iff|and only if))?"
    r"|(?:Check|Test|Determine|Tell|Indicate)s?\s+(?:if|whether)|True\s+(?:if|when)|Whether)\s+"
    r"(?:or not\s+)?(.+?)"
    r"(?:[,;.]?\s+(?:[Oo]therwise|[Ff]alse|[Ee]lse|or not|and False|if not)\b.*|\.|,.*)?$"
)
_CONDITION = re.compile(r"(If|When|Whenever)\s+([^,]+),\s+(?:then\s+)?\w+.*")
_RAISES = re.compile(
    r"\b(?:[Rr]aises?|raised|raising)\s+(?:an?\s+)?(\w+(?:Error|Exception|Warning|Interrupt))"
    r"\s+(?:exception\s+)?(?:if|when)\s+([^.;]+)"
)
_PARAMETER = re.compile(r"(\*{0,2}[a-z_]\w*)(?:\s*\([^)]*\))?:\s+\S+\s+\S+\s+\S+.*")
_THING = re.compile(r"(?:This is )?((?:[Aa]n?|Abstract|Base)\s.+)")
_COPULA = re.compile(r"(.+?)\s(is|are)\s(?:an?|the|one|used|meant|designed)\s.+")
_MODAL = re.compile(r"(.+?)\s(must|should|can|may)\s(not\s)?(.+)")
_ADVERBS = frozenset(("also", "always", "both", "either", "never", "only", "still", "then"))
_VAGUE = frozenset(("case", "cause", "example", "problem", "reason", "result", "similar", "value"))
_PURPOSE = re.compile(r"(?:.+?)\s(?:is|are|can be)\s+used\s+(to|for)\s+(.+)")
_REASON = re.compile(r"(.+?)\s(is|are|was|were|can|cannot|must|should)\s(.+?),?\s+because\s+.+")


Rule = Callable[[Fact], tuple[str, ...] | None]


def ask_whether(fact: Fact) -> tuple[str, ...] | None:
    """Ask how to test a condition."""
    match = _WHETHER.fullmatch(fact.body)
    condition = clause(match[1]) if match and fact.is_code else None
    if condition is None:
        return None
    return (
        f"How can I find out whether {condition} with {fact.place}?",
        f"Is there a way in {fact.place} to check whether {condition}?",
        f"What should I call in {fact.place} to learn if {condition}?",
        f"How do I test in {fact.place} that {condition}?",
    )


def ask_how(fact: Fact) -> tuple[str, ...] | None:
    """Ask how to do what a function does."""
    match = _IMPERATIVE.fullmatch(fact.body)
    if match is None or not fact.is_code:
        return None
    verb = match[1].lower()
    verbs = SYNONYMS.get(verb) or SYNONYMS.get(verb.removesuffix("s")) or ()
    thing = noun_phrase(match[2])
    if thing is None or not verbs:
        return None
    if verb in ALSO_NOUNS - {"return"} and not begins_with_determiner(thing):
        return None
    thing = with_article(thing)
    forms = (
        "How do I {do} {thing} with {place}?",
        "What does {place} offer if I want to {do} {thing}?",
        "Which part of {place} lets me {do} {thing}?",
        "I need to {do} {thing}, what should I use from {place}?",
        "In {place}, what is the right call to {do} {thing}?",
        "What is the simplest way to {do} {thing} using {place}?",
    )
    first, last = verbs[0], verbs[-1]
    dos = (first, last, first, last, first, last)
    return tuple(
        form.format(do=do, thing=thing, place=fact.place)
        for form, do in zip(forms, dos, strict=True)
    )


def ask_consequence(fact: Fact) -> tuple[str, ...] | None:
    """Ask what follows from a condition."""
    match = _CONDITION.fullmatch(fact.body)
    condition = clause(match[2]) if match else None
    if match is None or condition is None:
        return None
    if not fact.is_code:
        return (
            f"In {fact.place}, what happens if {condition}?",
            f"According to {fact.place}, what follows if {condition}?",
            f"What does {fact.place} say should happen if {condition}?",
        )
    return (
        f"What does {fact.subject} do if {condition}?",
        f"How does {fact.subject} behave if {condition}?",
        f"What happens in {fact.subject} if {condition}?",
        f"What can I expect from {fact.subject} if {condition}?",
    )


def ask_exception(fact: Fact) -> tuple[str, ...] | None:
    """Ask which exception a mistake causes, or what causes an exception."""
    match = _RAISES.search(fact.body)
    condition = clause(match[2]) if match else None
    if match is None or condition is None:
        return None
    return (
        f"Which exception does {fact.subject} raise if {condition}?",
        f"Why would I get a {match[1]} from {fact.subject}, what causes it?",
        f"What error must I catch from {fact.subject} when {condition}?",
        f"Under which conditions does {fact.subject} raise a {match[1]}?",
    )


def ask_parameter(fact: Fact) -> tuple[str, ...] | None:
    """Ask what a parameter is for."""
    match = _PARAMETER.fullmatch(fact.body)
    if match is None or fact.parameter_of is None:
        return None
    name, owner = match[1], fact.parameter_of
    return (
        f"What is the {name} argument of {owner} good for?",
        f"What should I pass as {name} when I call {owner}?",
        f"How does the {name} parameter change what {owner} does?",
        f"What values does {owner} accept for its {name} argument?",
    )


def ask_thing(fact: Fact) -> tuple[str, ...] | None:
    """Ask for the class or module that is described."""
    match = _THING.fullmatch(fact.body)
    thing = noun_phrase(match[1], least=4) if match and fact.is_summary else None
    if thing is None:
        return None
    thing = lowered(thing)
    if not thing.startswith(("a ", "an ", "the ")):
        thing = f"{'an' if thing[0] in 'aeiou' else 'a'} {thing}"
    if not is_thing(thing) or "classes" in thing.split()[:4]:
        return None
    return (
        f"Which class or function of {fact.place} is {thing}?",
        f"Where in {fact.place} do I find {thing}?",
        f"What does {fact.place} provide when I am looking for {thing}?",
        f"Does {fact.place} have {thing}, and what is it called?",
    )


def ask_definition(fact: Fact) -> tuple[str, ...] | None:
    """Ask what something is."""
    match = _COPULA.fullmatch(fact.body)
    thing = clause(match[1], least=2, most=6) if match else None
    if match is None or thing is None or not is_thing(thing):
        return None
    if _VAGUE.intersection(thing.lower().split()):
        return None
    thing, verb = lowered(thing), match[2]
    return (
        f"What exactly {verb} {thing} in the context of {fact.place}?",
        f"How does the documentation of {fact.place} describe {thing}?",
        f"I keep reading about {thing} in {fact.place}, what {verb} meant by that?",
    )


def ask_modal(fact: Fact) -> tuple[str, ...] | None:
    """Ask when or how something may, can or must be done."""
    match = _MODAL.fullmatch(fact.body)
    thing = clause(match[1], least=2, most=4) if match else None
    rest = noun_phrase(match[4], least=2, most=6) if match else None
    if match is None or thing is None or rest is None or not is_thing(thing):
        return None
    if rest.split(" ", 1)[0] in _ADVERBS:
        return None
    thing, verb = lowered(thing), match[2]
    if match[3]:
        return (
            f"Why {verb} {thing} not {rest} in {fact.place}?",
            f"Is there a reason in {fact.place} why {thing} {verb} not {rest}?",
        )
    return (
        f"In {fact.place}, when or how {verb} {thing} {rest}?",
        f"What does {fact.place} say about how {thing} {verb} {rest}?",
    )


def ask_purpose(fact: Fact) -> tuple[str, ...] | None:
    """Ask what serves a purpose."""
    match = _PURPOSE.fullmatch(fact.body)
    purpose = noun_phrase(match[2], least=3) if match else None
    if match is None or purpose is None:
        return None
    return (
        f"What is used in {fact.place} {match[1]} {purpose}?",
        f"What do people use {match[1]} {purpose} when they work with {fact.place}?",
    )


def ask_reason(fact: Fact) -> tuple[str, ...] | None:
    """Ask why something is so."""
    match = _REASON.fullmatch(fact.body)
    thing = clause(match[1], least=2, most=7) if match else None
    rest = clause(match[3], least=1, most=9) if match else None
    if match is None or thing is None or rest is None:
        return None
    return (
        f"Why {match[2]} {lowered(thing)} {rest} in {fact.place}?",
        f"What is the reason in {fact.place} that {lowered(thing)} {match[2]} {rest}?",
    )


RULES: tuple[tuple[Rule, float], ...] = (
    (ask_how, 5.0),
    (ask_consequence, 3.0),
    (ask_whether, 2.0),
    (ask_exception, 1.5),
    (ask_parameter, 1.5),
    (ask_thing, 1.5),
    (ask_reason, 1.0),
    (ask_purpose, 1.0),
    (ask_definition, 1.0),
    (ask_modal, 0.7),
)
