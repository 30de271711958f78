"""Controls for SSP: negatives none of which, or all of which, are of the anchor's document; and titles for anchors."""

from dataclasses import replace
from functools import partial

from objectives.negatives import NUM_NEGATIVES
from objectives.ssp import SSP, sample
from objectives.title_sentence import TITLE_SENTENCE, view

SSP_EASY = replace(SSP, sample=partial(sample, max_hard=0), negatives="spans of as many sentences of other documents")
# As many as the document has paragraphs for: an anchor's four negatives are of four of them, or fewer.
SSP_HARD = replace(
    SSP, sample=partial(sample, max_hard=NUM_NEGATIVES), negatives="spans of as many sentences of the same document"
)
# As title_sentence was when the study ran: of its 54,166 documents the 3 whose title is their first sentence count too.
TITLE_FIRST = replace(TITLE_SENTENCE, view=partial(view, with_equal=True))
