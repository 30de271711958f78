"""The rules of the house, read off the source: who may import whom, and how large files and folders may grow.

docs/architecture.md says what the rooms are for.
"""

import ast
import re
import sys
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import requires
from pathlib import Path

import pytest

from data_pipeline.core.default_model import MODEL_PACKAGE
from launch import kinspan

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("data_pipeline", "objectives", "pretrain", "finetune", "serve", "launch")  # each imports from those before it
OUTSIDE = ("benchmarks", "tests")
ROOMS = {  # rooms of pretrain that stand below its training, and the other rooms that each may use
    "engine": (),
    "modeling": ("engine",),
    "checkpoints": ("engine",),
    "release": ("engine", "modeling", "checkpoints"),
}
FOR_SERVE = ("finetune.data", "finetune.evaluation", "finetune.ranking", "pretrain.modeling")
ALLOWED = {  # what these may use
    "finetune": ("finetune", "data_pipeline", "objectives", *(f"pretrain.{room}" for room in ROOMS)),
    "serve": ("serve", "data_pipeline", *FOR_SERVE),
}
WITHOUT_TORCH = ("data_pipeline", "objectives", "finetune.evaluation")
BRINGS_TORCH = {"torch", "deepspeed", "transformers", "sentence_transformers"}
OTHER_NAMES = {
    "Stemmer": "pystemmer",
    "docx": "python-docx",
    "markdown_it": "markdown-it-py",
    "pytrec_eval": "pytrec-eval-terrier",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
# Extras that each package may use, imported where they are used, beside the core's distributions
EXTRAS = {
    "data_pipeline": ("prepare", "remote", "ray"),
    "objectives": (),
    "pretrain": ("plots", "lora", "wandb"),
    "finetune": ("rank", "plots"),
    "serve": ("rank", "serve"),
    "launch": (),
}
NOT_IMPORTED_BY_NAME = {"tensorboard"}  # torch imports it
# What a distribution of the core brings
COMES_WITH = {
    **dict.fromkeys(("fsspec", "huggingface-hub", "pyarrow", "xxhash"), "datasets"),
    "jinja2": "torch",
    "loguru": "datatrove",
    "psutil": "deepspeed",
    "tokenizers": "transformers",
}


@cache
def source_files():
    """``{module: path}`` of the packages."""
    files = {}
    for package in FLOORS:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


@cache
def imports_of(module):
    """``{(imported name, whether at the top level)}`` of a module; names of this project are those of its modules."""
    path = source_files()[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return {(name, top) for node, top in import_statements(path) for name in names_in(node, package)}


@cache
def import_statements(path):
    """List each import statement of a file and whether it runs when the file is imported."""
    statements, ahead = [], [(ast.parse(path.read_text(encoding="utf-8")), True)]
    while ahead:
        node, top = ahead.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            statements.append((node, top))
        elif isinstance(node, ast.stmt | ast.Module | ast.excepthandler | ast.match_case):
            for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            top = top and not for_types and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            ahead += [(child, top) for child in ast.iter_child_nodes(node)]
    return statements


def names_in(node, package):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    base = ".".join([*parents, *([node.module] if node.module else [])])
    inside = [f"{base}.{alias.name}" for alias in node.names]
    return [name if name in source_files() else base for name in inside]


@cache
def project_imports(module):
    """The modules of this project that a module imports, anywhere in it and for type checking too."""
    return {name for name, _ in imports_of(module) if name in source_files()} - {module}


def pairs():
    return [(module, used) for module in source_files() for used in project_imports(module)]


def test_the_floors_import_downwards():
    floor = {name: number for number, name in enumerate(FLOORS)}
    upwards = [(m, u) for m, u in pairs() if floor[u.partition(".")[0]] > floor[m.partition(".")[0]]]
    assert not upwards


@pytest.mark.parametrize("package", ALLOWED)
def test_training_and_search_use_some_rooms_alone(package):
    used = [(m, u) for m, u in pairs() if m.partition(".")[0] == package]
    assert used
    allowed = tuple(f"{name}." for name in ALLOWED[package])
    assert not [(m, u) for m, u in used if not f"{u}.".startswith(allowed)]


def test_the_rooms_below_the_training_do_not_use_it():
    wrong = []
    for module, used in pairs():
        package, _, rest = module.partition(".")
        room = rest.partition(".")[0]
        if package == "pretrain" and room in ROOMS and used.startswith("pretrain."):
            of = used.split(".")[1]
            wrong += [(module, used)] if of != room and of not in ROOMS[room] else []
    assert not wrong


def test_measuring_does_not_use_training():
    above = ("finetune.training", "finetune.ranking")
    assert not [(m, u) for m, u in pairs() if m.startswith("finetune.evaluation") and u.startswith(above)]


def test_no_circle_between_files():
    refuse_circles({module: project_imports(module) for module in source_files()})


def refuse_circles(graph):
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"these import one another: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("package", WITHOUT_TORCH)
def test_no_torch_where_none_is_needed(package):
    """Neither by name anywhere, nor through what runs at import."""
    for module in [m for m in source_files() if m == package or m.startswith(f"{package}.")]:
        assert not [name for name, _ in imports_of(module) if name.partition(".")[0] == "torch"], module
        seen, ahead = set(), [module]
        while ahead:
            here = ahead.pop()
            seen.add(here)
            at_import = {name for name, top in imports_of(here) if top}
            assert not {name.partition(".")[0] for name in at_import} & BRINGS_TORCH, f"{module}, through {here}"
            parents = {here.rsplit(".", n)[0] for n in range(1, here.count(".") + 1)}
            ahead += [name for name in (at_import | parents) - seen if name in source_files()]


# Counts that may only fall ----------------------------------------------------------------------------------------

WHAT = 12  # docstrings that begin with "What", and not with a verb; 0 is the aim
ANY = 395
FILES, LINES = 250, 600  # files of the product; lines of the longest


@cache
def parsed():
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in source_files().values()}


def nodes(*kinds):
    return [(path, node) for path, tree in parsed().items() for node in ast.walk(tree) if isinstance(node, kinds)]


def test_results_are_printed_in_one_place():
    calls = [path for path, node in nodes(ast.Call) if isinstance(node.func, ast.Name) and node.func.id == "print"]
    assert set(calls) == {ROOT / "launch/kinspan.py"}


def test_docstrings_begin_with_a_verb():
    documented = nodes(ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    assert sum((ast.get_docstring(node) or "").startswith("What ") for _, node in documented) <= WHAT


def test_files_are_few_and_short():
    texts = {path: path.read_text(encoding="utf-8") for path in source_files().values()}
    assert len(texts) <= FILES
    assert not [str(path) for path, text in texts.items() if len(text.splitlines()) > LINES]
    assert sum(len(re.findall(r"\bAny\b", text)) for text in texts.values()) <= ANY


def test_no_circle_between_rooms():
    """Rooms are the folders of a package; what stands in the package itself may use all of them."""
    graph: dict[str, set[str]] = {}
    rooms = {".".join(module.split(".")[:2]) for module in source_files() if len(module.split(".")) > 2}
    for module, used in pairs():
        room, below = (".".join(name.split(".")[:2]) for name in (module, used))
        if room != below and {room, below} <= rooms:
            graph.setdefault(room, set()).add(below)
    refuse_circles(graph)


# What is installed ----------------------------------------------------------------------------------------------


def declared(*extras):
    """The names of the distributions that pyproject.toml asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    return {distribution_name(line) for group in groups for line in group} - {"kinspan"}


def distribution_name(requirement):
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement).group()).lower()


def imported_distributions(folders):
    """``{distribution: a file that imports it}``, of what is neither Python's nor ours."""
    imported = {}
    for path in [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]:
        for node, _ in import_statements(path):
            if isinstance(node, ast.ImportFrom) and node.level:
                continue
            for name in [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module]:
                top = name.partition(".")[0]
                if top not in sys.stdlib_module_names and not (ROOT / top).is_dir():
                    imported[distribution_name(OTHER_NAMES.get(top, top))] = path
    return imported


def test_the_core_needs_few_distributions():
    used = imported_distributions(FLOORS).keys()
    assert len(declared()) <= 12
    assert not declared() - used - NOT_IMPORTED_BY_NAME
    brought = {name: {distribution_name(line) for line in requires(name) or ()} for name in set(COMES_WITH.values())}
    assert not {name for name, source in COMES_WITH.items() if name not in brought[source]}


@pytest.mark.parametrize("package", FLOORS)
def test_a_package_uses_the_core_and_its_extras(package):
    used, allowed = imported_distributions([package]), {*declared(*EXTRAS[package]), *COMES_WITH}
    assert not {name: str(path) for name, path in used.items() if name not in allowed}


def test_what_is_outside_uses_what_is_declared():
    used, allowed = imported_distributions(OUTSIDE), {*declared("dev", "all", *kinspan.EXTRAS), *COMES_WITH}
    assert not {name: str(path) for name, path in used.items() if name not in allowed}


@pytest.mark.parametrize("extra", kinspan.EXTRAS)
def test_an_extra_brings_what_a_refusal_says(extra):
    names = {distribution_name(OTHER_NAMES.get(name, name)) for name in kinspan.EXTRAS[extra].split()}
    assert names <= declared(extra) - declared()


def test_pretraining_needs_the_core_alone():
    """At import; what a flag asks for may need more."""
    seen, ahead = set(), ["launch.pretrain", "pretrain.run"]
    while ahead:
        module = ahead.pop()
        seen.add(module)
        for name in {name for name, top in imports_of(module) if top} - seen:
            if name in source_files():
                ahead.append(name)
            elif (head := name.partition(".")[0]) not in sys.stdlib_module_names and not (ROOT / head).is_dir():
                assert distribution_name(OTHER_NAMES.get(head, head)) in {*declared(), *COMES_WITH}, (module, name)


def test_all_is_every_extra_of_one_machine():
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(re.search(r"\[(.*)\]", lines["all"][0])[1].split(",")) == kinspan.EXTRAS.keys() - {"ray", "wandb"}
    assert distribution_name(lines["all"][1]) == MODEL_PACKAGE
    assert lines["dev"][0] == "kinspan[all]"


def test_every_declared_distribution_is_pinned():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {distribution_name(line) for line in lines if "==" in line and not line.startswith("#")}
    assert not declared("dev", "all", *kinspan.EXTRAS) - pinned


def test_every_package_and_data_file_is_installed():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert set(settings["packages"]["find"]["include"]) >= {f"{name}*" for name in FLOORS}
    for folder in {path.parent for path in source_files().values()}:
        assert (folder / "__init__.py").exists(), f"{folder} is no package: it would not be installed"
    patterns = [
        (ROOT.joinpath(*package.split(".")), pattern)
        for package, globs in settings["package-data"].items()
        for pattern in globs
    ]
    carried = {path for folder, pattern in patterns for path in folder.glob(pattern)}
    data = {p for name in (*FLOORS, "ds_configs") for p in (ROOT / name).rglob("*") if p.is_file()}
    assert not {str(p) for p in data if p.suffix not in (".py", ".pyc")} - {str(p) for p in carried}
