"""The offline kit: where things lie in it, and how its wheels come before a machine's packages.

Standard library only: on the machine that it is for, nothing else may be there yet.
"""

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

WHEELS, CORPORA, MODELS = "wheels", "corpora", "models"
MISSING = "there is no offline kit in {folder}: pack one on a machine with a package index by `make gpu-kit`"


def install_wheels(kit: Path, target: Path) -> list[str]:
    """Installs those wheels of the kit that this machine lacks or has in an older version; returns their names.

    They go to ``target``, a folder for PYTHONPATH: the machine's own packages stay as they are, and the kit holds no
    torch and no transformers that could come before them.
    """
    wheels = [wheel for wheel in sorted((kit / WHEELS).glob("*.whl")) if not _is_there(wheel)]
    if wheels:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
        command += ["--no-cache-dir", "--disable-pip-version-check", "--upgrade", "--target", str(target)]
        subprocess.run([*command, *map(str, wheels)], check=True)
    return [wheel.name.split("-")[0] for wheel in wheels]


def _is_there(wheel: Path) -> bool:
    """Whether this Python has the package of a wheel, in the wheel's version or a newer one."""
    name, wanted = wheel.name.split("-")[:2]
    try:
        return _order(version(name)) >= _order(wanted)
    except PackageNotFoundError:
        return False


def _order(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])
