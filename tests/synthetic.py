"""Synthetic documents, and a tokenizer that has their words and few others."""

import atexit
import json
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from data_pipeline.core.default_model import default_model

FREQUENT = 4000  # first come special entries, then characters, then words and their parts, the frequent ones first

_WORDS = """
about above across after again against ages along always among another around because become before began
behind below between bring brought build built came carried cause certain change children city clear close
common complete could country course crossed current decided deep described different during early earth
either enough evening every example family famous finally first followed formed found general given great
group grown half happened heard held high however hundred important include indeed inside island known large
later learned leave length letter light listed little lived local long made main many measured member middle
modern month more morning mostly mountain moved much named near never nothing number often older once only
open order other outside over owned paper part passed people place plain point present produced question
quite rather reached received record remain reported return river road rule said school second seemed
several short shown side simple since small some soon sound south space spread stage stand started state
still stood strong such taken talked third those though thought together told took toward town travel turned
under until used valley various very village visited walked water west where while white whole wide winter
within without world write year young
"""

_TOPICS = """
anchor apple arrow barley basin beacon beetle bishop blade boiler bottle branch bridge bronze button cabin
camera candle canoe canvas carbon carpet castle cattle cello chalk channel cherry chimney circus clover
cobalt coffee comet copper coral cotton cradle crystal curtain diamond dragon eagle engine falcon feather
fiddle forest fossil furnace galaxy garden garlic ginger glacier granite guitar hammer harbor harvest helmet
honey horizon iron ivory jacket jaguar jungle kettle kitchen ladder lantern laser lemon leopard library
lizard lobster magnet maple marble market mercury meteor mirror monkey mosaic motor museum needle nickel oak
oasis ocean olive onion orchid organ oyster palace panther parrot pearl pepper piano pigeon pilot planet
pocket potato powder prison puppet quartz rabbit radar ribbon rocket saddle salmon sandal satin saturn
sculptor shadow shark silver spider spinach squirrel statue steam submarine sugar summit sunset tailor
temple thunder tiger timber tobacco tomato torch tower tractor tunnel turbine turtle umbrella uranium
vampire velvet violin volcano wagon walnut whale wizard wolf zebra
"""


WORDS, TOPICS = _WORDS.split(), _TOPICS.split()


def synthetic_documents(count: int, seed: str = "tiny") -> list[dict[str, Any]]:
    """Documents of 4-8 paragraphs of 1-8 sentences. A document has words of its own, and so has each of its
    paragraphs, so that whether two spans belong together can be learned."""
    rng = random.Random(seed)
    return [
        {"id": f"{seed}-{k}", "title": f"Title {k}", "paragraphs": _paragraphs(rng, rng.sample(TOPICS, 12))}
        for k in range(count)
    ]


def _paragraphs(rng: random.Random, topic: list[str]) -> list[str]:
    paragraphs = []
    for _ in range(rng.randint(4, 8)):
        words = rng.sample(topic, 4) * 4 + topic
        paragraphs.append(" ".join(_sentence(rng, words) for _ in range(rng.randint(1, 8))))
    return paragraphs


def _sentence(rng: random.Random, topic: list[str]) -> str:
    words = [rng.choice(topic if rng.random() < 0.35 else WORDS) for _ in range(rng.randint(9, 20))]
    return " ".join(words).capitalize() + "."


@cache
def short_tokenizer() -> str:
    """The folder of the default model's tokenizer with a seventh of its entries, the same up to ``FREQUENT``.

    Most of what a step of a small model computes, and of what its checkpoint holds, goes with the vocabulary.
    """
    place = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    folder = Path(place) / "short"
    folder.mkdir()
    for path in Path(default_model()).glob("*token*"):
        shutil.copy(path, folder)
    spec = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    kept = {*WORDS, *TOPICS}
    entries = [word for word, number in spec["model"]["vocab"].items() if number < FREQUENT or word in kept]
    spec["model"]["vocab"] = {word: number for number, word in enumerate(entries)}
    (folder / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in entries), encoding="utf-8")
    return str(folder)


def write_unigram(folder: Path, cross_words: bool = False) -> Path:
    """Writes a tokenizer as XLM-R's, whose special tokens are pieces with the highest scores.

    cross_words: let a piece hold a full stop and the space after it, as none of the families' tokenizers does
    """
    from transformers import XLMRobertaTokenizer

    pieces = ["▁", "▁the", "▁river", ".▁", *map(chr, range(33, 127)), *"üéï", "<mask>"]
    vocab = [(name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")] + [(piece, -5.0) for piece in pieces]
    XLMRobertaTokenizer(vocab=vocab).save_pretrained(str(folder))
    if cross_words:
        of_words = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": False}
        for name, key, value in (
            ("tokenizer.json", "pre_tokenizer", of_words),
            ("tokenizer_config.json", "tokenizer_class", "PreTrainedTokenizerFast"),
        ):
            content = json.loads((folder / name).read_text(encoding="utf-8"))
            (folder / name).write_text(json.dumps(content | {key: value}), encoding="utf-8")
    return folder


def write_model(
    folder: Path, auto: Any = None, family: str = "bert", seed: int = 1, tokenizer: Any = None, **options: Any
) -> Path:
    """Writes a tokenizer and a small model's config and, if ``auto`` is the class for them, random weights."""
    import torch  # takes seconds, as transformers does

    from data_pipeline.tokenizers import load_tokenizer
    from tests.pretrain.conftest import make_config

    tokenizer = tokenizer or load_tokenizer(short_tokenizer())
    tokenizer.save_pretrained(str(folder))
    config = make_config(family, **{"vocab_size": len(tokenizer)} | options)
    torch.manual_seed(seed)
    (auto.from_config(config) if auto else config).save_pretrained(str(folder))
    return folder


def write_file(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


class Touching:
    """Unpickled, it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)
