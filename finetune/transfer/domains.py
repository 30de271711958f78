"""How alike sources and targets are, and how large sources are: what the paper tried to tell good sources by."""

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from data_pipeline.browse import load_decoder, sample_documents, show_document
from data_pipeline.corpus import Corpus
from pretrain.modeling.default_model import default_model

SAMPLE = 1000  # questions of each source and target
SEED = 0


def read_questions(corpus: Corpus) -> list[str]:
    """Titles and first paragraphs of documents drawn from a corpus; not of held-out ones, which a target may hold."""
    decoder = load_decoder(Path(corpus.tokenizer_folder).parent)
    drawn = (
        show_document(shard, row, decoder)
        for shard, row in sample_documents(corpus, SAMPLE, SEED)
        if not shard.held_out[row]
    )
    return [" ".join([shown.title, *islice(shown.paragraphs, 1)]) for shown in drawn]


def embed_domains(domains: Mapping[str, Sequence[str]], model: str | None = None) -> dict[str, np.ndarray]:
    """The mean embedding of each domain's questions, of length 1 (Rücklé et al., 2020, section 4.2).

    model: of sentence-transformers; by default all-MiniLM-L6-v2, where the paper has Sentence-RoBERTa
    """
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(model or default_model(), trust_remote_code=False)
    found = {}
    for name, texts in domains.items():
        vectors = encoder.encode(list(texts)[:SAMPLE], show_progress_bar=False, normalize_embeddings=True)
        mean = vectors.mean(axis=0)
        found[name] = mean / np.linalg.norm(mean)
    return found


def compare_domains(corpora: Mapping[str, Corpus], targets: Mapping[str, Sequence[str]]) -> np.ndarray:
    """``[S, T]``: the cosine of each source's mean embedding with each target's."""
    sources = embed_domains({name: read_questions(corpus) for name, corpus in corpora.items()})
    others = embed_domains(targets)
    return np.array([[float(s @ t) for t in others.values()] for s in sources.values()])
