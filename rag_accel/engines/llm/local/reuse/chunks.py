"""Reuse of retrieved texts: their encoding, and the splicing of their state into prompts.

A text whose state is not stored is encoded behind the prompt's head, by a sequence of its own; the
state that a whole prompt left is never stored, for it has seen the tokens before the text. Stored
state is moved to the text's position in the prompt (FusionRAG section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engines.llm.local.batching.rows import LanePool
from rag_accel.engines.llm.local.batching.sequence import Probing, TokenSequence
from rag_accel.engines.llm.local.reuse.pending_loads import PendingLoads
from rag_accel.engines.llm.local.reuse.prompt_state import Encoding, PromptChunks, Recompute
from rag_accel.kv.entry import ChunkLabel, LaneState
from rag_accel.kv.keys import ChunkSource
from rag_accel.kv.locate import parts_of
from rag_accel.kv.segments import Segment, SegmentedPrompt
from rag_accel.kv.selection import without
from rag_accel.kv.store import ChunkStore


class ChunkReuse:
    """The retrieved texts of all prompts of an engine. Used by its worker only.

    Args:
        pool: the lanes of sequences.
        store: keeps the state of texts.
        model: identifies the weights.
        recompute: the choice of recomputed tokens; None for none.
        clock: measures how long a text is looked for.
    """

    def __init__(
        self,
        pool: LanePool,
        store: ChunkStore,
        model: str,
        recompute: Recompute | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._pool = pool
        self._store = store
        self._model = model
        self._recompute = recompute
        self._pending_loads: PendingLoads[PromptChunks] = PendingLoads(
            store, clock or MonotonicClock()
        )
        self._encodings: dict[bytes, Encoding] = {}
        self._by_sequence: dict[TokenSequence, Encoding] = {}
        self._prompts: dict[TokenSequence, PromptChunks] = {}

    @property
    def held_bytes(self) -> int:
        return self._store.held_bytes

    def begin(
        self, sequence: TokenSequence, prompt: SegmentedPrompt, neighbours: Sequence[Segment] = ()
    ) -> Iterator[TokenSequence]:
        """Take a prompt; yield the sequences that may begin now: encodings, or itself.

        Args:
            sequence: its tokens.
            prompt: its segments.
            neighbours: texts that each of its texts is encoded behind, too, as they are behind the
                head alone (FusionRAG equation 10).
        """
        source = ChunkSource(self._model, sequence.namespace, prompt.head)
        if neighbours:
            source = source.behind(neighbour.ids for neighbour in neighbours)
        chunks = tuple((source.key(segment.ids), segment) for segment in prompt.chunks)
        found = self._prompts[sequence] = PromptChunks(prompt, sequence, chunks)
        self._store.pin(found.keys)
        # What stands before the first text is computed as in any prompt that begins alike.
        sequence.exact = len(prompt.before_texts)
        sequence.skipped = found.places
        for key, segment in chunks:
            if key in found.states or key in found.missing:
                continue
            if (state := self._store.find(key)) is not None:
                found.states[key] = state
                continue
            found.missing.add(key)
            encoding = self._encodings.get(key)
            if encoding is None:
                if not neighbours and self._pending_loads.begin(key, found):
                    continue
                found.own.add(key)
                encoding = self._encode(key, prompt.head, segment, sequence, neighbours)
                yield from self._first(encoding, prompt.head, neighbours)
            encoding.readers[found] = None
        if self._is_ready(sequence):
            yield sequence

    def rows(self, prompt: SegmentedPrompt) -> list[int]:
        texts = sum(len(chunk.ids) for chunk in prompt.chunks)
        others = len(prompt.ids) - len(prompt.head) - texts
        if self._recompute is None:
            return [others]
        return [others, others + self._recompute.count(texts)]

    @property
    def is_looking(self) -> bool:
        """Tell whether the kept state of any text is looked for."""
        return len(self._pending_loads) > 0

    def looked(self, timeout_s: float) -> Iterator[TokenSequence]:
        """Yield the sequences to compute after loads have ended: prompts, encodings.

        Args:
            timeout_s: how long to wait for one.
        """
        if timeout_s:
            self._store.wait(timeout_s)
        for lookup, state in self._pending_loads.ended():
            if state is None:
                first = next(iter(lookup.readers))
                first.own.add(lookup.key)
                segment = dict(first.chunks)[lookup.key]
                encoding = self._encode(lookup.key, first.prompt.head, segment, first.sequence)
                encoding.readers.update(lookup.readers)
                yield encoding.sequence
            else:
                yield from self._hand_out(lookup.key, state, lookup.readers)

    def _is_ready(self, sequence: TokenSequence) -> bool:
        """Tell whether all texts of a prompt are there; of one without texts, they are."""
        found = self._prompts.get(sequence)
        return found is None or not found.missing

    def is_encoding(self, sequence: TokenSequence) -> bool:
        return sequence in self._by_sequence

    def encoded(self, sequence: TokenSequence) -> Iterator[TokenSequence]:
        """Keep the text that a sequence has encoded; yield the prompts that may begin now."""
        assert sequence.lane is not None
        encoding = self._forget_encoding(sequence)
        self._prompts.pop(sequence, None)
        for reader in encoding.readers:
            if encoding.key in reader.own:
                reader.left_head = min(reader.left_head, sequence.from_prefix)
        state = self._pool.read(sequence.lane.number, encoding.slots)
        self._store.put(encoding.key, state, encoding.label)
        yield from self._hand_out(encoding.key, state, encoding.readers)

    def load(self, sequence: TokenSequence) -> None:
        """Put the state of its texts into the lane that a prompt was given."""
        found = self._prompts.get(sequence)
        if found is None:
            return
        assert sequence.lane is not None
        for key, segment in found.chunks:
            self._pool.write(sequence.lane.number, segment.start, found.states[key])
        # What encoding its texts has computed of the head was computed for this prompt.
        head, exact = len(found.prompt.head), sequence.exact or 0
        behind = max(0, min(sequence.computed, exact) - head)
        sequence.from_prefix = int(min(sequence.from_prefix, found.left_head + behind))
        sequence.from_chunks = found.num_reused()
        sequence.preprocessed = found.num_preprocessed
        if self._recompute is not None and not self.is_encoding(sequence):
            last = len(sequence.prompt) - 1
            start = last if self._recompute.selector.asked == "last" else found.places[-1].stop
            sequence.probing = Probing(self._recompute.layer, start)

    def advanced(self, sequence: TokenSequence) -> None:
        """Choose the tokens that a prompt looks at most, once it is known; compute it again."""
        recompute, probing = self._recompute, sequence.probing
        if probing is None or sequence.pending:
            return
        assert recompute is not None
        found = self._prompts[sequence]
        places, scores = found.places, probing.scores(len(sequence.prompt))
        chosen = recompute.choose(scores, places)
        sequence.skipped = without(places, chosen)
        sequence.recomputed = len(chosen)
        sequence.from_chunks = found.num_reused(chosen)
        sequence.probing = None
        # What stands before the first text did not see any.
        sequence.go_on(places[0].start)

    def forget(self, sequence: TokenSequence) -> Iterator[TokenSequence]:
        found = self._prompts.pop(sequence, None)
        if found is None:
            return
        self._store.unpin(found.keys)
        for key in found.missing:
            if self._pending_loads.forget(key, found):
                continue
            encoding = self._encodings[key]
            del encoding.readers[found]
            if not encoding.readers:
                yield from self.forget(encoding.sequence)
                yield self._forget_encoding(encoding.sequence).sequence

    def readers(self, sequence: TokenSequence) -> list[TokenSequence]:
        found: list[TokenSequence] = []
        for reader in self._by_sequence[sequence].readers:
            waiting = reader.sequence
            found += self.readers(waiting) if self.is_encoding(waiting) else [waiting]
        return found

    @property
    def counts(self) -> Mapping[str, int]:
        return self._store.counts

    def forget_texts(self, texts: Iterable[str], namespace: str) -> None:
        """Remove the states of texts of a namespace and of their parts; from any thread."""
        self._store.forget((part for text in texts for part in parts_of(text)), namespace)

    def close(self) -> None:
        self._store.close()

    def _hand_out(
        self, key: bytes, state: LaneState, readers: Iterable[PromptChunks]
    ) -> Iterator[TokenSequence]:
        """Give prompts the state of a text; yield those that may begin now."""
        for reader in readers:
            reader.states[key] = state
            reader.missing.discard(key)
            if not reader.missing:
                yield reader.sequence

    def _first(
        self, encoding: Encoding, head: tuple[int, ...], neighbours: Sequence[Segment]
    ) -> Iterator[TokenSequence]:
        """Yield the sequences to compute first of an encoding: itself, or its neighbours."""
        if neighbours:
            last = encoding.sequence.prompt[encoding.slots.start :]
            yield from self.begin(encoding.sequence, _joined(head, neighbours, last))
        else:
            yield encoding.sequence

    def _encode(
        self,
        key: bytes,
        head: tuple[int, ...],
        segment: Segment,
        reader: TokenSequence,
        neighbours: Sequence[Segment] = (),
    ) -> Encoding:
        before = (*head, *(token for neighbour in neighbours for token in neighbour.ids))
        ids = (*before, *segment.ids)
        sequence = TokenSequence(
            ids, 0, reader.request, reader.namespace, reader.arrived_at, reader.depth + 1
        )
        seen = tuple(neighbour.text for neighbour in neighbours)
        label = ChunkLabel(reader.namespace, segment.text, seen, self._store.purges)
        encoding = Encoding(key, sequence, range(len(before), len(ids)), label)
        self._encodings[key] = self._by_sequence[sequence] = encoding
        return encoding

    def _forget_encoding(self, sequence: TokenSequence) -> Encoding:
        encoding = self._by_sequence.pop(sequence)
        del self._encodings[encoding.key]
        return encoding


def _joined(
    head: tuple[int, ...], texts: Sequence[Segment], last: tuple[int, ...]
) -> SegmentedPrompt:
    """Return the segments of a head, texts and the tokens behind them."""
    segments = [Segment("head", head, 0)] if head else []
    for text in texts:
        start = segments[-1].end if segments else 0
        segments.append(Segment("chunk", text.ids, start, text.document, text.text))
    return SegmentedPrompt((*segments, Segment("glue", last, segments[-1].end)))
