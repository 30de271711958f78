"""``make gpu-kit``: packs the offline kit for a GPU machine that has no package index, in one folder.

In it lie wheels of what such an image usually lacks, two prepared corpora (RoBERTa's tokenizer and BERT's), and the
configs of the models that are measured, without weights."""

import lzma
import os
import shutil
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

from benchmarks import _common
from data_pipeline.core.default_model import default_model
from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.pipeline import prepare
from data_pipeline.tokenizers import load_tokenizer
from objectives import OBJECTIVES

from . import CORPORA, MODELS, WHEELS
from .bench import KIT_MODELS, write_config

BUILT = "deepspeed"  # comes as source; its operators are not needed
WITH_NEEDS = "pydantic"  # fits exactly one version of pydantic-core
# For DeepSpeed, the Trainer and BM25: an image with PyTorch and transformers has the rest
ALONE = ("hjson", "accelerate", "bm25s", "PyStemmer", "py3langid")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def pack_wheels(folder: Path, python: str) -> None:
    """Puts the wheels for that version of Python on Linux x86-64 into ``folder``, DeepSpeed's built here."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    pins = ["--constraint", str(_common.ROOT / "constraints.txt")]
    built = [*pip, "wheel", *pins, "--no-deps", "--wheel-dir", str(folder), BUILT]
    subprocess.run(built, check=True, env={**os.environ, "DS_BUILD_OPS": "0"})
    download = [*pip, "download", *pins, "--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    download += [option for platform in PLATFORMS for option in ("--platform", platform)]
    subprocess.run([*download, "--dest", str(folder), WITH_NEEDS], check=True)
    subprocess.run([*download, "--dest", str(folder), "--no-deps", *ALONE], check=True)


def pack_materials(folder: Path, source: Path, documents: int, tokenizers: dict[str, str]) -> None:
    """Prepares the first ``documents`` lines of ``source`` with RoBERTa's tokenizer, and half of them with BERT's."""
    with lzma.open(source, "rt", encoding="utf-8") as file:
        lines = list(islice(file, documents))
    for name, tokenizer in tokenizers.items():
        with tempfile.TemporaryDirectory() as scratch:
            text = Path(scratch) / "documents.jsonl"
            text.write_text("".join(lines if name == "roberta" else lines[: documents // 2]), encoding="utf-8")
            prepare([str(text)], tokenizer, folder / CORPORA / name, OBJECTIVES, quiet=True)
    for name, (corpus, family, config) in KIT_MODELS.items():
        write_config(folder / MODELS / name, family, load_tokenizer(tokenizers[corpus]), config)


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("--input", required=True, type=Path, help="Text: a .jsonl.xz file of documents.")
    parser.add_argument("--documents", type=int, default=1000, help="How many documents of it.")
    parser.add_argument("--roberta_tokenizer", default="roberta-base", help="RoBERTa's tokenizer, hub name or folder.")
    parser.add_argument("--bert_tokenizer", default=default_model(), help="BERT's, uncased.")
    parser.add_argument("--python", default="3.12", help="The version of Python on the GPU machine.")
    parser.add_argument("--output_dir", type=Path, default=Path("gpu-kit"), help="The kit; packed anew each time.")
    args = parser.parse_args()
    if args.output_dir.exists() and not (args.output_dir / WHEELS).is_dir():
        raise KinspanError(f"--output_dir {args.output_dir} is there, and no kit")
    shutil.rmtree(args.output_dir, ignore_errors=True)
    pack_wheels(args.output_dir / WHEELS, args.python)
    tokenizers = {"roberta": args.roberta_tokenizer, "bert": args.bert_tokenizer}
    pack_materials(args.output_dir, args.input, args.documents, tokenizers)
    size = sum(path.stat().st_size for path in args.output_dir.rglob("*") if path.is_file()) / 1e6
    print(f"{args.output_dir}: {size:.1f} MB")


if __name__ == "__main__":
    _common.run(main)
