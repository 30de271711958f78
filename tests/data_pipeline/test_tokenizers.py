import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from data_pipeline import tokenizers
from data_pipeline.core.default_model import default_model
from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.encode import normalise
from tests.synthetic import write_unigram

BERT, ROBERTA = "tokenizers/bert-uncased_electra-small", "tokenizers/roberta-base-tokenizer"
MINILM, XLM_R = "models/all-MiniLM-L6-v2-fp16", "XLM-R"
SPECIAL = ["</s>", "<s>", "<mask>", "<pad>", "<unk>", "[SEP]", "[CLS]", "[MASK]", "[PAD]", "[UNK]"]
WORD = st.one_of(st.text(max_size=12), st.sampled_from([*SPECIAL, "'s", "don't", "3.5"]))
SENTENCE = st.lists(WORD, max_size=6)


@pytest.fixture(scope="module", params=[None, XLM_R, BERT, ROBERTA], ids=["MiniLM", "XLM-R", "BERT", "RoBERTa"])
def tokenizer(request, helpers, tmp_path_factory):
    if request.param is None:
        return helpers.tokenizer(default_model())
    if request.param == XLM_R:
        return helpers.tokenizer(write_unigram(tmp_path_factory.mktemp("xlm-r")))
    return helpers.tokenizer(request.getfixturevalue("shared") / request.param)


def ids(tokenizer, text, **options):
    return tokenizer(text, add_special_tokens=False, split_special_tokens=True, **options)["input_ids"]


@given(SENTENCE, SENTENCE)
def test_sentences_joined_by_a_space_keep_their_ids(tokenizer, first, second):
    a, b = normalise(" ".join(first)), normalise(" ".join(second))
    if a and b:
        assert ids(tokenizer, f"{a} {b}") == ids(tokenizer, a) + ids(tokenizer, b)


@given(SENTENCE)
def test_text_never_becomes_a_special_token(tokenizer, words):
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    assert not special & set(ids(tokenizer, " ".join([*words, *SPECIAL])))


@pytest.mark.parametrize("name", [None, MINILM, ROBERTA], ids=["default", "MiniLM", "RoBERTa"])
def test_neither_cuts_nor_pads_by_itself(name, request):
    """MiniLM's file asks for both, at 128."""
    folder = request.getfixturevalue("shared") / name if name else default_model()
    backend = Tokenizer.from_str(tokenizers.load_tokenizer(str(folder)).backend_tokenizer.to_str())
    encoded = backend.encode_batch(["word" + " word" * 699, "word"], add_special_tokens=False)
    assert [len(e.ids) for e in encoded] == [700, 1]


@pytest.mark.parametrize(("a", "b"), [("some words here", "more"), ("one", "a b c d e f")])
def test_template_joins_two_texts_as_the_tokenizer_does(tokenizer, a, b):
    template = tokenizers.read_template(tokenizer)
    a_ids, b_ids = ids(tokenizer, a), ids(tokenizer, b)
    expected = tokenizer(a, b, return_token_type_ids=True)
    head, middle, tail = template.special
    assert [*head, *a_ids, *middle, *b_ids, *tail] == expected["input_ids"]
    first = len(head) + len(a_ids) + len(middle)
    types = [template.types[0]] * first + [template.types[1]] * (len(b_ids) + len(tail))
    assert types == expected["token_type_ids"]
    assert template.num_special == tokenizer.num_special_tokens_to_add(pair=True)


def test_a_saved_tokenizer_gives_the_same_ids_and_fingerprint(tokenizer, tmp_path):
    tokenizer.save_pretrained(str(tmp_path))
    again = tokenizers.load_tokenizer(str(tmp_path))
    assert tokenizers.fingerprint_tokenizer(again) == tokenizers.fingerprint_tokenizer(tokenizer)
    text = "The river </s> ran. Über naïve café 12.5"
    assert ids(again, text) == ids(tokenizer, text)


def test_cased_and_uncased_differ(helpers, tmp_path):
    from transformers import BertTokenizer

    plain = helpers.tokenizer(default_model())
    BertTokenizer(vocab=plain.get_vocab(), do_lower_case=False).save_pretrained(str(tmp_path))
    cased = tokenizers.load_tokenizer(str(tmp_path))
    assert cased.get_vocab() == plain.get_vocab()
    assert ids(cased, "River") != ids(plain, "River")
    assert tokenizers.fingerprint_tokenizer(cased) != tokenizers.fingerprint_tokenizer(plain)


def test_a_class_such_as_that_of_modernbert_puts_a_space_before_the_first_word(shared, tmp_path):
    spec = json.loads((shared / ROBERTA / "tokenizer.json").read_text())
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "cls_token": "<s>", "sep_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    loaded = tokenizers.load_tokenizer(str(tmp_path))
    assert ids(loaded, "River") == ids(loaded, " River")
    (tmp_path / "tokenizer.json").write_text(json.dumps({**spec, "post_processor": None}))
    with pytest.raises(KinspanError, match=str(tmp_path)):
        tokenizers.load_tokenizer(str(tmp_path))


class Vocabulary(list):
    """As much of a tokenizer as is asked for its tokens."""

    def convert_ids_to_tokens(self, numbers):
        return [self[k] for k in numbers]


def write_bytes(text):
    """A text as byte-level BPE writes it."""
    return "".join(part for part, _ in ByteLevel(add_prefix_space=False).pre_tokenize_str(text))


HALF, REST = write_bytes("国")[:2], write_bytes("国")[2:]


@pytest.mark.parametrize(
    ("begin", "go_on"),
    [
        (["▁the", "▁riv", "▁中国", "中国", "のは", "ประ", "ཀ"], ["er", ".", "。", "\u0e34\u0e19", "ель", "र"]),
        (["Ġriv", *map(write_bytes, (" 中", "中国", "ประ")), HALF], ["er", ".", REST, write_bytes("र")]),
        (["the", "中", "##の", "##ประ"], ["##er", "##ель", "##र"]),
    ],
    ids=["SentencePiece", "bytes", "WordPiece"],
)
def test_where_words_begin(begin, go_on):
    """At a space, or at any character of a script without spaces; not in the middle of a character."""
    continues = tokenizers.find_continuations(Vocabulary([*begin, *go_on]))
    assert continues.tolist() == [False] * len(begin) + [True] * len(go_on)


def test_a_vocabulary_that_does_not_say_where_words_begin_is_an_error_of_one_line():
    letters = Vocabulary([f"t{k}" for k in range(500)] + ["##a", "Ġb"])  # a stray mark means nothing
    with pytest.raises(KinspanError, match="--whole_word_masking"):
        tokenizers.find_continuations(letters)


@pytest.mark.parametrize("load", [tokenizers.load_tokenizer, tokenizers.load_tokenizer_as_it_is])
@pytest.mark.parametrize("files", [{}, {"config.json": '{"model_type": "mpnet"}'}, {"tokenizer.json": "{broken"}])
def test_a_folder_without_a_usable_tokenizer_is_refused(load, files, tmp_path):
    """For a configuration alone, transformers makes one of special tokens, for which every word is unknown."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(KinspanError, match=str(tmp_path)):
        load(str(tmp_path))
