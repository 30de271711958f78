"""Cleaning documents: which paragraphs and documents are kept, in small steps that can be switched off or added to."""

from .cleaner import check_rules, clean, clean_or_drop
from .rules import Rules
from .steps import STEPS, Step
from .tally import Tally
from .text import normalise, split_sentences

__all__ = ["STEPS", "Rules", "Step", "Tally", "check_rules", "clean", "clean_or_drop", "normalise", "split_sentences"]
