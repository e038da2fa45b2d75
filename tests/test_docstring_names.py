"""Docstrings: each name in double backticks exists, and classes and modules say what they are."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("rag_accel", "adapters", "integrations", "demo")
FOLDERS = (*PACKAGES, "tests", "bench", "docs", "cookbook")

QUOTED = re.compile(r"``([^`]+)``")
#: What is checked: file names, and identifiers of two letters or more, with dots or without. Other
#: text (a call, an assignment, words in quotes, ``x`` in a formula) is code or data, and skipped.
FILE = re.compile(r"[\w/.-]+\.(?:py|md|toml)")
NAME = re.compile(r"[A-Za-z_]\w+(\.[A-Za-z_]\w*)*")

#: Third parties whose names may be said with dots, as in ``torch.set_num_threads``.
THIRD_PARTIES = {
    *sys.stdlib_module_names,
    "faiss",
    "neo4j",
    "openai",
    "sentence_transformers",
    "torch",
}

#: Names that every module knows.
BUILT_IN = {*dir(builtins), *keyword.kwlist}

#: Names that stand nowhere in our code, and where they come from.
FOREIGN = {
    "ClientError": "neo4j",
    "GraphTransform": "the paper's algorithm",
    "LLMGraphTransformer": "langchain-experimental",
    "PyThreadState_SetAsyncExc": "CPython",
    "Send": "langgraph",
    "AsyncEngineArgs": "vllm",
    "KVCacheConfig": "vllm",
    "SamplingParams": "vllm",
    "SchedulerOutput": "vllm",
    "ServiceUnavailable": "neo4j",
    "SentenceTransformer": "sentence-transformers",
    "VllmConfig": "vllm",
    "encode_query": "sentence-transformers",
    "execute_query": "neo4j",
    "serial": "the stem of a word, an example",
    "serialization": "a word, an example",
    "it": "a word, an example",
    "Class.method": "a form of a name, an example",
    "add_": "the beginning of names",
    "guide/setup.md": "a user's file, an example",
    "json/decoder.py": "a user's file, an example",
}

#: Verbs that no docstring of a class or module begins with: neither can be commanded. Words
#: that are nouns just as often (call, step, time, work) are left out.
IMPERATIVE = re.compile(
    r"(?:Add|Advance|Apply|Answer|Append|Ask|Be|Begin|Behave|Block|Bring|Bundle|Choose|"
    r"Collect|Compare|Compute|Configure|Connect|Count|Decide|Describe|Do|Drive|"
    r"Embed|Encode|Estimate|Execute|Fetch|Find|Fit|Follow|Gather|Give|Go|Hand|"
    r"Hold|Invoke|Join|Keep|Know|Learn|Leave|Let|Look|Make|Map|Match|Name|Need|"
    r"Offer|Own|Pair|Pass|Predict|Put|Read|Receive|Record|Remember|Report|Return|"
    r"Run|Say|Schedule|Score|Search|See|Send|Serve|Share|Show|Sort|Stand|Start|"
    r"Stop|Store|Submit|Sum|Suspend|Take|Tell|Travel|Turn|Wait|Walk|Watch|Write)\b"
)
#: Words that begin a question or a free relative clause, which names nothing.
RELATIVE = re.compile(r"(?:What|How|Where|Which|Whether)\b")
#: How many are left: the line that says what the package does. It may fall, never rise.
MOST_IMPERATIVES = 1


@dataclass(frozen=True, slots=True)
class Names:
    """What the product's code defines: anywhere, by module and by class; and the classes' bases."""

    anywhere: set[str] = field(default_factory=set[str])
    modules: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    classes: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    bases: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


@cache
def trees() -> dict[Path, ast.Module]:
    """Return the syntax tree of every module of the product."""
    paths = (path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py")))
    return {path.relative_to(ROOT): ast.parse(path.read_text()) for path in paths}


@cache
def files() -> list[str]:
    """Return the paths of all files that a docstring may name."""
    paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*"))
    return [path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.*"), *paths)]


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield each string that is a statement: of a module, class, function or attribute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def defined(nodes: Iterable[ast.AST], skipped: Iterable[ast.Constant] = ()) -> Iterator[str]:
    """Yield what these nodes define, and the strings in their code, such as names of options."""
    left_out = {id(one) for one in skipped}
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.alias(name=name, asname=other):
                yield other or name.split(".")[-1]
            case ast.Constant(value=str(text)) if id(node) not in left_out:
                yield text
            case _:
                pass


def used(tree: ast.AST) -> Iterator[str]:
    """Yield what the code of a module refers to, wherever that is defined."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.alias(name=name):
                yield from name.split(".")
            case _:
                pass


@cache
def product() -> Names:
    """Return what all modules of the product define."""
    names = Names()
    for path, tree in trees().items():
        own = path.parent.name if path.stem == "__init__" else path.stem
        names.anywhere.update(defined(ast.walk(tree), docstrings(tree)), path.parts[:-1], [own])
        names.modules[path.parent.name].add(path.stem)
        for node in tree.body:
            simple = not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            names.modules[own].update(defined(ast.walk(node) if simple else [node]))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                names.classes[node.name].update(defined(ast.walk(node)))
                bases = (base.id for base in node.bases if isinstance(base, ast.Name))
                names.bases[node.name].update(bases)
    return names


def is_member(owner: str, name: str, local: set[str]) -> bool:
    """Tell whether a class or module has this name; of any other value it cannot be told."""
    if owner in product().classes and owner[:1].isupper():
        bases = product().bases[owner]
        return name in product().classes[owner] or any(
            base not in product().classes or is_member(base, name, local) for base in bases
        )
    return owner in local or owner not in product().modules or name in product().modules[owner]


def resolves(name: str, local: set[str]) -> bool:
    """Tell whether a name in backticks is that of something, seen from a module's own names."""
    if name in FOREIGN or name in product().anywhere:
        return True
    if FILE.fullmatch(name):
        return any(f"/{path}".endswith(f"/{name}") for path in files())
    parts = name.split(".")
    if not NAME.fullmatch(name) or (len(parts) > 1 and parts[0] in THIRD_PARTIES):
        return True
    known = (product().anywhere, local, BUILT_IN)
    return all(any(part in names for names in known) for part in parts) and all(
        is_member(*pair, local) for pair in pairwise(parts)
    )


def unresolved(tree: ast.AST) -> list[str]:
    """Return the names in a module's docstrings that are those of nothing."""
    texts = " ".join(str(one.value) for one in docstrings(tree))
    left = [name for name in QUOTED.findall(texts) if not resolves(name, set())]
    # Most modules quote what the product defines; a walk for their own names would be in vain.
    local = {*used(tree), *defined(ast.walk(tree))} if left else set[str]()
    return [name for name in left if not resolves(name, local)]


def imperatives(tree: ast.AST) -> list[str]:
    """Return the classes whose docstrings begin with a command; ``module`` is the module itself."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.ClassDef, ast.Module))]
    found = [node for node in nodes if IMPERATIVE.match(ast.get_docstring(node) or "")]
    return [node.name if isinstance(node, ast.ClassDef) else "module" for node in found]


def relatives(tree: ast.AST) -> list[str]:
    """Return the classes, or ``module``, whose docstrings begin with a relative word."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.ClassDef, ast.Module))]
    found = [node for node in nodes if RELATIVE.match(ast.get_docstring(node) or "")]
    return [node.name if isinstance(node, ast.ClassDef) else "module" for node in found]


def lone_comments(text: str) -> list[int]:
    """Return the lines where a comment at the margin stands apart from what is below it."""
    lines = text.splitlines()
    found: list[int] = []
    for at, line in enumerate(lines):
        if not line.startswith("#") or (at and lines[at - 1].startswith("#")):
            continue
        below = next((line for line in lines[at:] if not line.startswith("#")), "")
        if at and not lines[at - 1].strip() and not below.strip():
            found.append(at + 1)
    return found


#: Phrases that a reader has to decode, which texts of the product do without. Each is a pattern of
#: its own: one that begins with fixed text is found ten times as fast as an alternation.
DECODED = [
    re.compile(phrase)
    for phrase in ("of one that", "goes before", r"what is [\w ]{1,30} of them", "whatever is done")
]


def test_no_text_of_the_product_has_to_be_decoded() -> None:
    found = [
        f"{path}: {match.group()}"
        for path in trees()
        for text in [" ".join((ROOT / path).read_text().split())]
        for phrase in DECODED
        for match in phrase.finditer(text)
    ]
    assert found == []


def test_each_name_in_backticks_is_that_of_something() -> None:
    found = [f"{path}: {name}" for path, tree in trees().items() for name in unresolved(tree)]
    assert found == []


def test_a_name_that_is_gone_is_found() -> None:
    text = "``flat_prompt`` ``accelerator.no_such`` ``Options.no_such`` ``a/gone.py`` ``f(x)``"
    assert unresolved(ast.parse(f'"""{text}"""')) == QUOTED.findall(text)[:-1]


def test_names_of_all_kinds_resolve() -> None:
    text = "``Options.max_requests`` ``given`` ``torch.nn`` ``manager.py`` ``int`` ``with``"
    assert unresolved(ast.parse(f'"""{text}"""\nprint(given)')) == []


def test_docstrings_of_classes_and_modules_say_what_these_are() -> None:
    found = [f"{path}: {name}" for path, tree in trees().items() for name in imperatives(tree)]
    assert len(found) <= MOST_IMPERATIVES, found


def test_a_command_to_a_class_or_module_is_found() -> None:
    text = '"""Say."""\nclass A:\n    """Hold."""\nclass B:\n    """A."""'
    assert imperatives(ast.parse(text)) == ["module", "A"]


def test_docstrings_of_classes_and_modules_name_a_thing() -> None:
    found = [f"{path}: {name}" for path, tree in trees().items() for name in relatives(tree)]
    assert found == []


def test_a_docstring_that_names_nothing_is_found() -> None:
    text = '"""What is kept."""\nclass A:\n    """How."""\nclass B:\n    """Whatever fits."""'
    assert relatives(ast.parse(text)) == ["module", "A"]


def test_no_comment_stands_alone_between_definitions() -> None:
    found = [
        f"{path}:{line}" for path in trees() for line in lone_comments((ROOT / path).read_text())
    ]
    assert found == []


def test_a_comment_alone_is_found() -> None:
    assert lone_comments("a = 1\n\n# A heading.\n# Two lines.\n\nb = 2\n") == [3]
    assert lone_comments("a = 1\n\n# Why b.\nb = 2\n# the end\n") == []
