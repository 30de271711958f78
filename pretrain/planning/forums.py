"""Chooses the forums that a run trains on: the sets of Rücklé et al., 2020 ("MultiCQA", section 5.1, appendix A.5)."""

import re
from collections.abc import Sequence

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import CacheSettings
from data_pipeline.corpus import Corpus
from data_pipeline.sources import Source, name_corpora

# The three forums with the most questions in each of StackExchange's six categories.
BALANCED = (
    *("ell", "gaming", "english", "serverfault", "superuser", "stackoverflow"),
    *("writers", "opensource", "workplace", "physics", "stats", "math"),
    *("scifi", "graphicdesign", "diy", "quant", "pm", "patents"),
)
LARGEST = (
    *("stackoverflow", "math", "superuser", "serverfault", "tex", "unix", "physics", "stats", "electronics"),
    *("gis", "english", "salesforce", "wordpress", "magento", "sharepoint", "gaming", "dba", "drupal"),
)
BENCHMARK_FORUMS = ("askubuntu", "aviation", "travel", "cooking", "academia", "apple")  # section 5.1, note 8
SETS = {"balanced": BALANCED, "largest": LARGEST}
# Words in the name of a dump beside the forum's: Cooking.meta.stackexchange.com_2024-04.7z is of cooking.
OTHER_WORDS = {"", "meta", "stackexchange", "com", "posts", "z", "dump", "corpus"}


def choose_forums(
    sources: Sequence[Source], chosen: str | None, min_questions: int | None, cache: CacheSettings
) -> tuple[Source, ...]:
    """Returns the corpora that ``--forums`` and ``--min_questions`` leave, in their order.

    chosen: "balanced" or "largest", see SETS; "all", which leaves out the forums of the benchmarks and their metas;
            names with commas; None: every corpus
    """
    given = {"--forums": chosen, "--min_questions": min_questions}
    flags = " with ".join(f"{flag} {value}" for flag, value in given.items() if value)
    if flags and not sources:
        raise KinspanError(f"{flags}: chooses among the corpora of --corpus, and there are none")
    folders = name_corpora([source.path for source in sources])
    names = [re.sub(r"(\.stackexchange)?\.com(-Posts)?$", "", folder) for folder in folders]
    kept = set(names) if chosen is None else _choose_names(chosen, names)
    selected = [source for source, name in zip(sources, names, strict=True) if name in kept]
    if min_questions:
        selected = [s for s in selected if Corpus(s.path, cache=cache).manifest.totals["documents"] >= min_questions]
    if sources and not selected:
        raise KinspanError(f"{flags}: leaves no corpus of --corpus")
    return tuple(selected)


def _choose_names(chosen: str, names: list[str]) -> set[str]:
    if chosen == "all":
        return {name for name in names if not is_benchmark_forum(name)}
    wanted = set(SETS.get(chosen) or filter(None, (name.strip() for name in chosen.split(","))))
    if unknown := sorted(wanted - set(names)):
        raise KinspanError(f"--forums {chosen}: {unknown[0]} is not among the corpora of --corpus")
    return wanted


def is_benchmark_forum(name: str) -> bool:
    """Returns whether a folder is named after a forum of the benchmarks, or after the meta forum of one."""
    words = set(re.split("[^a-z]+", name.lower())) - OTHER_WORDS
    return len(words) == 1 and words <= set(BENCHMARK_FORUMS)
