"""Inverse Cloze Task (ICT): was the sentence A taken out of the paragraph B?

Lee et al., 2019, "Latent Retrieval for Weakly Supervised Open Domain Question Answering", section 4: a sentence is
the pseudo-question and what surrounds it the evidence. Here as a pair objective: A is one sentence of a paragraph, a
positive's B the paragraph without it, and negatives are made as in SP (another paragraph without one of its
sentences). It is SP with an A of one sentence.
"""

from functools import partial

from data_pipeline.sampling.pairs import TWO_SENTENCES, Objective, has_two_sentences

from . import sp

ICT = Objective(
    name="ict",
    max_length=256,
    num_draws=sp.NUM_DRAWS,
    usable=has_two_sentences,
    needs=TWO_SENTENCES,
    sample=partial(sp.sample, max_a=1),
    asks="whether the sentence A was taken out of the paragraph B",
    negatives="another paragraph without a sentence, of the document (hard, up to two of four) or of others (easy)",
    source="Lee et al., 2019, *Latent Retrieval for Weakly Supervised Open Domain Question Answering*",
)
