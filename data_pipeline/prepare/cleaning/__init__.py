"""Cleaning documents: which paragraphs and documents are kept, in small steps that can be switched off or added to."""

from .characters import normalise
from .cleaner import check_rules, clean
from .rules import Rules
from .sentences import split_sentences
from .steps import STEPS, Step
from .tally import Tally

__all__ = ["STEPS", "Rules", "Step", "Tally", "check_rules", "clean", "normalise", "split_sentences"]
