"""Corpora and helpers that all tests share.

``tiny_corpus`` needs nothing but the installation. ``bert_corpus`` and ``roberta_corpus`` hold real text from
``../shared``, which a user's clone lacks: tests that need it are then skipped.
"""

import gc
import json
import lzma
import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the hub's library reads it, which retries for 45 seconds

import pytest
import torch
from hypothesis import HealthCheck, settings

from data_pipeline.core.default_model import default_model
from data_pipeline.corpus import Corpus
from data_pipeline.prepare.cleaning import STEPS, Rules
from data_pipeline.prepare.pipeline import Prepared, prepare
from data_pipeline.sampling.stream import PairStream
from data_pipeline.tokenizers import load_tokenizer, read_template
from objectives import OBJECTIVES, parse_mixture
from objectives.mlm import MaskedLM
from tests.cases import mark_slow
from tests.fake_hub import hub as hub
from tests.synthetic import short_tokenizer, synthetic_documents

QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
settings.register_profile("kinspan", deadline=None, derandomize=True, max_examples=50, suppress_health_check=QUIET)
settings.load_profile("kinspan")

LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SHARED = Path(__file__).resolve().parents[2] / "shared"
REAL_DOCUMENTS = 150
CORPORA = ("tiny_corpus", "bert_corpus", "roberta_corpus")


def write_jsonl(path: Path, documents: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(d, ensure_ascii=False) + "\n" for d in documents), encoding="utf-8")
    return path


_load_once = cache(load_tokenizer)


def load(tokenizer: str | Path) -> Any:
    """``load_tokenizer``, once each; cutting, which a call with ``truncation`` leaves switched on, is off."""
    loaded = _load_once(str(tokenizer))
    loaded.backend_tokenizer.no_truncation()
    return loaded


def prepare_here(inputs: list[str | Path], tokenizer: str | Path, output: Path, **options: Any) -> Prepared:
    """``prepare`` with a tokenizer that is loaded once; ``options`` are its arguments and those of Rules."""
    rules = Rules(**{k: options.pop(k) for k in Rules.__dataclass_fields__ if k in options})
    names = [str(name) for name in inputs]
    with mock.patch("data_pipeline.tokenizers.load_tokenizer", load):
        return prepare(names, str(tokenizer), output, OBJECTIVES, rules, quiet=True, **options)


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "write the golden files anew, see tests/pretrain/test_golden_losses.py"
    parser.addoption("--write_golden", action="store_true", help=text)


def pytest_collection_finish() -> None:
    """Has the garbage collector pass over what was imported, and look less often: a fifth of the tests' time."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True)
def world_of_one() -> Iterator[None]:
    """An engine in this process sets them: left there, processes that a later test starts would join its port."""
    torch.set_num_threads(1)
    yield
    for name in LAUNCHER_VARIABLES:
        os.environ.pop(name, None)


@pytest.fixture(autouse=True, scope="session")
def no_traces_and_no_waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Marks of verified files stay out of the user's cache, and nothing waits for the disk, 8 ms each time."""
    folder = tmp_path_factory.mktemp("cache")
    with mock.patch("data_pipeline.core.files.find_cache", return_value=folder), mock.patch("os.fsync"):
        yield


@pytest.fixture(scope="session")
def helpers() -> SimpleNamespace:
    functions = {"synthetic_documents": synthetic_documents, "write_jsonl": write_jsonl}
    return SimpleNamespace(**functions, prepare=prepare_here, tokenizer=load)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real text, tokenizers and weights."""
    if not SHARED.is_dir():
        pytest.skip(f"no real text: {SHARED.name}/ is not beside the project")
    return SHARED


@pytest.fixture(scope="session")
def make_corpus(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``make_corpus(documents, tokenizer=short, **options)``: a corpus folder made of these documents.

    A document is a dictionary as in a .jsonl file, or a list of paragraphs. Nothing is held out, nothing that repeats
    is dropped, and no step cleans, unless asked: what is long enough is kept as it is.
    """

    def make(documents: Iterable[Any], tokenizer: str | Path | None = None, **options: Any) -> Path:
        folder = tmp_path_factory.mktemp("corpus")
        records = [d if isinstance(d, dict) else {"id": f"d{k}", "paragraphs": d} for k, d in enumerate(documents)]
        source = write_jsonl(folder / "documents.jsonl", records)
        as_it_is = {"validation_share": 0.0, "duplicates": "keep", "skip_steps": [step.name for step in STEPS]}
        options = {**as_it_is, **options}
        prepare_here([source], tokenizer or short_tokenizer(), folder / "corpus", **options)
        return folder / "corpus"

    return make


@pytest.fixture(scope="session")
def tiny_documents() -> list[dict[str, Any]]:
    return synthetic_documents(60)


@pytest.fixture(scope="session")
def tiny_corpus(make_corpus: Callable[..., Path], tiny_documents: list[dict]) -> Path:
    """60 short synthetic documents in 5 or so shards, a fifth held out."""
    return make_corpus(tiny_documents, validation_share=0.2, shard_tokens=5000)


@pytest.fixture(scope="session")
def default_corpus(make_corpus: Callable[..., Path], tiny_documents: list[dict]) -> Path:
    """The same with the default model's tokenizer."""
    return make_corpus(tiny_documents, default_model(), validation_share=0.2, shard_tokens=5000)


@pytest.fixture(scope="session")
def real_documents(shared: Path) -> list[dict[str, Any]]:
    with lzma.open(shared / "data/corpus/enwiki2015_AA.jsonl.xz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in islice(file, REAL_DOCUMENTS)]


@pytest.fixture(scope="session")
def bert_corpus(shared: Path, make_corpus: Callable[..., Path], real_documents: list[dict]) -> Path:
    """150 articles in 14 shards, a tenth held out."""
    tokenizer = shared / "tokenizers/bert-uncased_electra-small"
    return make_corpus(real_documents, tokenizer, validation_share=0.1, shard_tokens=60_000)


@pytest.fixture(scope="session")
def roberta_corpus(shared: Path, make_corpus: Callable[..., Path], real_documents: list[dict]) -> Path:
    tokenizer = shared / "tokenizers/roberta-base-tokenizer"
    return make_corpus(real_documents, tokenizer, validation_share=0.1, shard_tokens=60_000)


@pytest.fixture(scope="session", params=mark_slow(CORPORA, CORPORA[:2]))
def any_corpus(request: pytest.FixtureRequest) -> Path:
    """Each of the corpora in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def documents_of() -> Callable[[Path], dict[str, dict]]:
    """``documents_of(folder)``: what the corpus in that folder was made of, by id."""

    @cache
    def read(folder: Path) -> dict[str, dict]:
        lines = (folder.parent / "documents.jsonl").read_text(encoding="utf-8").split("\n")
        return {d["id"]: d for d in map(json.loads, filter(None, lines))}

    return read


@pytest.fixture(scope="session")
def make_stream() -> Callable[..., PairStream]:
    """``make_stream(corpus, seed=1, objective="ssp", sampling="matched", masking=False, **kwargs)``

    masking: True for masked language modelling as training has it, or an object of the caller's
    kwargs:  split, max_length and block_anchors, as of PairStream
    """

    def make(
        corpus: Path | str | Corpus,
        seed: int = 1,
        objective: str = "ssp",
        sampling: str = "matched",
        masking: Any = False,
        **kwargs: Any,
    ) -> PairStream:
        corpus = corpus if isinstance(corpus, Corpus) else Corpus(corpus)
        tokenizer = load(corpus.tokenizer_folder)
        if isinstance(masking, bool):
            masking = MaskedLM(tokenizer.mask_token_id, len(tokenizer)) if masking else None
        mixture = parse_mixture(objective, sampling).read_from(corpus)
        return PairStream(mixture, template=read_template(tokenizer), seed=seed, masking=masking, **kwargs)

    return make
