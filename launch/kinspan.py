"""The console command: ``kinspan prepare ...`` is ``python launch/prepare.py ...``, from any directory."""

import importlib
import sys
from difflib import get_close_matches
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from data_pipeline.errors import KinspanError
from launch._cli import run

COMMANDS = {
    "prepare": "turn documents into a corpus",
    "inspect_corpus": "show what a corpus holds, or documents of it",
    "inspect_pairs": "show the pairs that training would see",
    "preflight": "check all hosts before a long run of pretrain",
    "pretrain": "continue the pre-training of an encoder, in one process",
    "status": "show where a run stands",
    "train_adapters": "train an adapter for each of many corpora beside one base",
    "combine_adapters": "stack or average adapters, or merge one into its base",
    "release": "make a folder for transformers and sentence-transformers of a run",
    "transfer_matrix": "measure how models of many sources rank on targets without labels",
    "build_las": "turn a forum's dump into a data set of answer selection",
    "build_insuranceqa": "give InsuranceQA's questions 500 candidates each, by BM25",
    "rank_document": "rank the sentences of a held-out document with a release",
    "evaluate_pairs": "measure how well a model tells held-out pairs of an objective apart",
    "build_asnq": "make ASNQ from Natural Questions",
    "finetune": "fine-tune a ranker for answer sentence selection",
    "mine": "find hard negatives for the training questions of a data set",
    "study": "run several ways of fine-tuning as one table",
    "rank": "rank candidates without labels with a ranker",
    "index": "encode answers into an index that can be searched",
    "search": "find the answers to a question in an index",
    "serve": "answer questions from an index over HTTP, with a page to try it",
    "demo": "ask Python's documentation, on a page of this machine",
    "evaluate": "measure rankings of candidate answers: of models, or TREC files",
}

LISTED = "\n".join(f"  {name:<18}{text}" for name, text in COMMANDS.items())
HELP = f"""usage: kinspan COMMAND [--SETTING VALUE ...]

Continued pre-training of text encoders so that they rank answers well.

commands:
{LISTED}

`kinspan COMMAND --help` lists the settings of a command. Each command is also a script, launch/COMMAND.py.
Training with several processes needs a launcher: `deepspeed launch/pretrain.py ...`, or
`torchrun --nproc_per_node N -m launch.pretrain ...`; likewise for finetune and study."""


def run_command() -> None:
    """Runs the command that the first argument names. Raises KinspanError where it names none."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(HELP)
        return
    command = name.replace("-", "_")
    if command not in COMMANDS:
        near = get_close_matches(command, COMMANDS)
        advice = f"did you mean {' or '.join(near)}?" if near else f"choose one of {', '.join(COMMANDS)}"
        raise KinspanError(f"kinspan {name}: there is no such command; {advice}")
    sys.argv = [f"kinspan {command}", *arguments]  # the name that its --help gives
    importlib.import_module(f"launch.{command}").main()


def main() -> None:
    """What the installed console script calls."""
    run(run_command)


if __name__ == "__main__":
    main()
