"""Programs run by their paths as users run them, without what each would spend on importing libraries.

``run_program`` does as ``subprocess.run([sys.executable, path, *arguments])`` in less time: a server, this file run as
a program, has imported the libraries, and nothing of this project, and each program is a fork of it. The server reads
lines of JSON that list programs, and writes their statuses once all have ended.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

# What the entries import in the end: DeepSpeed and transformers import half of themselves when they are first used.
LIBRARIES = (
    *("numpy", "pyarrow.dataset", "yaml", "scipy.stats", "sklearn.metrics", "torch.utils.tensorboard"),
    *("functorch.compile", "torch.distributed.tensor", "deepspeed.runtime.engine", "deepspeed.runtime.zero.stage3"),
    *("deepspeed.runtime.zero.muon.muon_optimizer", "transformers.core_model_loading", "transformers.generation"),
    *("transformers.models.bert.modeling_bert", "transformers.models.electra.modeling_electra"),
    *("jinja2", "matplotlib.figure", "matplotlib.backends.backend_svg"),
)
# What libraries read from the environment when they are imported.
FIXED = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HUB_VERBOSITY": "error"}


def run_program(
    path: str | Path, *arguments: Any, cwd: str | Path, timeout: int = 300, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a Python file with these arguments and variables; after ``timeout`` seconds SIGALRM ends it."""
    return run_programs([(path, *arguments)], cwd=cwd, timeout=timeout, variables=[variables])[0]


def run_programs(
    commands: Sequence[Sequence[Any]], cwd: str | Path, timeout: int, variables: Sequence[dict[str, str]]
) -> list[subprocess.CompletedProcess[str]]:
    """Runs several programs at once, such as the ranks of a run."""
    server = _start_server()
    with tempfile.TemporaryDirectory() as folder:
        started = [
            {
                "program": [str(part) for part in command],
                "environment": {**os.environ, **FIXED, **more},
                "outputs": [f"{folder}/{number}.out", f"{folder}/{number}.err"],
                "cwd": str(cwd),
                "timeout": timeout,
            }
            for number, (command, more) in enumerate(zip(commands, variables, strict=True))
        ]
        server.stdin.write(json.dumps(started) + "\n")
        server.stdin.flush()
        statuses = json.loads(server.stdout.readline())
        return [
            subprocess.CompletedProcess(each["program"], status, *(Path(path).read_text() for path in each["outputs"]))
            for each, status in zip(started, statuses, strict=True)
        ]


@cache
def _start_server() -> Any:
    """One for each process that runs tests; it ends with it."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.Popen(
        [sys.executable, __file__], env={**kept, **FIXED}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some libraries print when they are imported
    for library in LIBRARIES:
        importlib.import_module(library)
    gc.freeze()  # programs need not look through it, nor copy its pages
    while line := sys.stdin.readline():
        processes = []
        for program in json.loads(line):
            if not (process := os.fork()):
                _become(program)
            processes.append(process)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
        print(json.dumps(statuses), file=answers, flush=True)


def _become(asked: dict[str, Any]) -> None:
    """Is the program, as a fresh interpreter would be, up to its exit status; never returns."""
    status = 1
    try:
        signal.alarm(asked["timeout"])
        os.chdir(asked["cwd"])
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        for number, path in enumerate([os.devnull, *asked["outputs"]]):
            os.dup2(os.open(path, flags if number else os.O_RDONLY), number)
        os.environ.clear()
        os.environ.update(asked["environment"])
        sys.argv = asked["program"]
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:1] = [str(Path(sys.argv[0]).resolve().parent), *filter(None, given)]
        status = _run_to_the_end(sys.argv[0])
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _run_to_the_end(path: str) -> int:
    status = 0
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    return status


if __name__ == "__main__":
    _serve()
