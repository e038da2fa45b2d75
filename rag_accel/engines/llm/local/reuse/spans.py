"""Reuse of what was retrieved: texts and relation paths are encoded once, and spliced into prompts.

Texts whose states are not stored are encoded behind the prompt's head, and behind each other as
they were retrieved together: a text that has seen such others keeps more of the answer (FusionRAG
section 3.1). What stands between and behind them in the prompt they never see. Stored state is
moved to the text's position in the prompt.

A node of a tree of relation paths sees the head and its own path alone, at a position by its depth:
its state is what its path alone has there, in every prompt with the same head (DepCache sections
3.1 and 4.2). A tree of which nothing is stored and that is small is computed with the rest of its
prompt, where it stands right behind the head.

Both are encoded by sequences of their own, so that the scheduler batches them. In a prompt with
both, texts and paths see the head and not each other; the tree stands behind what is before it, as
deep as its longest path, and all that is computed behind them sees them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import SupportsInt

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engines.llm.local.batching.rows import LanePool
from rag_accel.engines.llm.local.batching.sequence import Probing, TokenSequence
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.reuse.pending_loads import PendingLoads
from rag_accel.engines.llm.local.reuse.prompt_spans import (
    EncodedUnit,
    PromptSpans,
    Recompute,
    SpanEncoding,
)
from rag_accel.engines.llm.local.reuse.returns import TextReturns
from rag_accel.engines.llm.local.reuse.tree_units import (
    MOST_ROWS,
    PromptTree,
    Subforest,
    missing_subforests,
    node_spans,
)
from rag_accel.kv.dependency.tokens import node_keys
from rag_accel.kv.entry import ChunkLabel
from rag_accel.kv.keys import ChunkSource
from rag_accel.kv.locate import parts_of
from rag_accel.kv.neighbours import MOST_BEFORE, MOST_TOGETHER
from rag_accel.kv.segments import Segment, SegmentedPrompt
from rag_accel.kv.selection import without
from rag_accel.kv.store import ChunkStore


class SpanReuse:
    """The retrieved texts and paths of all prompts of an engine. Used by its worker only.

    Args:
        pool: the lanes of sequences.
        store: keeps the state of texts and nodes.
        model: identifies the weights.
        options: which of them are reused, and how.
        recompute: the choice of recomputed tokens of texts; None for none.
        clock: measures how long a state is looked for.
    """

    def __init__(
        self,
        pool: LanePool,
        store: ChunkStore,
        model: str,
        options: LocalOptions,
        recompute: Recompute | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._pool = pool
        self._store = store
        self._model = model
        self._options = options
        self._recompute = recompute
        self._behind_others = options.kv_recipe == "neighbours"
        self._loads: PendingLoads[PromptSpans] = PendingLoads(store, clock or MonotonicClock())
        self._encoded: dict[bytes, EncodedUnit] = {}
        self._encodings: dict[TokenSequence, SpanEncoding] = {}
        self._prompts: dict[TokenSequence, PromptSpans] = {}
        #: prompts with a tree, whose parts are not looked for yet
        self._waiting: dict[TokenSequence, PromptSpans] = {}
        self._num_encoded = 0
        self._returns = TextReturns()

    @property
    def held_bytes(self) -> int:
        """Return the bytes of the stored states."""
        return self._store.held_bytes

    @property
    def counts(self) -> Mapping[str, int]:
        """Return the counts of the store; from any thread."""
        if not self._options.reuses_texts:
            return self._store.counts
        # A text has two keys in the store, of which it may miss one.
        return {**self._store.counts, "chunk_misses": self._num_encoded}

    @property
    def is_looking(self) -> bool:
        """Tell whether any kept state is looked for, or can be."""
        return len(self._loads) > 0 or (bool(self._waiting) and self._has_turn)

    @property
    def _has_turn(self) -> bool:
        """Tell whether another prompt with a tree may hold the states of its nodes."""
        trees = sum(found.tree is not None for found in self._prompts.values())
        return trees < self._options.max_tree_prompts

    def begin(
        self,
        sequence: TokenSequence,
        prompt: SegmentedPrompt,
        neighbours: Sequence[Segment] | None = None,
    ) -> Iterator[TokenSequence]:
        """Take a prompt; yield the sequences that may begin now: encodings, or itself.

        Args:
            sequence: its tokens.
            prompt: its segments.
            neighbours: texts that each of its texts is encoded behind, too, as they are behind the
                head alone (FusionRAG equation 10); empty for the head alone. By default texts are
                encoded as the engine's recipe says.
        """
        source = ChunkSource(self._model, sequence.namespace, prompt.head)
        if neighbours:
            source = source.behind(neighbour.ids for neighbour in neighbours)
        chunks = tuple((source.key(segment.ids), segment) for segment in prompt.chunks)
        found = PromptSpans(prompt, sequence, chunks, self._store.purges)
        if chunks and neighbours is None and self._behind_others:
            behind = source.behind_others()
            found.behind = {key: behind.key(segment.ids) for key, segment in chunks}
            found.digests = self._digests(sequence, prompt.chunks)
        if prompt.paths is None:
            self._take(found)
            self._find_texts(found)
            yield from self._go_on(found, neighbours or ())
            return
        found.tree = PromptTree(prompt, node_keys(prompt.tree, source))
        sequence.tree = found.tree.place()
        self._waiting[sequence] = found
        yield from self._begin_waiting()

    def pays(
        self,
        prompt: SegmentedPrompt,
        namespace: str,
        seconds: Callable[[int], float],
        *,
        is_asked: bool,
    ) -> bool:
        """Tell whether the texts of a prompt are to be reused rather than computed in it.

        Of paths, its answer depends on whether a tree is computed, and may not on how fast that is.

        Args:
            prompt: with its parts.
            namespace: its tenant.
            seconds: returns how long it takes to compute so many rows.
            is_asked: whether it is to be answered, and not only computed ahead.
        """
        if not prompt.chunks:
            return True
        alone = ChunkSource(self._model, namespace, prompt.head)
        sources = [alone.behind_others(), alone] if self._behind_others else [alone]
        tokens: dict[bytes, int] = {}
        new: dict[bytes, int] = {}
        for ids in {chunk.ids for chunk in prompt.chunks}:
            names = [source.key(ids) for source in sources]
            tokens[names[-1]] = len(ids)
            if not any(name in self._encoded or self._store.may_have(name) for name in names):
                new[names[-1]] = len(ids)
        expected = self._returns.expected(new) if new else 0.0
        if is_asked:
            self._returns.note(tokens)
        texts = sum(len(chunk.ids) for chunk in prompt.chunks)
        whole = len(prompt.ids) - len(prompt.head) - len(prompt.slots)
        later = seconds(whole - texts)
        if self._recompute is not None:
            later += seconds(whole - texts + self._recompute.count(texts))
        gain = seconds(whole) - later
        # What new texts cost beyond this prompt's gain, their later prompts have to bring.
        return gain > 0 and (not new or seconds(sum(new.values())) <= gain * (1 + expected))

    def looked(self, timeout_s: float) -> Iterator[TokenSequence]:
        """Yield the sequences to compute after loads have ended: prompts, encodings.

        Args:
            timeout_s: how long to wait for one.
        """
        begun = list(self._begin_waiting())
        yield from begun
        if timeout_s and not begun and len(self._loads):
            self._store.wait(timeout_s)
        readers: dict[PromptSpans, None] = {}
        for lookup, state in self._loads.ended():
            for found in lookup.readers:
                readers[found] = None
                if found.tree is not None and lookup.key in found.tree.loading:
                    found.tree.loading.discard(lookup.key)
                    if state is not None:
                        found.tree.take(lookup.key, state)
                    continue
                key = found.looked_for.pop(lookup.key)
                if state is not None and found.may_use(lookup.key, state.seen):
                    found.states[key] = state
                else:
                    if state is not None:
                        found.apart.add(key)
                    self._look(found, key, [] if lookup.key == key else [key])
        for found in readers:
            yield from self._go_on(found)

    def is_encoding(self, sequence: TokenSequence) -> bool:
        """Tell whether a sequence encodes a part of a prompt."""
        return sequence in self._encodings

    def encoded(self, sequence: TokenSequence) -> Iterator[TokenSequence]:
        """Keep what a sequence has encoded; yield what may begin now."""
        assert sequence.lane is not None
        encoding = self._forget_encoding(sequence)
        for unit in encoding.units:
            state = self._pool.read(sequence.lane.number, unit.slots, unit.position)
            if encoding.owner is None:
                state = state.having_seen(unit.label.seen)
            self._store.put(unit.name, state, unit.label, unit.parent)
            for reader in encoding.readers:
                reader.take(unit, state)
        for reader in encoding.readers:
            if any(unit.key in reader.own for unit in encoding.units):
                reader.left_head = min(reader.left_head, sequence.from_prefix)
            yield from self._go_on(reader)

    def load(self, sequence: TokenSequence) -> None:
        """Put stored states into the lane that a sequence was given."""
        assert sequence.lane is not None
        lane, taken = sequence.lane.number, len(sequence.lane.ids)
        encoding = self._encodings.get(sequence)
        if encoding is not None and encoding.owner is not None:
            above, head = encoding.owner, len(encoding.owner.prompt.head)
            depths = above.prompt.tree.depths
            self._place_nodes(lane, head, above, encoding.past, lambda node: head + depths[node])
        found = self._prompts.get(sequence)
        if found is None:
            return
        from_lane = 0
        for key, segment in found.chunks:
            if segment.end <= taken:
                from_lane += len(segment.ids)
            else:
                tree = sequence.tree
                position = segment.start if tree is None else tree.position(segment.start)
                self._pool.place(lane, segment.start, [found.states[key]], [position])
        reused = 0
        if found.tree is not None:
            slots, reused = found.prompt.slots, found.tree.num_reused(found.own)
            if slots.stop <= taken:
                from_lane += len(slots)
                reused = len(slots) if found.tree.is_inline else reused
            elif not found.tree.is_inline:
                starts, at = found.prompt.tree.starts, found.prompt.positions.positions
                self._place_nodes(
                    lane, slots.start, found.tree, found.tree.nodes(), lambda node: at[starts[node]]
                )
        # What encoding its parts has computed of the head was computed for this prompt.
        behind = max(0, taken - from_lane - len(found.prompt.head))
        sequence.from_prefix = int(min(sequence.from_prefix - from_lane, found.left_head + behind))
        sequence.from_tree = reused
        sequence.from_chunks = found.num_reused() + reused
        sequence.preprocessed = found.num_preprocessed
        if self._recomputes(found) and encoding is None:
            assert self._recompute is not None
            last = len(sequence.prompt) - 1
            parts = max(found.places[-1].stop, found.prompt.slots.stop)
            start = last if self._recompute.selector.asked == "last" else parts
            sequence.probing = Probing(self._recompute.layer, start)

    def advanced(self, sequence: TokenSequence) -> None:
        """Go on where rows were computed: keep the nodes of a tree that is one with its prompt, and
        choose the tokens of texts that the prompt looks at most, to compute them again.
        """
        found = self._prompts.get(sequence)
        if found is None:
            return
        if found.tree is not None and found.tree.is_inline and found.tree.missing:
            self._keep_inline(found, found.tree)
        probing = sequence.probing
        if probing is None or sequence.pending:
            return
        assert self._recompute is not None
        places, scores = found.places, probing.scores(len(sequence.prompt))
        chosen = self._recompute.choose(scores, places)
        sequence.skipped = found.skipped(without(places, chosen))
        sequence.recomputed = len(chosen)
        sequence.from_chunks = found.num_reused(chosen) + sequence.from_tree
        sequence.probing = None
        # What stands before the first text did not see any.
        sequence.go_on(places[0].start)

    def forget(self, sequence: TokenSequence) -> Iterator[TokenSequence]:
        """Drop a prompt; yield the encoding sequences that nothing waits for any more."""
        self._waiting.pop(sequence, None)
        found = self._prompts.pop(sequence, None)
        if found is None:
            return
        self._store.unpin(found.keys)
        loading = () if found.tree is None else found.tree.loading
        for name in (*found.looked_for, *loading):
            self._loads.forget(name, found)
        for encoding in [one for one in self._encodings.values() if found in one.readers]:
            del encoding.readers[found]
            if not encoding.readers:
                yield from self.forget(encoding.sequence)
                self._forget_encoding(encoding.sequence)
                yield encoding.sequence

    def readers(self, sequence: TokenSequence) -> list[TokenSequence]:
        """Return the prompts that wait for what a sequence encodes, directly or not."""
        found: dict[TokenSequence, None] = {}
        for reader in self._encodings[sequence].readers:
            waiting = reader.sequence
            ends = self.readers(waiting) if self.is_encoding(waiting) else [waiting]
            found.update(dict.fromkeys(ends))
        return list(found)

    def forget_texts(self, texts: Iterable[str], namespace: str) -> None:
        """Remove the states of texts of a namespace, of their parts and of paths; any thread."""
        if self._options.reuses_texts:
            texts = chain.from_iterable(map(parts_of, texts))
        self._store.forget(texts, namespace)

    def close(self) -> None:
        """Forget the states in memory."""
        self._store.close()

    def _recomputes(self, found: PromptSpans) -> bool:
        """Tell whether tokens of a prompt's texts are computed again."""
        return self._recompute is not None and bool(found.chunks)

    def _digests(self, sequence: TokenSequence, texts: Iterable[Segment]) -> frozenset[str]:
        # Texts of prompts that come as token ids may have no text.
        names = (segment.text or " ".join(map(str, segment.ids)) for segment in texts)
        return self._store.digests(names, sequence.namespace)

    def _take(self, found: PromptSpans) -> None:
        self._prompts[found.sequence] = found
        self._store.pin(found.keys)
        # What stands before the first text is computed as in any prompt that begins alike.
        found.sequence.exact = len(found.prompt.before_texts)
        found.sequence.skipped = found.skipped(found.places)

    def _begin_waiting(self) -> Iterator[TokenSequence]:
        """Yield the sequences to compute for the next prompts: encodings, or a prompt itself."""
        while self._waiting and self._has_turn:
            found = self._waiting.pop(next(iter(self._waiting)))
            assert found.tree is not None
            others = [*self._prompts.values(), *self._waiting.values()]
            self._store.began([found.keys, *(other.keys for other in others)])
            self._take(found)
            self._find_nodes(found, found.tree, is_alone=not others)
            self._find_texts(found)
            yield from self._go_on(found)

    def _find_nodes(self, found: PromptSpans, tree: PromptTree, *, is_alone: bool) -> None:
        """Look for the states of a prompt's nodes."""
        # Children first: of those least lately used, none outlives its parent.
        for key in reversed(tree.keys):
            if key in tree.missing and (state := self._store.find(key)) is not None:
                tree.take(key, state)
        for key in tree.missing:
            if self._loads.begin(key, found):
                tree.loading.add(key)
        slots = found.prompt.slots
        # Rows that are computed with the prompt see all that stands before them.
        stands_alone = is_alone and not found.chunks and slots.start == len(found.prompt.head)
        is_new = len(tree.missing) == len(tree.nodes()) and not tree.loading
        is_answered = found.sequence.max_new > 0
        tree.is_inline = is_new and stands_alone and is_answered and len(slots) <= MOST_ROWS
        found.sequence.skipped = found.skipped(found.places)

    def _find_texts(self, found: PromptSpans) -> None:
        """Look for the states of a prompt's texts."""
        for key in found.texts:
            self._look(found, key, [found.behind[key], key] if found.behind else [key])

    def _look(self, found: PromptSpans, key: bytes, names: Sequence[bytes]) -> None:
        """Look for the state of a text under some keys of the store, the best first."""
        absent: list[bytes] = []
        for name in names:
            if self._waits(found, key, name):
                return
            state = self._store.find(name)
            if state is not None and found.may_use(name, state.seen):
                found.states[key] = state
                return
            if state is not None or name in self._encoded:
                found.apart.add(key)
            else:
                absent.append(name)
        for name in absent:  # the store is asked for what may take long once memory has none
            if self._loads.begin(name, found):
                found.looked_for[name] = key
                return
        found.unknown[key] = None

    def _waits(self, found: PromptSpans, key: bytes, name: bytes) -> bool:
        """Tell whether a state that is encoded now is of use to a prompt, which waits for it."""
        unit = self._encoded.get(name)
        if unit is None or not found.may_use(name, unit.label.seen):
            return False
        found.encoded[key] = unit
        unit.encoding.readers[found] = None
        return True

    def _go_on(
        self, found: PromptSpans, neighbours: Sequence[Segment] = ()
    ) -> Iterator[TokenSequence]:
        """Encode what is nowhere, once all is looked for; yield the sequences that may begin."""
        if found.unknown and not found.looked_for:
            yield from self._encode_unknown(found, neighbours)
        if found.tree is not None and found.tree.missing and not found.tree.is_inline:
            yield from self._encode_nodes(found, found.tree)
        if not found.is_ready:
            return
        if not self._recomputes(found) and not self.is_encoding(found.sequence):
            # What stands behind the parts is the same in all prompts that take the same states.
            found.sequence.exact = None
            found.sequence.marked = found.marked()
        yield found.sequence

    def _encode_unknown(
        self, found: PromptSpans, neighbours: Sequence[Segment]
    ) -> Iterator[TokenSequence]:
        together: list[bytes] = []
        for key, segment in found.texts.items():
            if key not in found.unknown:
                continue
            del found.unknown[key]
            # Another prompt may have begun with it while the store looked for others.
            if self._waits(found, key, found.behind.get(key, key)) or self._waits(found, key, key):
                continue
            if found.behind and key not in found.apart and found.behind[key] not in self._encoded:
                together.append(key)
                continue
            sequence = self._encode(found, [key], neighbours)
            if neighbours:
                yield from self.begin(sequence, _joined(found, neighbours, segment.ids), ())
            else:
                yield sequence
        for first in range(0, len(together), MOST_TOGETHER):
            yield self._encode_together(found, together[first : first + MOST_TOGETHER])

    def _encode_together(self, found: PromptSpans, keys: Sequence[bytes]) -> TokenSequence:
        """Return the sequence that encodes texts behind each other, and behind kept ones."""
        before: dict[bytes, Segment] = {}
        seen: frozenset[str] = frozenset()
        start = found.texts[keys[0]].start
        for key, segment in reversed(found.chunks):
            if segment.start < start and key in found.states and len(before) < MOST_BEFORE:
                more = found.states[key].seen | self._digests(found.sequence, [segment])
                if len(seen | more) <= MOST_TOGETHER:
                    before[key] = segment
                    seen |= more
        kept = dict(reversed(before.items()))
        sequence = self._encode(found, keys, tuple(kept.values()), seen)
        if kept:
            own = sequence.prompt[self._encodings[sequence].units[0].slots.start :]
            joined = _joined(found, tuple(kept.values()), own)
            chunks = tuple(zip(kept, joined.chunks, strict=True))
            states = {key: found.states[key] for key in kept}
            self._take(PromptSpans(joined, sequence, chunks, found.purges, states=states))
        return sequence

    def _encode(
        self,
        found: PromptSpans,
        keys: Sequence[bytes],
        before: Sequence[Segment],
        seen: frozenset[str] | None = None,
    ) -> TokenSequence:
        """Return the sequence that encodes texts of a prompt behind its head, and behind others.

        Args:
            found: the prompt.
            keys: of the texts, in their order.
            before: the texts between the head and them.
            seen: digests of these and of all that they have seen; of these alone by default.
        """
        reader, texts = found.sequence, [found.texts[key] for key in keys]
        ids = _joined(found, before, tuple(id for text in texts for id in text.ids)).ids
        sequence = TokenSequence(
            ids, 0, reader.request, reader.namespace, reader.arrived_at, reader.depth + 1
        )
        encoding = self._encodings[sequence] = SpanEncoding(sequence)
        seen = self._digests(reader, before) if seen is None else seen
        start = len(ids) - sum(len(text.ids) for text in texts)
        for key, text in zip(keys, texts, strict=True):
            label = ChunkLabel(reader.namespace, text.text, seen, found.purges)
            name = found.behind[key] if seen and found.behind else key
            slots = range(start, start + len(text.ids))
            unit = EncodedUnit(key, name, slots, start, label, encoding)
            encoding.units.append(unit)
            self._encoded[name] = unit
            self._waits(found, key, name)
            found.own.add(key)
            self._num_encoded += 1
            start, seen = slots.stop, seen | self._digests(reader, [text])
        return sequence

    def _encode_nodes(self, found: PromptSpans, tree: PromptTree) -> Iterator[TokenSequence]:
        """Yield the sequences that encode what is missing, is not encoded yet, and can be."""
        if tree.loading:
            return
        units = [self._encoded.get(key) for key in tree.missing]
        for unit in units:
            if unit is not None:
                unit.encoding.readers[found] = None
        if None not in units:
            return  # usual: this is asked after each of many small encodings
        awaited = [key in self._encoded for key in tree.keys]
        for part in missing_subforests(found.prompt, tree.cached(), awaited):
            yield self._encode_subforest(found, tree, part)

    def _encode_subforest(
        self, found: PromptSpans, tree: PromptTree, part: Subforest
    ) -> TokenSequence:
        reader, head = found.sequence, len(found.prompt.head)
        sequence = TokenSequence(
            part.ids, 0, reader.request, reader.namespace, reader.arrived_at, reader.depth + 1
        )
        sequence.tree = part.place
        sequence.exact = head
        if part.place.slots.start > head:
            sequence.skipped = (range(head, part.place.slots.start),)
        encoding = self._encodings[sequence] = SpanEncoding(sequence, past=part.past, owner=tree)
        encoding.readers[found] = None
        for unit in self._node_units(found, tree, part.nodes, part.place.slots.start, encoding):
            encoding.units.append(unit)
            self._encoded.setdefault(unit.name, unit)
            found.own.add(unit.key)
            self._num_encoded += 1
        return sequence

    def _node_units(
        self,
        found: PromptSpans,
        tree: PromptTree,
        nodes: Sequence[int],
        start: int,
        encoding: SpanEncoding,
    ) -> Iterator[EncodedUnit]:
        """Yield nodes that stand one behind the other from a slot on, as units of an encoding."""
        namespace = found.sequence.namespace
        spans = node_spans(found.prompt, nodes, start)
        for node, (slots, position) in zip(nodes, spans, strict=True):
            above = (tree.texts[other] for other in found.prompt.tree.ancestors(node))
            seen = self._store.digests(above, namespace)
            label = ChunkLabel(namespace, tree.texts[node], seen, found.purges)
            key = tree.keys[node]
            yield EncodedUnit(key, key, slots, position, label, encoding, tree.parent_key(node))

    def _keep_inline(self, found: PromptSpans, tree: PromptTree) -> None:
        """Keep the nodes of a tree that was computed with the rest of its prompt."""
        sequence, slots = found.sequence, found.prompt.slots
        assert sequence.lane is not None
        if sequence.computed < slots.stop:
            return
        units = self._node_units(found, tree, tree.nodes(), slots.start, SpanEncoding(sequence))
        for unit in units:
            state = self._pool.read(sequence.lane.number, unit.slots, unit.position)
            self._store.put(unit.name, state, unit.label, unit.parent)
            self._num_encoded += 1
        tree.missing.clear()

    def _place_nodes(
        self,
        lane: int,
        slot: int,
        tree: PromptTree,
        nodes: Sequence[int],
        position: Callable[[int], SupportsInt],
    ) -> None:
        """Put nodes one behind the other into slots from this one on.

        Args:
            lane: the lane.
            slot: of the first token.
            tree: has their states.
            nodes: some of which may have no tokens.
            position: returns that of the first token of a node.
        """
        starts = tree.prompt.tree.starts
        filled = [node for node in nodes if starts[node] < starts[node + 1]]
        if filled:
            states = [tree.states[tree.keys[node]] for node in filled]
            self._pool.place(lane, slot, states, [int(position(node)) for node in filled])

    def _forget_encoding(self, sequence: TokenSequence) -> SpanEncoding:
        if (spliced := self._prompts.pop(sequence, None)) is not None:
            self._store.unpin(spliced.keys)
        encoding = self._encodings.pop(sequence)
        for unit in encoding.units:
            if self._encoded.get(unit.name) is unit:
                del self._encoded[unit.name]
        return encoding


def _joined(found: PromptSpans, texts: Sequence[Segment], last: tuple[int, ...]) -> SegmentedPrompt:
    """Return the segments of a prompt's head, texts and the tokens behind them."""
    head = found.prompt.head
    segments, at = [Segment("head", head, 0)] if head else [], len(head)
    for text in texts:
        segments.append(Segment("chunk", text.ids, at, text.document, text.text))
        at = segments[-1].end
    return SegmentedPrompt((*segments, Segment("glue", last, at)))
