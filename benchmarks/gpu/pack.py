"""``make gpu-kit``: packs the offline kit for a GPU machine that has no package index, in one folder.

In it lie wheels of what such an image usually lacks, two prepared corpora (RoBERTa's tokenizer and BERT's), the
configs of the models that are measured, without weights, and WikiQA's test set where it is at hand."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from benchmarks import _common
from data_pipeline.core.default_model import default_model
from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.document import Rejected
from data_pipeline.prepare.pipeline import prepare
from data_pipeline.prepare.readers import find_reader, parse_record, read_records
from data_pipeline.tokenizers import load_tokenizer
from objectives import OBJECTIVES

from .bench import KIT_MODELS, write_config
from .dose import SETS
from .kit import CORPORA, MODELS, WHEELS

BUILT = "deepspeed"  # comes as source; its operators are not needed
WITH_NEEDS = "pydantic"  # fits exactly one version of pydantic-core
# What else DeepSpeed needs; then what fine-tuning imports. An image with PyTorch and transformers has the rest.
ALONE = ("hjson", "bm25s", "PyStemmer", "datasets", "dill", "multiprocess", "ir_measures")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
PLATFORMS += ("manylinux_2_12_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64")
MAX_MB = 60
SHARES = {"roberta": 1.0, "bert": 0.5}  # of the documents, by corpus

EPILOG = """example:
  python -m benchmarks.gpu.pack --input enwiki2015_AA.jsonl.xz --roberta_tokenizer roberta-base --output_dir gpu-kit"""


def pack_wheels(folder: Path, python: str) -> None:
    """Puts the wheels for that version of Python on Linux x86-64 into ``folder``, DeepSpeed's built here."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    pins = ["--constraint", str(_common.ROOT / "constraints.txt")]
    built = [*pip, "wheel", *pins, "--no-deps", "--wheel-dir", str(folder), BUILT]
    subprocess.run(built, check=True, env={**os.environ, "DS_BUILD_OPS": "0"})
    options = [*pins, "--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    options += [option for platform in PLATFORMS for option in ("--platform", platform)]
    download = [*pip, "download", *options, "--dest", str(folder)]
    subprocess.run([*download, WITH_NEEDS], check=True)
    subprocess.run([*download, "--no-deps", *ALONE], check=True)


def pack_materials(folder: Path, source: Path, documents: int, tokenizers: dict[str, str]) -> None:
    """Everything but the wheels.

    documents:  of ``source`` that go into the corpus of RoBERTa's tokenizer; into that of BERT's go half of them
    tokenizers: names or folders, of "roberta" and "bert"
    """
    for name, tokenizer in tokenizers.items():
        with tempfile.TemporaryDirectory() as scratch:
            text = Path(scratch) / "documents.jsonl"
            text.write_text("".join(islice(_read_lines(source), int(documents * SHARES[name]))), encoding="utf-8")
            prepare([str(text)], tokenizer, folder / CORPORA / name, OBJECTIVES, quiet=True)
    loaded = {name: load_tokenizer(tokenizer) for name, tokenizer in tokenizers.items()}
    for name, model in KIT_MODELS.items():
        write_config(folder / MODELS / name, model.family, loaded[model.corpus], model.config)


def pack_study(folder: Path, work: Path) -> None:
    """Takes over of a work folder of benchmarks/dose what its rows for a GPU begin with."""
    for name in ("starts/rampart", "corpora/rampart", *(f"sets/{name}" for name in SETS)):
        shutil.copytree(work / name, folder / "dose" / name)


def _read_lines(source: Path) -> Iterator[str]:
    """The documents of a file, as lines for a .jsonl file."""
    for record in read_records(source):
        with suppress(Rejected):  # no document, and the corpus needs only some
            for document in parse_record(record):
                yield json.dumps({"id": document.id, "title": document.title, "paragraphs": document.paragraphs}) + "\n"


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.add_argument("--input", required=True, type=Path, help="Text: one file of a format of launch/prepare.py.")
    parser.add_argument("--documents", type=int, default=1000, help="How many documents of it.")
    parser.add_argument("--roberta_tokenizer", default="roberta-base", help="RoBERTa's tokenizer, hub name or folder.")
    parser.add_argument("--bert_tokenizer", default=default_model(), help="BERT's, uncased.")
    parser.add_argument("--study", type=Path, help="Work folder of benchmarks/dose, to run its rows for a GPU.")
    parser.add_argument("--python", default="3.12", help="The version of Python on the GPU machine.")
    parser.add_argument("--output_dir", type=Path, default=Path("gpu-kit"), help="The kit; packed anew each time.")
    args = parser.parse_args()
    if not find_reader(args.input) or not args.input.is_file():
        raise KinspanError(f"--input {args.input} is no file that launch/prepare.py reads")
    if args.output_dir.exists() and not (args.output_dir / WHEELS).is_dir():
        raise KinspanError(f"--output_dir {args.output_dir} is there, and no kit: name another folder, or delete it")
    shutil.rmtree(args.output_dir, ignore_errors=True)
    try:
        pack_wheels(args.output_dir / WHEELS, args.python)
    except subprocess.CalledProcessError as error:
        raise KinspanError(f"pip, which said why above, could not pack the wheels: {error.cmd[-1]}") from error
    tokenizers = {"roberta": args.roberta_tokenizer, "bert": args.bert_tokenizer}
    pack_materials(args.output_dir, args.input, args.documents, tokenizers)
    if args.study:
        pack_study(args.output_dir, args.study)
    size = sum(path.stat().st_size for path in args.output_dir.rglob("*") if path.is_file()) / 1e6
    print(f"{args.output_dir}: {size:.1f} MB")
    if size > MAX_MB:
        raise KinspanError(f"{args.output_dir} has {size:.1f} MB, more than {MAX_MB}: lower --documents")


if __name__ == "__main__":
    _common.run(main)
