"""Shows the pairs that training would see: for people, and as JSON for programs."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from data_pipeline import tokenizers
from data_pipeline.corpus import Corpus
from data_pipeline.errors import KinspanError
from data_pipeline.sampling.block import Block
from data_pipeline.sampling.pairs import KINDS
from data_pipeline.sampling.spans import Spans
from data_pipeline.sampling.stream import CHUNK, PairRows, PairStream
from launch._cli import parse, run
from objectives import parse_mixture
from pretrain.modeling.default_model import default_model
from pretrain.planning.defaults import default_corpus

DESCRIPTION = """Prints pairs of a corpus as text, by their index in the global order of one seed.

The pairs are those that launch/pretrain.py with the same --objective, --sampling, --seed and --max_length trains on:
step k of a global batch of B sees the indices from k * B to (k + 1) * B."""


@dataclass
class InspectConfig:
    """Flags of this entry."""

    corpus: str | None = field(default=None, metadata={"help": "Corpus folder. Default: the embedded one."})
    objective: str = field(default="ssp", metadata={"help": "As in launch/pretrain.py: ssp, all, ssp:2+sp:1 ..."})
    sampling: Literal["matched", "paper"] = field(default="matched", metadata={"help": "As in launch/pretrain.py."})
    split: Literal["train", "validation"] = field(default="train", metadata={"help": "Which documents."})
    start: int = field(default=0, metadata={"help": "Index of the first pair."})
    count: int = field(default=5, metadata={"help": "How many pairs."})
    seed: int = field(default=1, metadata={"help": "The run's seed."})
    max_length: int | None = field(default=None, metadata={"help": "Tokens of a pair; default: the objective's."})
    json: bool = field(default=False, metadata={"help": "One JSON object a line."})


def span(block: Block, spans: Spans, row: int, tokenizer: Any) -> dict[str, Any]:
    """Where a span lies, and its whole text (before a pair is cut to length)."""
    one = spans[row]
    shard, document, number = block.locate(one.paragraph)
    text = tokenizer.decode(block.read_tokens(one), clean_up_tokenization_spaces=False)
    place = {"doc_id": shard.document_id(document), "title": shard.document_title(document)}
    hole = None if one.hole_start is None or one.hole_end is None else [int(one.hole_start), int(one.hole_end)]
    sentences = [int(one.start), int(one.end)]
    return {**place, "paragraph": number, "sentences": sentences, "without": hole, "text": text.strip()}


def described(stream: PairStream, tokenizer: Any, start: int, count: int) -> Iterator[dict[str, Any]]:
    """A dictionary a pair, with the keys of ``--json`` and the documents' titles."""
    for first in range(start, start + count, CHUNK):
        every = stream.pairs(first, min(CHUNK, start + count - first))
        found = [(int(index), rows, row) for rows in every for row, index in enumerate(rows.index)]
        for _, rows, row in sorted(found, key=lambda place: place[0]):
            yield _described(stream, rows, row, tokenizer)


def _described(stream: PairStream, rows: PairRows, row: int, tokenizer: Any) -> dict[str, Any]:
    a, b = (span(rows.block, spans, row, tokenizer) for spans in rows.texts)
    index = int(rows.index[row])
    return {
        "index": index,
        "objective": stream.mixture.names[rows.part],
        "kind": KINDS[rows.kinds[row]],
        "label": int(rows.kinds[row] == 0),
        "doc_id": a["doc_id"],
        "a_paragraph": a["paragraph"],
        "a_sentences": a["sentences"],
        "b_doc_id": b["doc_id"],
        "b_paragraph": b["paragraph"],
        "b_sentences": b["sentences"],
        "b_without": b["without"],
        "a": a["text"],
        "b": b["text"],
        "input_ids": stream.batch(index, 1).input_ids.tolist(),
        "titles": (a["title"], b["title"]),
    }


def as_text(pair: dict[str, Any]) -> str:
    def line(name: str, document: str, title: str, paragraph: int, sentences: list[int], text: str, hole: str) -> str:
        where = f"{document} ({title})" if title and title != document else document
        return (
            f"  {name}: {where}, paragraph {paragraph}, sentences [{sentences[0]}, {sentences[1]}){hole}\n     {text}"
        )

    hole = "" if pair["b_without"] is None else " without [{}, {})".format(*pair["b_without"])

    return "\n".join(
        [
            f"pair {pair['index']}: {pair['objective']}, {pair['kind']}, label {pair['label']}, "
            f"{len(pair['input_ids'])} tokens",
            line("A", pair["doc_id"], pair["titles"][0], pair["a_paragraph"], pair["a_sentences"], pair["a"], ""),
            line("B", pair["b_doc_id"], pair["titles"][1], pair["b_paragraph"], pair["b_sentences"], pair["b"], hole),
        ]
    )


def main() -> None:
    config = parse(InspectConfig, DESCRIPTION)
    if config.start < 0 or config.count < 1:
        raise KinspanError(f"--start {config.start} --count {config.count}: give an index from 0 and at least one pair")
    if config.start + config.count >= 2**48 or not 0 <= config.seed < 2**63:
        raise KinspanError(f"--start {config.start} --count {config.count} --seed {config.seed}: too large, or below 0")
    corpus = Corpus(config.corpus or default_corpus(tokenizers.load_tokenizer(default_model())))
    tokenizer = tokenizers.load_tokenizer(str(corpus.folder / "tokenizer"))
    stream = PairStream(
        parse_mixture(config.objective, config.sampling).read_from(corpus),
        template=tokenizers.read_pair_template(tokenizer),
        seed=config.seed,
        split=config.split,
        max_length=config.max_length,
    )
    for pair in described(stream, tokenizer, config.start, config.count):
        if config.json:
            pair.pop("titles")
            print(json.dumps(pair, ensure_ascii=False))
        else:
            print(as_text(pair) + "\n")


if __name__ == "__main__":
    run(main)
