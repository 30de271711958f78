"""Inverse Cloze Task (ICT): was the sentence A taken out of the paragraph B?

Lee et al., 2019, "Latent Retrieval for Weakly Supervised Open Domain Question Answering", section 4: a sentence is
the pseudo-question, and what surrounds it is the evidence. Here it is a pair objective. An anchor is a paragraph P of
at least two sentences, and makes five pairs:

- A is one sentence of P, the same one in all five pairs;
- the positive's B is P without A;
- a hard negative's B is another paragraph of the same document without one of its sentences (up to two of the four);
- an easy negative's B is a paragraph of another document, also without a sentence (the rest).

It is SP with an A of one sentence, and draws as SP does.
"""

from dataclasses import replace
from functools import partial

from . import sp

ICT = replace(
    sp.SP,
    name="ict",
    sample=partial(sp.sample, max_a=1),
    asks="whether the sentence A was taken out of the paragraph B",
    negatives="another paragraph without a sentence, of the document (hard, up to two of four) or of others (easy)",
    source="Lee et al., 2019, *Latent Retrieval for Weakly Supervised Open Domain Question Answering*",
)
