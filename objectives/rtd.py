"""Replaced-token detection (RTD): which tokens are hidden from the generator.

Clark et al., 2020, "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators", section 2: 15% of
the tokens are chosen and all of them become the mask token; a generator, trained by masked language modelling, draws
replacements from its softmax, and a discriminator says of every token whether it was replaced. The two networks are
in pretrain/modeling/electra.py, their losses in pretrain/modeling/losses.py.
"""

from functools import partial

from .mlm import MaskedLM

# Masking for a generator: all chosen tokens become the mask token, and draw a number for a replacement.
mask_for_generator = partial(MaskedLM, as_mask=1.0, as_random=0.0, draws_noise=True)
