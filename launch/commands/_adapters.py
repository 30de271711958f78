"""Adapters of many corpora beside one base, trained one after another, each in a run folder of its own."""

import gc
import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import read_object
from data_pipeline.remote.address import show_address
from data_pipeline.sources import parse_sources
from pretrain.config import PretrainConfig
from pretrain.engine.stop import listen_for_stop
from pretrain.engine.world import read_launcher_variables
from pretrain.finished import find_finished
from pretrain.planning.checks import check

RELEASE = "release"  # in each run's folder: the adapter


def name_runs(corpora: list[str]) -> dict[str, str]:
    """The corpus of each run, by the name of its folder, which is the last part of the corpus's path.

    Raises KinspanError where two would share a folder, or a name is none.
    """
    names = [Path(show_address(source.path).rstrip("/")).name for source in parse_sources(corpora)]
    twice = [name for name, count in Counter(names).items() if count > 1 or name in ("", "..")]
    if twice:
        raise KinspanError(f"--corpus: {twice[0]!r} cannot name a run of its own: give each corpus a name")
    return dict(zip(names, corpora, strict=True))


def choose_corpora(config: PretrainConfig) -> list[str]:
    """The corpora that --forums and --min_questions leave, as --corpus names them."""
    from pretrain.planning.corpora import list_sources  # what reads corpora takes a while to import

    chosen = list_sources(config)
    return [text for text, source in zip(config.corpus, parse_sources(config.corpus), strict=True) if source in chosen]


def parse_task(text: str | None) -> tuple[int, int]:
    """``"3/8"`` as (2, 8): the third of eight tasks of a job array; without a text the only one.

    Raises KinspanError where it is no such thing.
    """
    number, slash, of = (text or "1/1").partition("/")
    if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise KinspanError(f"--task {text}: give the task's number and how many there are, such as 1/8 to 8/8")
    return int(number) - 1, int(of)


def plan_runs(config: PretrainConfig, task: str | None) -> dict[str, PretrainConfig]:
    """The settings of each run of this task, by its name: those of ``config``, with a corpus and a folder of its own.

    Of K tasks each takes every K-th corpus. Raises KinspanError for settings that no run could have.
    """
    if config.adapter is None:
        raise KinspanError("--adapter: give pfeiffer, lora or fusion")
    if config.dry_run:
        raise KinspanError("--dry_run is of kinspan pretrain: give it one of the corpora, and --adapter")
    first, step = parse_task(task)
    shared = {field.name: getattr(config, field.name) for field in fields(PretrainConfig)}
    shared |= {"forums": None, "min_questions": None}  # they choose among all corpora, and not in each run again
    runs = {}
    for name, corpus in list(name_runs(choose_corpora(config)).items())[first::step]:
        own = {"corpus": [corpus], "output_dir": str(Path(config.output_dir) / name)}
        runs[name] = PretrainConfig(**{**shared, **own})
        check(runs[name])
    return runs


def train_all(runs: dict[str, PretrainConfig], say: Callable[[str], None]) -> None:
    """Trains and releases each adapter that is not there yet; a run that was begun goes on where it was.

    In one process, a corpus that cannot be trained on is said and left out; several ranks stop at it together, because
    they could not agree on what comes next. A signal, and --max_hours, are of all runs together: the one under way
    ends with a checkpoint. Raises KinspanError in the end, which names those that were left out.
    """
    with listen_for_stop(next((config.max_hours for config in runs.values()), None)):
        _train_each(runs, say)


def _train_each(runs: dict[str, PretrainConfig], say: Callable[[str], None]) -> None:
    from pretrain.engine.device import return_freed_memory  # torch takes seconds to import

    failed: dict[str, str] = {}
    alone = read_launcher_variables()[2] == 1
    for number, (name, config) in enumerate(runs.items(), start=1):
        place = f"adapter {number} of {len(runs)}, {name}"
        try:
            if (summary := find_finished(config)) and _is_released(summary):
                say(f"{place}: finished already")
                continue
            say(f"{place}:")
            _train_one(config)
        except KinspanError as error:
            if not alone:
                raise
            failed[name] = quote_error(error)
            say(f"{place}: left out: {failed[name]}")
        gc.collect()  # engines hold themselves in circles
        return_freed_memory()
    if failed:
        name, why = next(iter(failed.items()))
        raise KinspanError(
            f"{len(failed)} of {len(runs)} adapters were not trained ({', '.join(failed)}): {name}: {why}"
        )


def _is_released(summary: Path) -> bool:
    """Whether the adapter beside a run's summary is of its last step: one that went on for longer has an older one."""
    from pretrain.release.folder import FACTS

    with suppress(KinspanError):
        released, trained = (read_object(path, "") for path in (summary.parent / RELEASE / FACTS, summary))
        return released.get("step") == trained["steps"]
    return False


def _train_one(config: PretrainConfig) -> None:
    from pretrain.engine.ranks import broadcast_from_rank_0
    from pretrain.release.release import release  # DeepSpeed takes seconds to import
    from pretrain.run import pretrain

    folder = Path(config.output_dir)
    pretrain(config)
    broadcast_from_rank_0(lambda: str(release(folder, folder / RELEASE)))


def merge_adapter(folder: str, output: Path) -> None:
    """Writes the plain model that an adapter of LoRA makes of its base. Raises KinspanError for any other adapter."""
    from finetune.ranking.ranker import (  # torch takes seconds to import
        find_max_length,
        find_trained_length,
        load_own_tokenizer,
        load_ranker,
        save_ranker,
    )
    from pretrain.modeling.adapters.folder import read_spec
    from pretrain.release.folder import replace_release

    parts, base = read_spec(Path(folder))
    if parts[0].kind != "lora":
        raise KinspanError(f"--adapters {folder} is of bottlenecks, which no plain model has a place for: rank with it")
    ranker = load_ranker(folder)
    with replace_release(output) as partial:
        partial.mkdir(parents=True)
        tokenizer = load_own_tokenizer(folder)
        trained = find_trained_length(folder)
        length = trained or find_max_length(tokenizer, ranker.classifier)
        save_ranker(ranker.classifier.config, tokenizer, length, ranker.state_dict(), partial)
        of = {"name": base.name, "fingerprint": base.fingerprint}
        facts = {"merged": parts[0].name, "base": of, "max_length": trained}
        (partial / "kinspan.json").write_text(json.dumps(facts, indent=1) + "\n")
        (partial / "README.md").write_text(
            f"# {base.name}-{parts[0].name}\n\n{base.name} with the adapter {parts[0].name} (LoRA of rank "
            f"{parts[0].size}) merged into its weights, by kinspan. It loads as a `CrossEncoder` of "
            "sentence-transformers.\n"
        )
