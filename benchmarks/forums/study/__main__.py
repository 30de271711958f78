"""The study of transfer from forums: adapters, one model of all, and their fusion, ranked zero-shot on held-out
questions of the forums, InsuranceQA and WikiQA. Runs what is left of it, and writes its page, benchmarks/FORUMS.md.

The recipe is benchmarks/forums/study/recipe.yaml; results are small files in results/ beside it. The same command again
goes on: rows that have run are skipped, and a training that was stopped resumes. Run twice at the same time, the two
share the rows."""

import argparse
import sys
from functools import partial
from pathlib import Path

from benchmarks import _common
from benchmarks.evidence.results import Store
from data_pipeline.errors import KinspanError
from pretrain.modeling.default_model import default_model
from pretrain.release.folder import fingerprint_model
from pretrain.runtime.stop import STATUS

from .materials import Places
from .page import PAGE, write_page
from .recipe import RECIPE, read_recipe
from .runner import Study, format_hours, measure_pilot, run_study

RESULTS = Path(__file__).with_name("results")
EPILOG = """examples:
  python -m benchmarks.forums.study --dry_run
  python -m benchmarks.forums.study --start runs/evidence/starts/a/release --dumps dumps --wikiqa WikiQACorpus \\
      --insuranceqa insuranceqa --hours 1
  python -m benchmarks.forums.study --page"""


def parse_flags() -> argparse.Namespace:
    flags = _common.parser(__doc__, EPILOG)
    flags.prog = "python -m benchmarks.forums.study"
    flags.add_argument("--start", help="Release of the encoder trained from scratch: start (a) of benchmarks.evidence.")
    flags.add_argument("--dumps", type=Path, help="Folder with a folder of each forum, which holds its Posts.xml.")
    flags.add_argument("--wikiqa", type=Path, help="Folder of WikiQA.")
    flags.add_argument("--insuranceqa", type=Path, help="Folder of InsuranceQA: answers, train, valid and test.jsonl.")
    flags.add_argument("--work", type=Path, default=Path("runs/forums-study"), help="Folder of corpora and weights.")
    flags.add_argument("--hours", type=float, help="Stop after so many hours, as at a signal.")
    flags.add_argument("--results", type=Path, default=RESULTS, help="Folder of the results.")
    flags.add_argument("--recipe", type=Path, default=RECIPE, help="The recipe.")
    only = flags.add_mutually_exclusive_group()
    only.add_argument("--dry_run", action="store_true", help="Print the hours, and stop.")
    only.add_argument("--page", action="store_true", help="Write the page from the results that are there, and stop.")
    only.add_argument("--pilot", action="store_true", help="Measure what the hours are computed from, and stop.")
    return flags.parse_args()


def main() -> None:
    flags = parse_flags()
    recipe, store = read_recipe(flags.recipe), Store(flags.results.absolute())
    # The page of other results than the committed ones lies beside them.
    tell = partial(write_page, recipe, store, PAGE if flags.results == RESULTS else flags.results / PAGE.name)
    if flags.page:
        tell()
        return
    if flags.dry_run:
        print(format_hours(recipe, store))
        return
    given = {name: getattr(flags, name) for name in ("start", "dumps", "wikiqa", "insuranceqa")}
    if missing := [f"--{name}" for name, value in given.items() if value is None]:
        raise KinspanError(f"{', '.join(missing)}: name what the study reads, or give --dry_run or --page")
    release, work = Path(flags.start).absolute(), flags.work.absolute()
    starts = {"a": str(work / "starts" / f"a-{fingerprint_model(str(release))[:12]}"), "b": default_model()}
    starts = {name: starts[name] for name in recipe.content["starts"]}
    data = flags.dumps.absolute(), flags.wikiqa.absolute(), flags.insuranceqa.absolute()
    places = Places(work, release, *data, starts)
    study = Study(recipe, store, places, flags.hours)
    if flags.pilot:
        measure_pilot(study)
        print(format_hours(recipe, store))
    elif not run_study(study, tell, partial(print, flush=True)):
        sys.exit(STATUS)


if __name__ == "__main__":
    _common.run(main)
