"""Prompts of nodes that depend on each other, and what sees what."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from tree_kit import characters

from rag_accel.engine_api import GraphPath
from rag_accel.errors import ConfigError
from rag_accel.kv.dependency.encoded import encode_prompt
from rag_accel.kv.dependency.positions import POSITION_SCHEMES
from rag_accel.kv.dependency.prompt import DepPrompt, LinearNode, TreeNode

ADA = (("Ada", " -> wrote ->", " notes"), ("Ada", " -> met ->", " Babbage"))
ALAN = (("Alan", " -> wrote ->", " papers"),)

TWO_CONTEXTS = DepPrompt(
    (
        LinearNode("system", "S"),
        TreeNode("ada", (("a",),), depends_on=("system",)),
        TreeNode("alan", (("b", "c"),), depends_on=("system",)),
        LinearNode("task", "QR", depends_on=("ada", "alan")),
    )
)


def test_by_default_each_node_sees_all_before_it() -> None:
    prompt = DepPrompt.chain("Answer.", ADA, "What did Ada write?")
    assert prompt.visible == {"system": (), "context": ("system",), "task": ("system", "context")}
    assert [node.name for node in prompt.nodes] == ["system", "context", "task"]


def test_two_contexts_do_not_see_each_other() -> None:
    assert TWO_CONTEXTS.visible["alan"] == ("system",)
    assert TWO_CONTEXTS.visible["task"] == ("system", "ada", "alan")
    encoded = encode_prompt(TWO_CONTEXTS, characters)
    assert "".join(map(chr, encoded.ids)) == "Sa\nbc\nQR"
    rows = ["".join(".#"[value] for value in row) for row in encoded.mask().astype(int)]
    assert rows == [
        "#.......",
        "##......",
        "###.....",
        "#..#....",
        "#..##...",
        "#..###..",
        "#######.",
        "########",
    ]


@pytest.mark.parametrize(
    ("scheme", "positions"),
    [
        ("shared", [0, 1, 2, 1, 2, 3, 4, 5]),
        ("stacked", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("preorder", [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_a_node_begins_behind_what_it_sees(scheme: str, positions: list[int]) -> None:
    encoded = encode_prompt(TWO_CONTEXTS, characters, scheme)  # type: ignore[arg-type]
    assert encoded.positions.tolist() == positions


@pytest.mark.parametrize("scheme", POSITION_SCHEMES)
def test_a_prompt_of_one_path_is_an_ordinary_one(scheme: str) -> None:
    prompt = DepPrompt.chain("Answer.", ALAN, "Who?")
    encoded = encode_prompt(prompt, characters, scheme)  # type: ignore[arg-type]
    size = len(encoded)
    assert "".join(map(chr, encoded.ids)) == "Answer.Alan -> wrote -> papers\nWho?"
    assert encoded.positions.tolist() == list(range(size))
    assert np.array_equal(encoded.mask(), np.tri(size, dtype=np.bool_))


def test_a_text_in_two_nodes_is_encoded_once() -> None:
    calls: Counter[str] = Counter()

    def encode(text: str) -> list[int]:
        calls[text] += 1
        return characters(text)

    encode_prompt(DepPrompt.chain("a", [("a", "r", "b")], "b"), encode)
    assert calls == Counter(["a", "r", "b", "\n"])


def test_a_context_that_sees_nothing_is_the_same_under_each_system_prompt() -> None:
    def context(system: str) -> list[int]:
        nodes = (
            LinearNode("system", system),
            TreeNode("context", ADA, depends_on=()),
            LinearNode("task", "Who?", depends_on=("system", "context")),
        )
        return encode_prompt(DepPrompt(nodes), characters).nodes[1].positions.tolist()

    assert context("short") == context("a longer one")


def test_nodes_move_behind_what_they_depend_on_and_keep_their_order_else() -> None:
    task = LinearNode("task", "Who?", depends_on=("b", "a"))
    first = TreeNode("a", ALAN, depends_on=("system",))
    prompt = DepPrompt(
        (
            task,
            TreeNode("b", ADA, depends_on=("a",)),
            first,
            LinearNode("system", "S", depends_on=()),
        )
    )
    assert [node.name for node in prompt.nodes] == ["system", "a", "b", "task"]
    fan = [LinearNode("s", "S")] + [TreeNode(name, ADA, depends_on=("s",)) for name in "dbca"]
    whole = DepPrompt((*fan, LinearNode("task", "Q", depends_on=tuple("abcd"))))
    assert [node.name for node in whole.nodes] == ["s", "d", "b", "c", "a", "task"]


def test_a_valid_order_is_kept_though_a_later_node_needs_less() -> None:
    nodes = (
        LinearNode("system", "S"),
        TreeNode("ada", ADA),
        TreeNode("alan", ALAN, depends_on=()),
        LinearNode("task", "Who?", depends_on=("ada", "alan")),
    )
    assert [node.name for node in DepPrompt(nodes).nodes] == ["system", "ada", "alan", "task"]


def test_a_node_of_what_a_graph_retrieval_found() -> None:
    path = GraphPath(("Ada", "Babbage"), ("met",), (True,))
    node = TreeNode.of_graph([path, path], layout="records")
    assert node.name == "context"
    assert node.paths == (("Ada", " -> met ->", " Babbage"),) * 2


def test_prompts_of_lists_are_equal_to_those_of_tuples() -> None:
    listed = TreeNode("context", [list(path) for path in ADA], depends_on=["system", "system"])  # type: ignore[arg-type]
    assert listed == TreeNode("context", ADA, depends_on=("system",))
    assert hash(DepPrompt.chain("S", ADA, "Q")) == hash(DepPrompt.chain("S", list(ADA), "Q"))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LinearNode("", "text"), "empty name"),
        (lambda: LinearNode("system", ""), "empty text of a node; at system"),
        (lambda: LinearNode("system", None), "no text; at system; found NoneType"),
        (lambda: LinearNode("task", "Q", depends_on="context"), r"list of names.*'context'"),
        (lambda: LinearNode("task", "Q", depends_on=5), "list of names"),
        (lambda: LinearNode("task", "Q", depends_on=([],)), "found list"),
        (lambda: TreeNode("context", ()), "no path; at context"),
        (lambda: TreeNode("context", (("a",), ())), "no segment; at context, path 1"),
        (lambda: TreeNode("context", (("a", ""),)), "empty segment; at context, path 0, segment 1"),
        (lambda: TreeNode("context", ADA, "forest"), "no such layout; at context"),
        (lambda: TreeNode("context", (("a", "r"),), "records"), "context, path 0; found 2"),
    ],
)
def test_bad_nodes_are_refused_by_name(make: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ((), "no node"),
        (("text",), "found str"),
        ((LinearNode("a", "x"), LinearNode("a", "y")), "one name; found 'a'"),
        ((LinearNode("a", "x", depends_on=("a",)),), "depend on each other; found a -> a"),
        (
            (LinearNode("a", "x", ("b",)), LinearNode("b", "y", ("a",))),
            "depend on each other; found",
        ),
        (
            (LinearNode("context", "x"), LinearNode("task", "y", ("contxt",))),
            "at task; found 'contxt'; valid: context, task; next: did you mean 'context'",
        ),
        (
            (
                LinearNode("system", "x"),
                TreeNode("context", ADA),
                LinearNode("task", "y", ("system",)),
            ),
            "seen by no other; found context, task",
        ),
        ((LinearNode("system", "x"), TreeNode("context", ADA)), "ends with a tree; at context"),
    ],
)
def test_bad_prompts_are_refused_by_name(nodes: tuple[LinearNode, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        DepPrompt(nodes)


def test_a_mask_over_its_bound_is_refused() -> None:
    encoded = encode_prompt(TWO_CONTEXTS, characters)
    with pytest.raises(ConfigError, match="8 rows; valid: at most 7"):
        encoded.mask(most_rows=7)


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(ConfigError, match="'depth'"):
        encode_prompt(TWO_CONTEXTS, characters, "depth")  # type: ignore[arg-type]
