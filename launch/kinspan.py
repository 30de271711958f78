"""The console command: ``kinspan COMMAND ...``, from any directory."""

import importlib
import io
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path

_HERE = Path(__file__).resolve().parent  # kept off the path, where launch/pretrain.py would hide pretrain/
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from data_pipeline.core.errors import FILE_SYSTEM_ERRORS, KinspanError, make_printable
from data_pipeline.core.progress import set_up_logging
from pretrain.engine.world import adopt_world, read_world

# command -> (its module, its line of help); launchers such as deepspeed start the modules of launch/ directly
COMMANDS = {
    "adapt": ("commands.adapt", "pre-train on documents, compare rankers and release the best, in one command"),
    "index": ("commands.index", "encode documents or answers into an index to search"),
    "search": ("commands.search", "search an index for the answers to a question"),
    "serve": ("commands.serve", "answer questions from an index over HTTP, with a page to try it"),
    "prepare": ("prepare", "turn documents into a corpus"),
    "pretrain": ("pretrain", "continue the pre-training of an encoder, in one process"),
    "finetune": ("finetune", "fine-tune a ranker on labelled questions"),
    "evaluate": ("commands.evaluate", "measure models on labelled questions, or the TREC files of any system"),
    "rank": ("commands.rank", "rank candidates without labels, or re-rank a TREC run"),
    "release": ("commands.release", "turn a run into a folder for transformers and sentence-transformers"),
    "study": ("commands.study", "compare several ways of fine-tuning in one table"),
    "preflight": ("preflight", "check all hosts before a long pre-training"),
    "show corpus": ("commands.inspect_corpus", "show the counts of a corpus, or some of its documents"),
    "show pairs": ("commands.inspect_pairs", "show the pairs that training would see"),
    "show run": ("commands.status", "show the state and progress of a run"),
    "data mine": ("commands.mine", "find hard negatives for the training questions of a data set"),
    "data asnq": ("commands.build_asnq", "make ASNQ from Natural Questions"),
    "data las": ("commands.build_las", "turn a forum's dump into labelled questions"),
    "adapter train": ("commands.train_adapters", "train an adapter on each of many corpora, for one base model"),
    "adapter merge": ("commands.merge_adapter", "merge a LoRA adapter into its base model"),
    "evaluate transfer": ("commands.transfer_matrix", "measure models on data sets that they were not trained for"),
}
# extra of pyproject.toml -> the import names of its packages
EXTRAS = {
    "prepare": "datatrove docx ftfy lxml markdown_it mwparserfromhell py3langid py7zr pypdf trafilatura warcio",
    "rank": "Stemmer bm25s ir_measures py3langid scipy sentence_transformers sklearn",
    "plots": "matplotlib",
    "serve": "fastapi prometheus_client prometheus_fastapi_instrumentator pydantic starlette uvicorn",
    "remote": "aiohttp s3fs",
    "lora": "peft",
    "ray": "ray",
    "wandb": "wandb",
}
FIRST_DAY = ("adapt", "index", "search", "prepare", "pretrain", "finetune")  # listed by `kinspan` without a command
HELP = """example:
  kinspan adapt --documents docs/ --output_dir adapted

usage: kinspan COMMAND [--SETTING VALUE ...]

Continued pre-training of text encoders so that they rank answers well.

commands:
{listed}

`kinspan --help` lists all {count} commands, `kinspan COMMAND --help` their settings. Training with several processes
needs a launcher: `deepspeed --module launch.pretrain ...`, or `torchrun --nproc_per_node N -m launch.pretrain ...`;
likewise launch.finetune, and `launch.kinspan study ...`."""


def format_help(commands: Iterable[str]) -> str:
    listed = "\n".join(f"  {name:<18}{COMMANDS[name][1]}" for name in commands)
    return HELP.format(listed=listed, count=len(COMMANDS))


def find_command(words: list[str]) -> tuple[str, list[str]]:
    """Returns the command, of one or two words, and its arguments. Raises KinspanError for an unknown command."""
    name = words[0].replace("-", "_")
    for command in (" ".join([name, *words[1:2]]), name):
        if command in COMMANDS:
            return command, words[len(command.split()) :]
    near = [command for command in COMMANDS if command.startswith(f"{name} ")] or get_close_matches(name, COMMANDS)
    raise KinspanError(f"kinspan {words[0]}: no such command; did you mean {' or '.join(near or FIRST_DAY)}?")


def run_command() -> str | Iterable[str] | None:
    """Runs the command that the arguments name and returns its results."""
    words = [word for word in sys.argv[1:] if not word.startswith("--local_rank=")]  # put first by deepspeed --module
    if not words or words[0] in ("-h", "--help"):
        return format_help(COMMANDS if words else FIRST_DAY)
    if words[0] == "--version":
        return f"kinspan {version('kinspan')}"
    command, arguments = find_command(words)
    sys.argv = [f"kinspan {command}", *arguments]  # --help shows this name
    return importlib.import_module(f"launch.{COMMANDS[command][0]}").main()


def show(results: str | Iterable[str] | None) -> None:
    """Prints the results of a command on rank 0."""
    for result in [results] if isinstance(results, str) else results or ():
        if os.environ.get("RANK", "0") == "0":
            print(make_printable(result) if sys.stdout and sys.stdout.isatty() else result, flush=True)


def run(main: Callable[[], str | Iterable[str] | None]) -> None:
    """Runs a command. After a KinspanError, a missing extra or an error of the file system it prints one line and exits
    with status 2; after Ctrl-C with status 130.
    """
    try:
        if read_world(os.environ).size > 1:
            adopt_world()  # before the first message: only rank 0 shows messages that all ranks log
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
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe, perhaps before the work was done
        os._exit(128 + signal.SIGPIPE)
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") == "0":
            print("interrupted; run the same command again to resume", file=sys.stderr, flush=True)
        os._exit(130)
    except OSError as error:
        if error.errno not in FILE_SYSTEM_ERRORS:
            raise
        _refuse(f"{error.strerror}: {error.filename}" if error.filename else str(error))


def _refuse(text: str) -> None:
    """Prints the error on one line, though a file's name may contain line breaks, and exits with status 2."""
    rank = os.environ.get("RANK", "0")
    if rank != "0":  # rank 0 usually prints the same error, and the launcher then ends this process
        time.sleep(5)
    where = f"[rank {rank}] " if rank != "0" else ""
    print(f"{where}error: {make_printable(' '.join(text.splitlines()))}", file=sys.stderr, flush=True)
    os._exit(2)  # without waiting for threads or other ranks


def main() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr has it
    run(run_command)


if __name__ == "__main__":
    main()
