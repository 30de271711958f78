"""SSP with other negatives, for the study: none of the anchor's document, or none but those."""

from dataclasses import replace
from functools import partial

from objectives.negatives import NUM_NEGATIVES
from objectives.ssp import SSP, sample

SSP_EASY = replace(SSP, sample=partial(sample, max_hard=0), negatives="spans of as many sentences of other documents")
# As many as the document has paragraphs for: an anchor's four negatives are of four of them, or fewer.
SSP_HARD = replace(
    SSP, sample=partial(sample, max_hard=NUM_NEGATIVES), negatives="spans of as many sentences of the same document"
)
