"""``make evidence``: the papers' claims in miniature. Runs what is left of the study, and writes its page.

The rows, their order and the comparisons stand in benchmarks/evidence/recipe.yaml, and results in
benchmarks/evidence/results, a small file of each row; the page is benchmarks/EVIDENCE.md. The same command again goes
on: seeds that have run are skipped, and a training that was stopped resumes. ``make dose`` runs another recipe,
dose.yaml, with results in results-dose and the page benchmarks/DOSE.md."""

import argparse
import sys
from functools import partial
from pathlib import Path

from benchmarks._common import parser, run
from data_pipeline.errors import KinspanError
from pretrain.runtime.stop import STATUS

from .findings import Evidence
from .page import PAGE, write_confirmation, write_page
from .plan import Places, format_budget
from .recipe import RECIPE, read_recipe
from .results import RESULTS, Store
from .runner import Study, measure_pilot, run_jobs

EPILOG = """examples:
  python -m benchmarks.evidence --dry_run
  python -m benchmarks.evidence --corpus corpora/evidence --data wikiqa=WikiQACorpus trecqa=trecqa --hours 1
  python -m benchmarks.evidence --page"""


def parse_flags() -> argparse.Namespace:
    flags = parser(__doc__, EPILOG)
    flags.prog = "python -m benchmarks.evidence"
    flags.add_argument("--corpus", default="corpora/evidence", help="Corpus of all-MiniLM-L6-v2's tokens.")
    flags.add_argument("--data", nargs="+", default=[], help="NAME=FOLDER of each set of the recipe.")
    flags.add_argument("--work", default="runs/evidence", help="Folder of weights under way, and of the log.")
    flags.add_argument("--hours", type=float, help="Stop after so many hours, as at a signal.")
    flags.add_argument("--budget", type=float, help="Hours of the whole study, instead of the recipe's.")
    flags.add_argument("--results", type=Path, help="Folder of the results, if not the recipe's own.")
    flags.add_argument("--recipe", type=Path, default=RECIPE, help="The recipe.")
    only = flags.add_mutually_exclusive_group()
    only.add_argument("--dry_run", action="store_true", help="Print the fits and the hours, and stop.")
    only.add_argument("--page", action="store_true", help="Write the page from the results that are there, and stop.")
    only.add_argument("--pilot", action="store_true", help="Measure what the hours are computed from, and stop.")
    return flags.parse_args()


def main() -> None:
    flags = parse_flags()
    recipe = flags.recipe.absolute()
    sets = list(read_recipe(recipe).content["sets"])
    data = {}
    for spec in flags.data:
        name, _, folder = spec.partition("=")
        if name not in sets or not folder:
            raise KinspanError(f"--data {spec}: write {' and '.join(f'{name}=FOLDER' for name in sets)}")
        data[name] = f"{name}={Path(folder).absolute()}"
    own_results, own_page = name_outputs(recipe)
    results = flags.results.absolute() if flags.results else own_results
    places = Places(str(Path(flags.work).absolute()), str(Path(flags.corpus).absolute()), data)
    study = Study(places, Store(results), recipe, flags.hours, flags.budget)
    if flags.dry_run:
        print(format_budget(study.budget))
        return
    # The page of other results than the committed ones lies beside them.
    tell = partial(write, study, own_page if results == own_results else results / own_page.name)
    if flags.page:
        tell()
        return
    if missing := [name for name in sets if name not in data]:
        raise KinspanError(f"--data: {missing[0]}=FOLDER is missing; the recipe has {', '.join(sets)}")
    if flags.pilot:
        measure_pilot(study)
    elif not run_jobs(study, tell):
        sys.exit(STATUS)


def name_outputs(recipe: Path) -> tuple[Path, Path]:
    """The folder of a recipe's results, and its page."""
    if recipe == RECIPE:
        return RESULTS, PAGE
    return recipe.with_name(f"results-{recipe.stem}"), PAGE.with_name(f"{recipe.stem.upper()}.md")


def write(study: Study, page: Path) -> None:
    """Writes the page, and says where."""
    print("writing the page: half a minute", flush=True)
    evidence, budget = Evidence(study.recipe, study.store), study.find_budget()
    if "primary" in study.recipe.content:
        write_confirmation(evidence, budget, page)
    else:
        write_page(evidence, budget, page, page.parent / "evidence/figures")
    print(f"page: {page}", flush=True)


if __name__ == "__main__":
    run(main)
