"""Views a shard as documents of a few whole texts: title, body, an answer, the body of another document.

The objectives of forums pair such texts, and not spans of paragraphs. The view of a shard has one paragraph for each
document that an objective can use. Its "sentences" 0, 2, 4 ... are the document's texts; 1, 3, 5 ... are the unused
stretches between them. Only offsets are copied: the columns of a shard are in one file, so that the token ids of all of
them are one array.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_pipeline.corpus import Shard

from .block import Block, Spans


@dataclass(frozen=True)
class TextColumn:
    """Locates a text of each document: ``start`` and ``end``, ``[D]``, in ``values``. Equal bounds: no text."""

    start: np.ndarray
    end: np.ndarray
    values: pa.Array

    def take(self, rows: np.ndarray) -> "TextColumn":
        """Returns the texts of these documents, ``[n]``; no text for a negative row."""
        return TextColumn(np.where(rows < 0, 0, self.start[rows]), np.where(rows < 0, 0, self.end[rows]), self.values)

    def drop(self, rows: np.ndarray) -> "TextColumn":
        """Removes the texts of these documents, ``[D]`` bool."""
        return self.take(np.where(rows, -1, np.arange(len(rows))))

    @property
    def lengths(self) -> np.ndarray:
        return self.end - self.start


def find_nothing(shard: Shard) -> TextColumn:
    """Returns no text for each document, in place of a column that the corpus lacks."""
    return find_bodies(shard).take(np.full(len(shard.rows), -1))


def find_titles(shard: Shard) -> TextColumn:
    """Returns the title of each document."""
    if "title_tokens" not in shard.rows.schema.names:
        return find_nothing(shard)
    titles = shard.rows.column("title_tokens")
    bounds = _get_offsets(titles.values)[_get_offsets(titles)]
    return TextColumn(bounds[:-1], bounds[1:], titles.values.values)


def find_bodies(shard: Shard) -> TextColumn:
    """Returns all paragraphs of each document, as one text."""
    bounds = shard.sentence_starts[shard.paragraph_starts[shard.document_starts]].astype(np.int64)
    return TextColumn(bounds[:-1], bounds[1:], shard.rows.column("tokens").values.values.values)


def find_accepted_answers(shard: Shard) -> TextColumn:
    """Returns the accepted answer of each document."""
    if "answers" not in shard.rows.schema.names:
        return find_nothing(shard)
    answers = shard.rows.column("answers")
    accepted = shard.rows.column("accepted").to_numpy().astype(np.int64)
    bounds = _get_offsets(answers.values.values)[_get_offsets(answers.values)]
    index = np.where(accepted >= 0, _get_offsets(answers)[:-1] + accepted, -1)
    all_answers = TextColumn(bounds[:-1], bounds[1:], answers.values.values.values)
    return all_answers.take(index) if len(bounds) > 1 else find_nothing(shard)


def find_linked(shard: Shard) -> np.ndarray:
    """Returns, for each document, the row of the first one in this shard that it links to, -1 for none: ``[D]``."""
    linked = np.full(len(shard.rows), -1, dtype=np.int64)
    if "links" not in shard.rows.schema.names:
        return linked
    names, linked_names, source = _name_documents(shard)
    target = pc.index_in(linked_names, value_set=names).fill_null(-1).to_numpy()
    is_usable = (target >= 0) & (target != source)
    rows, first = np.unique(source[is_usable], return_index=True)
    linked[rows] = target[is_usable][first]
    return linked


def _name_documents(shard: Shard) -> tuple[pa.Array, pa.Array, np.ndarray]:
    """Names documents and link targets by source and id: two files may have the same ids. Adds each link's document."""
    links, source = shard.rows.column("links"), shard.rows.column("source")
    rows = np.repeat(np.arange(len(links)), np.diff(_get_offsets(links)))
    join = pc.binary_join_element_wise
    return join(source, shard.rows.column("id"), "\n"), join(source.take(pa.array(rows)), links.values, "\n"), rows


def find_groups(shard: Shard) -> np.ndarray:
    """Returns, for each document, the row of the first one that links connect it with, in any direction: ``[D]``.

    Two documents that link to the same third one are connected, even if that one is not in the shard.
    """
    rows = np.arange(len(shard.document_starts) - 1)
    if "links" not in shard.rows.schema.names:
        return rows
    *parts, linking = _name_documents(shard)
    names = pa.concat_arrays(parts).dictionary_encode()
    source, target = np.split(names.indices.to_numpy(), [len(rows)])
    group = connect(source[linking], target, len(names.dictionary))[source]
    _, first, number = np.unique(group, return_index=True, return_inverse=True)
    return first[number]


def connect(source: np.ndarray, target: np.ndarray, count: int) -> np.ndarray:
    """Returns, for each of ``count`` nodes, the lowest node that edges connect it with."""
    lowest, before = np.arange(count), None
    while before is None or (lowest != before).any():
        before = lowest.copy()
        np.minimum.at(lowest, source, before[target])
        np.minimum.at(lowest, target, before[source])
        lowest = lowest[lowest]
    return lowest


def find_block_groups(block: Block) -> np.ndarray:
    """Returns, for each paragraph of a block, the row of the first document of its document's group: ``[P]``."""
    shard_number, rows = block.find_rows(np.arange(len(block.paragraph)))
    for number, shard in enumerate(block.shards):
        in_shard = shard_number == number
        rows[in_shard] = find_groups(shard)[rows[in_shard]]
    return rows


def view_texts(shard: Shard, rows: np.ndarray, texts: list[TextColumn]) -> Shard:
    """Returns the shard as documents of texts.

    rows:  ``[n]`` the rows of usable documents, ascending; the others have no paragraph in the view
    texts: T columns of a text per document
    """
    tokens, origins = _join_values(shard, [text.values for text in texts])
    bounds = np.empty((len(rows), len(texts), 2), dtype=np.int64)
    for number, (text, origin) in enumerate(zip(texts, origins, strict=True)):
        bounds[:, number, 0], bounds[:, number, 1] = text.start[rows] + origin, text.end[rows] + origin
    used = np.zeros(len(shard.document_starts), dtype=np.int64)
    used[1 + rows] = 1
    paragraph_starts = np.arange(len(rows) + 1) * 2 * len(texts)
    return Shard(shard.rows, tokens, np.append(bounds, 0), paragraph_starts, np.cumsum(used), shard.held_out, shard)


def make_spans(documents: np.ndarray, *indices: int) -> Spans:
    """Returns the spans of one text of each document of a view, or of two consecutive texts, joined."""
    start = np.full_like(documents, 2 * indices[0])
    if len(indices) == 1:
        return Spans(documents, start, start + 1)
    end = np.full_like(documents, 2 * indices[-1] + 1)
    return Spans(documents, start, end, start + 1, end - 1)


def find_equal(a: TextColumn, b: TextColumn) -> np.ndarray:
    """Returns ``[D]``: which documents have the same tokens in both texts."""
    equal = a.lengths == b.lengths
    values = a.values.to_numpy(), b.values.to_numpy()
    for k in np.flatnonzero(equal).tolist():
        equal[k] = np.array_equal(values[0][a.start[k] : a.end[k]], values[1][b.start[k] : b.end[k]])
    return equal


def _get_offsets(column: pa.ListArray) -> np.ndarray:
    return column.offsets.to_numpy().astype(np.int64)


def _join_values(shard: Shard, columns: list[pa.Array]) -> tuple[np.ndarray, list[int]]:
    """Returns one array over the values of several columns of a shard, and where in it each column begins."""
    size = shard.tokens.dtype.itemsize
    starts = [values.buffers()[1].address + values.offset * size if len(values) else 0 for values in columns]
    low = min(filter(None, starts), default=0)
    if not low:
        return shard.tokens, starts
    high = max(start + len(values) * size for start, values in zip(starts, columns, strict=True))
    # The columns are parts of one memory-mapped file, and Arrow aligns each to 8 bytes.
    tokens = np.frombuffer(pa.foreign_buffer(low, high - low, base=shard.rows), dtype=shard.tokens.dtype)
    return tokens, [max(start - low, 0) // size for start in starts]
