"""Controls for SSP: negatives none of which, or all of which, are of the anchor's document; and titles for anchors."""

from dataclasses import replace
from functools import partial

from data_pipeline.corpus import Shard
from data_pipeline.sampling.texts import Texts, find_bodies, find_titles
from objectives.forums import view_nothing, view_questions
from objectives.negatives import NUM_NEGATIVES
from objectives.ssp import SSP, sample
from objectives.title_body import TITLE_BODY

SSP_EASY = replace(SSP, sample=partial(sample, max_hard=0), negatives="spans of as many sentences of other documents")
# As many as the document has paragraphs for: an anchor's four negatives are of four of them, or fewer.
SSP_HARD = replace(
    SSP, sample=partial(sample, max_hard=NUM_NEGATIVES), negatives="spans of as many sentences of the same document"
)


def view_first_sentences(shard: Shard) -> Shard:
    """The documents that have a title, each as its title and its first sentence."""
    titles, bodies = find_titles(shard), find_bodies(shard)
    if titles is None:
        return view_nothing(shard)
    first = shard.paragraph_starts[shard.document_starts[:-1]]  # sentences, [D]; one behind the last for no text
    end = shard.sentence_starts[(first + 1).clip(max=len(shard.sentence_starts) - 1)]
    return view_questions(shard, titles, Texts(bodies.start, end.clip(max=bodies.end), bodies.values))


# What any titled text has instead of labels: is B the first sentence of the document with the title A?
TITLE_FIRST = replace(
    TITLE_BODY,
    view=view_first_sentences,
    needs="a document with a title and a sentence",
    asks="whether B is the first sentence of the document with the title A",
    negatives="the first sentence of another document",
    source="as the body of a question in TITLE_BODY",
)
