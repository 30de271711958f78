"""The benchmarks that Rücklé et al., 2020 ("MultiCQA", section 3.2) measure on, as their authors distribute them.

LAS is no file of anybody: kinspan data las makes it of a forum's dump.
"""
