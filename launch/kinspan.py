"""The console command: ``kinspan COMMAND ...``, from any directory."""

import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from data_pipeline.core.errors import FILE_SYSTEM_ERRORS, KinspanError
from data_pipeline.core.progress import set_up_logging
from pretrain.engine.world import adopt_world, read_world

# command -> (the module that runs it, its line of help); launchers start the four modules of launch/ themselves
COMMANDS = {
    "adapt": ("commands.adapt", "train on documents, compare rankers and say which to use, in one command"),
    "prepare": ("prepare", "turn documents into a corpus"),
    "pretrain": ("pretrain", "continue the pre-training of an encoder, in one process"),
    "finetune": ("finetune", "fine-tune a ranker on labelled questions"),
    "evaluate": ("commands.evaluate", "measure models on labelled questions, or anyone's TREC files"),
    "rank": ("commands.rank", "rank candidates without labels, or re-rank a TREC run"),
    "release": ("commands.release", "turn a run into a folder for transformers and sentence-transformers"),
    "index": ("commands.index", "encode documents or answers into an index to search"),
    "search": ("commands.search", "find the answers to a question in an index"),
    "serve": ("commands.serve", "answer questions from an index over HTTP, with a page to try it"),
    "study": ("commands.study", "run several ways of fine-tuning as one table"),
    "preflight": ("preflight", "check all hosts before a long run of pretrain"),
    "show corpus": ("commands.inspect_corpus", "what a corpus holds, or documents of it"),
    "show pairs": ("commands.inspect_pairs", "the pairs that training would see"),
    "show run": ("commands.status", "how far a run is"),
    "data mine": ("commands.mine", "find hard negatives for the training questions of a data set"),
    "data asnq": ("commands.build_asnq", "make ASNQ from Natural Questions"),
    "data las": ("commands.build_las", "turn a forum's dump into a data set of answer selection"),
    "adapter train": ("commands.train_adapters", "train an adapter for each of many corpora beside one base"),
    "adapter merge": ("commands.merge_adapter", "merge an adapter of LoRA into its base"),
    "evaluate transfer": ("commands.transfer_matrix", "how models of many sources rank on other data sets"),
}
# extra of pyproject.toml -> the packages that it brings, by the names that they are imported by
EXTRAS = {
    "rank": "Stemmer bm25s ir_measures scipy sentence_transformers sklearn",
    "prepare": "datatrove docx ftfy lxml markdown_it mwparserfromhell py3langid py7zr pypdf trafilatura warcio",
    "plots": "matplotlib",
    "serve": "fastapi prometheus_client prometheus_fastapi_instrumentator pydantic starlette usearch uvicorn",
    "remote": "aiohttp s3fs",
    "lora": "peft",
    "ray": "ray",
    "wandb": "wandb",
}
FIRST_DAY = ("adapt", "prepare", "pretrain", "finetune", "evaluate", "search")
HELP = """usage: kinspan COMMAND [--SETTING VALUE ...]

Continued pre-training of text encoders so that they rank answers well.

commands:
{listed}

`kinspan --help` lists all {count} commands, `kinspan COMMAND --help` their settings. Training with several processes
needs a launcher: `deepspeed launch/pretrain.py ...`, or `torchrun --nproc_per_node N -m launch.pretrain ...`; likewise
for finetune, and `deepspeed --module launch.kinspan study ...`."""


def format_help(commands: Iterable[str]) -> str:
    listed = "\n".join(f"  {name:<18}{COMMANDS[name][1]}" for name in commands)
    return HELP.format(listed=listed, count=len(COMMANDS))


def find_command(words: list[str]) -> tuple[str, list[str]]:
    """Splits the arguments into the command that they begin with and the rest. Raises KinspanError for no command."""
    name = words[0].replace("-", "_")
    for command in (" ".join([name, *words[1:2]]), name):
        if command in COMMANDS:
            return command, words[len(command.split()) :]
    near = [command for command in COMMANDS if command.startswith(f"{name} ")] or get_close_matches(name, COMMANDS)
    raise KinspanError(f"kinspan {words[0]}: no such command; did you mean {' or '.join(near or FIRST_DAY)}?")


def run_command() -> str | Iterable[str] | None:
    """Runs the command that the arguments begin with and returns its results. Raises KinspanError for no command."""
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        return format_help(COMMANDS if words else FIRST_DAY)
    if words[0] == "--version":
        return f"kinspan {version('kinspan')}"
    command, arguments = find_command(words)
    sys.argv = [f"kinspan {command}", *arguments]  # the name that its --help gives
    return importlib.import_module(f"launch.{COMMANDS[command][0]}").main()


def show(results: str | Iterable[str] | None) -> None:
    """Prints what a command returns or yields, on rank 0."""
    for result in [results] if isinstance(results, str) else results or ():
        if os.environ.get("RANK", "0") == "0":
            print(result, flush=True)


def run(main: Callable[[], str | Iterable[str] | None]) -> None:
    """Runs an entry. A KinspanError, a missing extra, or what the file system refuses ends as one line and status 2,
    Ctrl-C as status 130.
    """
    try:
        if read_world(os.environ).size > 1:
            adopt_world()  # before the first message: only rank 0 shows those that all ranks have
        set_up_logging()
        show(main())
    except KinspanError as error:
        _refuse(str(error))
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        extra = next((extra for extra, packages in EXTRAS.items() if package in packages.split()), None)
        if extra is None:
            raise
        _refuse(f"{package} is not installed: pip install 'kinspan[{extra}]'")
    except BrokenPipeError:  # the reader, `head` say, has seen enough, and the work may not be done
        os._exit(128 + signal.SIGPIPE)
    except KeyboardInterrupt:
        print("interrupted; the same command again continues", file=sys.stderr, flush=True)
        os._exit(130)
    except OSError as error:
        if error.errno not in FILE_SYSTEM_ERRORS:
            raise
        _refuse(f"{error.strerror}: {error.filename}" if error.filename else str(error))


def _refuse(text: str) -> None:
    """Ends the process with one line; a name in it may hold line ends."""
    rank = int(os.environ.get("RANK", "0"))
    if rank:  # rank 0 mostly says the same, and the launcher then ends this one
        time.sleep(5)
    where = f"[rank {rank}] " if rank else ""
    print(f"{where}error: {' '.join(text.splitlines())}", file=sys.stderr, flush=True)
    os._exit(2)  # no waiting for threads or other ranks


def main() -> None:
    """Runs what the installed console script calls."""
    run(run_command)


if __name__ == "__main__":
    main()
