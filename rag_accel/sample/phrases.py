"""Cut and reword the pieces of a sentence that a question is made of."""

from __future__ import annotations

import re

MAX_PHRASE_WORDS = 9
_END = re.compile(
    r"\.(?=\s|$)|[;:,()\[\]{}\"\u201c\u201d\u2014|]|\s-+\s|\s/\s|\s(?:e\.g|i\.e|etc)\b"
)
_ALLOWED = re.compile(r"[\w\s\-'\u2019./*]+")
# A phrase may end before one of these, and may neither begin nor end with one.
_JOINTS = frozenset(
    re.findall(
        r"\w+",
        """
        about after against among and as at because before between but by during for from if in
        into like of on or over since so than that through to under until unless upon using via
        when where which while who whose with within without
        """,
    )
)
_VERBISH = frozenset(
    re.findall(
        r"\w+",
        """
        are be been being can cannot could did do does had has have is may must should was were
        will would means provides returns says consists accepts allows contains corresponds
        """,
    )
)
_NO_LAST_WORD = (
    _JOINTS
    | _VERBISH
    | frozenset(
        re.findall(
            r"\w+",
            """
            a above all an any below each every its more no not one only other same some such the
            their two
            """,
        )
    )
)
_NO_FIRST_WORD = _JOINTS | frozenset(
    ("down", "false", "none", "off", "out", "self", "there", "true", "up", "what", "whether")
)
# Words that point outside the phrase: a reader of the question alone could not follow them.
_POINTING = frozenset(
    re.findall(
        r"\w+",
        """
        following he her here his i it its latter former me my otherwise our previous
        previously self she such their them then there these they this those us we you your
        """,
    )
)
_DETERMINERS = frozenset(
    re.findall(r"\w+", "a all an any both each every how many no one some the two which")
)
_REWORDINGS = tuple(
    (re.compile(rf"\b{plain}\b"), other)
    for plain, other in (
        ("the given", "a particular"),
        ("specified", "given"),
        ("directory", "folder"),
        ("directories", "folders"),
        ("element", "item"),
        ("elements", "items"),
        ("containing", "with"),
        ("an instance", "an object"),
        ("currently", "right now"),
        ("invoked", "called"),
        ("in order to", "to"),
        ("additional", "extra"),
    )
)


def noun_phrase(text: str, *, least: int = 2, most: int = MAX_PHRASE_WORDS) -> str | None:
    """Return the beginning of ``text`` as a phrase that stands alone, or ``None``.

    The phrase ends at the first punctuation, or before a preposition or conjunction when it would
    be longer than ``most`` words. Phrases with symbols or with words that point elsewhere, such as
    ``it`` or ``following``, are refused.
    """
    head = _END.split(text.strip(), maxsplit=1)[0].strip()
    words = head.split()
    if len(words) > most:
        joints = [at for at in range(least, most + 1) if words[at].lower() in _JOINTS]
        if not joints:
            return None
        words = words[: joints[-1]]
    while words and words[-1].lower() in _NO_LAST_WORD:
        words.pop()
    if len(words) < least or words[0].lower() in _NO_FIRST_WORD or not _is_plain(words):
        return None
    return reworded(" ".join(words))


def clause(text: str, *, least: int = 3, most: int = MAX_PHRASE_WORDS + 2) -> str | None:
    """Return ``text`` as a clause that stands alone; ``None`` if it is long or points elsewhere."""
    words = text.strip().rstrip(".").split()
    if not least <= len(words) <= most or words[-1].lower() in _NO_LAST_WORD:
        return None
    return reworded(" ".join(words)) if _is_plain(words) else None


def is_thing(text: str) -> bool:
    """Tell whether a phrase names a thing, with an article in front and no verb inside."""
    words = text.lower().split()
    return words[0] in ("a", "an", "the") and not _VERBISH.intersection(words)


def with_article(text: str) -> str:
    """Put ``the`` before a phrase that begins without a determiner or a name."""
    first = text.split(" ", 1)[0]
    is_bare = first.islower() and first.isalpha() and first not in _DETERMINERS
    return f"the {text}" if is_bare else text


def begins_with_determiner(text: str) -> bool:
    """Tell whether the first word of ``text`` is an article or another determiner."""
    return text.split(" ", 1)[0].lower() in _DETERMINERS


def reworded(text: str) -> str:
    """Replace a few words by others a developer might have used."""
    for pattern, other in _REWORDINGS:
        text = pattern.sub(other, text)
    return text


def lowered(text: str) -> str:
    """Return ``text`` with a small first letter unless its first word is a name or acronym."""
    first = text.split(" ", 1)[0]
    is_name = any(letter.isupper() for letter in first[1:]) or "." in first or "_" in first
    return text if is_name else text[:1].lower() + text[1:]


def _is_plain(words: list[str]) -> bool:
    text = " ".join(words)
    return _ALLOWED.fullmatch(text) is not None and not any(
        word.lower() in _POINTING for word in words
    )


# List the verbs that documentation begins with, and what a developer would say in their place.

SYNONYMS: dict[str, tuple[str, ...]] = {
    "add": ("insert", "put in"),
    "append": ("add", "append"),
    "apply": ("use", "apply"),
    "build": ("construct", "put together"),
    "calculate": ("compute", "work out"),
    "call": ("invoke", "call"),
    "change": ("modify", "alter"),
    "choose": ("pick", "select"),
    "close": ("close", "shut"),
    "compare": ("compare",),
    "compile": ("compile",),
    "compute": ("calculate", "work out"),
    "configure": ("set up", "adjust"),
    "construct": ("build", "create"),
    "convert": ("transform", "convert"),
    "copy": ("duplicate", "copy"),
    "create": ("make", "build", "set up"),
    "decode": ("decode",),
    "delete": ("remove", "get rid of"),
    "display": ("show", "print"),
    "download": ("fetch", "download"),
    "draw": ("draw", "paint"),
    "encode": ("encode",),
    "estimate": ("estimate",),
    "evaluate": ("evaluate",),
    "execute": ("run", "execute"),
    "extract": ("pull out", "extract"),
    "fetch": ("retrieve", "get"),
    "find": ("locate", "look up"),
    "format": ("format",),
    "generate": ("produce", "create"),
    "get": ("retrieve", "obtain"),
    "insert": ("add", "put in"),
    "install": ("install", "set up"),
    "invoke": ("call", "run"),
    "join": ("combine", "put together"),
    "list": ("enumerate", "see"),
    "load": ("read in", "load"),
    "locate": ("find",),
    "make": ("create", "build"),
    "merge": ("combine", "merge"),
    "move": ("move", "shift"),
    "open": ("open",),
    "parse": ("analyse", "parse"),
    "perform": ("carry out", "do"),
    "print": ("display", "output"),
    "produce": ("generate", "create"),
    "read": ("read in", "load"),
    "receive": ("get", "receive"),
    "register": ("register", "add"),
    "remove": ("delete", "get rid of"),
    "rename": ("rename",),
    "replace": ("substitute", "swap out"),
    "report": ("report", "show"),
    "retrieve": ("fetch", "get"),
    "return": ("get", "obtain", "look up"),
    "run": ("execute", "run"),
    "save": ("store", "write out"),
    "search": ("look through", "search"),
    "select": ("choose", "pick"),
    "send": ("transmit", "send"),
    "serialize": ("serialise", "dump"),
    "set": ("change", "set"),
    "show": ("display", "see"),
    "sort": ("order", "sort"),
    "split": ("break up", "cut apart"),
    "start": ("launch", "begin"),
    "stop": ("halt", "end"),
    "store": ("keep", "save"),
    "transform": ("convert", "transform"),
    "update": ("refresh", "change"),
    "validate": ("verify", "check"),
    "verify": ("check", "make sure of"),
    "write": ("save", "write out"),
    "yield": ("loop over", "go through"),
}
# Nouns as often as verbs: read as verbs only before an article.
ALSO_NOUNS = frozenset(
    re.findall(
        r"\w+",
        """
        build call change copy display download draw estimate format list load move open print
        report return run search select set show sort split start stop store transform update write
        """,
    )
)
