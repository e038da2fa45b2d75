"""Layouts of relation paths as sequences of segments: two trees, and two texts to compare with.

    a r b s c, a r b t d

    tree      a( r( b( s( c( end ) ) t( d( end ) ) ) ) )      each common prefix once
    records   a( r( b( end ) ) )  b( s( c( end ) ) t( d( end ) ) )    each head entity once
    flat      a r b s c end a r b t d end                     path after path, causal
    grouped   a r b end b s c end t d end                     each head entity once, causal

In ``records`` an entity in the middle of a path begins a record of its own, shared by all paths
that pass it. Its tokens do not see the entity that the path began with. ``flat`` is the paper's
baseline; ``grouped`` is a prompt as a careful user writes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, assert_never, get_args

from rag_accel.errors import ConfigError
from rag_accel.kv.dependency.paths import PATH_END, Segments, checked_paths
from rag_accel.kv.dependency.tree import (
    DependencyTree,
    Encode,
    PrefixTree,
    chain_tree,
    path_tree,
)

#: Each way of standing in a prompt.
Layout = Literal["tree", "records", "flat", "grouped"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

_SPACE = " "


def lay_out(paths: Iterable[Iterable[str]], layout: Layout, encode: Encode) -> DependencyTree:
    """Return relation paths in a layout; ``flat`` and ``grouped`` are chains.

    The text of a chain is an ordinary prompt's. Its tokens here are those of its segments, so that
    layouts can be compared; tokenised as one text it may have fewer.

    Args:
        paths: the segments of each, in order.
        layout: how they stand.
        encode: called once for each distinct segment.

    Raises:
        ConfigError: as ``path_tree`` does, and if there is no such layout, or a path does not end
            with an entity where entities are told apart (``records``, ``grouped``).
    """
    check_layout(layout)
    if layout == "tree":
        return path_tree(paths, encode)
    checked = checked_paths(paths)
    check_entities(checked, layout)
    match layout:
        case "records":
            return _records(checked, encode)
        case "flat":
            return chain_tree([text for path in checked for text in (*path, PATH_END)], encode)
        case "grouped":
            return chain_tree(_grouped(checked), encode)
        case _:
            assert_never(layout)


def check_layout(layout: object, where: str | None = None) -> None:
    """Raise ConfigError unless this is the name of a layout."""
    if layout not in LAYOUTS:
        raise ConfigError(
            "there is no such layout", where=where, found=repr(layout), valid=", ".join(LAYOUTS)
        )


def check_entities(paths: Iterable[Segments], layout: Layout, where: str | None = None) -> None:
    """Raise ConfigError unless entities can be told: entity, relation, entity, ..., entity."""
    if layout in ("tree", "flat"):
        return
    for number, path in enumerate(paths):
        if len(path) % 2 == 0:
            raise ConfigError(
                "a path does not end with an entity",
                where=f"path {number}" if where is None else f"{where}, path {number}",
                found=f"{len(path)} segments",
                valid="an odd number: entity, relation, entity, ...",
                hint="or take layout='tree', which does not tell entities apart",
            )


def _records(paths: tuple[Segments, ...], encode: Encode) -> DependencyTree:
    tree = PrefixTree()
    for entity, edges in _edges_by_entity(paths).items():
        below = tree.insert((entity,))
        for edge in edges or [()]:
            tree.insert((PATH_END,), tree.insert(edge, below))
    return tree.finish(encode)


def _grouped(paths: tuple[Segments, ...]) -> list[str]:
    texts: list[str] = []
    for entity, edges in _edges_by_entity(paths).items():
        texts.append(entity)
        for edge in edges or [()]:
            texts += (*edge, PATH_END)
    return texts


def _edges_by_entity(paths: tuple[Segments, ...]) -> dict[str, dict[Segments, None]]:
    """Return the distinct edges of each head entity, all in the order of their first appearance.

    One without edges is a path by itself; a path of one entity adds nothing to one that has some.
    """
    found: dict[str, dict[Segments, None]] = {}
    for path in paths:
        for at in range(0, max(len(path) - 2, 1), 2):
            edges = found.setdefault(_as_head_entity(path[at], at), {})
            if len(path) > 1:
                edges[path[at + 1 : at + 3]] = None
    return found


def _as_head_entity(text: str, at: int) -> str:
    """Return an entity as it begins a record: the space that joins it to a path is left out.

    So an entity that begins one path and stands within another begins one record.
    """
    return text if at == 0 else text.removeprefix(_SPACE) or text
