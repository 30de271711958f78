"""A tiny bi-encoder, a tiny cross-encoder and answers, of which an index is built in a moment."""

from pathlib import Path

import pytest
from transformers import AutoModel, AutoModelForSequenceClassification

from finetune.ranking.embedder import Embedder
from serve.answers import Answer
from serve.building import build_index
from tests.synthetic import write_model

WORDS = "river stone green market engine winter paper silver garden music bridge apple arrow basin beacon"


def _save(folder: Path, auto: type, seed: int) -> Path:
    return write_model(folder, auto, seed=seed, num_labels=1, num_hidden_layers=1)


@pytest.fixture(scope="session")
def bi_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _save(tmp_path_factory.mktemp("bi-encoder"), AutoModel, 1)


@pytest.fixture(scope="session")
def other_bi_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _save(tmp_path_factory.mktemp("other"), AutoModel, 2)


@pytest.fixture(scope="session")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _save(tmp_path_factory.mktemp("cross-encoder"), AutoModelForSequenceClassification, 3)


@pytest.fixture(scope="session")
def embedder(bi_encoder: Path) -> Embedder:
    return Embedder(str(bi_encoder))


@pytest.fixture(scope="session")
def answers() -> list[Answer]:
    """60 answers, no two alike."""
    words = WORDS.split()
    texts = [f"{words[n % 15]} {words[n // 4]} {words[(7 * n) % 15]} number {n}" for n in range(60)]
    return [Answer(f"a{n}", text, f"what of {n}?", f"https://example.org/{n}") for n, text in enumerate(texts)]


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory, embedder: Embedder, answers: list[Answer]) -> Path:
    folder = tmp_path_factory.mktemp("index") / "index"
    build_index(folder, embedder, answers)
    return folder
