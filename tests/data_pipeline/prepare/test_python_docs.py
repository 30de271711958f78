"""The default corpus is English prose, read without running anything, the same on every pass."""

import gc
import sys
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.prepare.document import Document
from data_pipeline.prepare.readers import python_docs, read_records
from data_pipeline.prepare.readers.python_docs import extract_paragraphs, make_documents, read_texts
from tests.synthetic import write_file

STDLIB = Path(sysconfig.get_path("stdlib")).resolve()
PROSE = "The reader goes through the file once. It keeps what it finds in memory, and returns it in order."
MORE = "A second pass is not needed when the index is complete. The index is then read from the disk instead."


def paragraphs_of(docstring: str) -> list[str]:
    return extract_paragraphs(docstring, set())


def documents_of(path: Path) -> list[Document]:
    return list(make_documents(read_texts(path), set()))


@pytest.mark.parametrize(
    "code",
    [
        ">>> secret_call(1)\nsecret_result\n>>> for secret in x:\n...     secret\n",
        "Use it like this::\n\n    secret = call(1)\n\n    and secret_more is here.\n",
        ".. code-block:: python\n\n    secret = call(1)\n",
        ".. versionadded:: 3.1\n   The secret argument is new in this version of the library.\n",
        "```python\nthe secret is in the code and it is not for the reader.\n```\n",
        "Examples\n--------\nThe secret example is here, and it is for the reader.\n\n>>> secret\n",
        "Example:\n    The secret example is here, and it is for the reader.\n",
        "secret : int, optional\n    Whether.\n",
        f"Parameters\n----------\nlimit : int, optional\n    Secret. {MORE}\n",
        f"Args:\n    limit (`int`, *optional*, defaults to 3): Secret. {MORE}\n",
        f":param limit: Secret. {MORE}\n",
        f"Returns\n-------\nint\n    Secret. {MORE}\n",
        *[":type secret: int\n:rtype: secret\n", "+--------+--------+\n| secret | secret |\n+--------+--------+\n"],
        *["=======  =======\nsecret   secret\n=======  =======\n", "Secret\n======\n", "secret(a, b, c) -> d[e]\n"],
        r".. math:: \secret{x} = \frac{1}{2}" + "\n",
        "Copyright (c) 2001 by the secret company. All rights reserved by its owners.\n",
    ],
)
def test_what_is_no_prose_is_dropped(code):
    result = " ".join(paragraphs_of(f"{PROSE}\n\n{code}\n"))
    assert PROSE in result
    assert "secret" not in result.lower()


@given(st.text(st.sampled_from("ab .:-=`*_|>[]()<>\n\n    {}\\#'\"~+1"), max_size=200))
def test_any_docstring_gives_clean_paragraphs(docstring):
    for paragraph in paragraphs_of(docstring):
        assert paragraph == " ".join(paragraph.split())
        assert paragraph


@pytest.mark.parametrize("token", ["[CLS]", "[MASK]", "<s>", "</s>", "<pad>", "<|endoftext|>"])
@pytest.mark.parametrize("markup", ["{}", "`{}`", "``{}``"])
def test_special_tokens_stay_text(token, markup):
    written = "The sequence begins with {} in all of the models. The text can have it too, where it was written there."
    assert paragraphs_of(written.format(markup.format(token))) == [written.format(token)]


def test_markup_is_taken_off():
    written = """Return a :class:`~pkg.Reader` of the ``path`` that is *not* closed. See `the guide
    <https://x.org/a>`_ or the [manual](https://x.org/b) for what it does with a [`~Closer`] and its
    :meth:`close <pkg.Reader.close>`."""
    assert paragraphs_of(written) == [
        "Return a pkg.Reader of the path that is not closed. See the guide or"
        " the manual for what it does with a Closer and its close."
    ]


@pytest.mark.parametrize(
    "listed",
    [
        "Return the list of all of the backends that are there for the user of this library and all of its parts.",
        "line: A new line of the code is to be executed. call: A function is about to be called by the code. end: So.",
        "Get the method for the list of the types. Get the method for the list of the types, and return it to him.",
        "Get it. See it.",
    ],
)
def test_what_is_a_list_or_too_short_goes(listed):
    assert paragraphs_of(listed) == []


def test_modules_are_read_and_never_run(tmp_path):
    marker = tmp_path / "was_run"
    source = f'"""{PROSE}"""\nopen({str(marker)!r}, "w")\nraise RuntimeError("imported")\n'
    path = write_file(tmp_path / "sample.py", source)
    assert [document.paragraphs for document in documents_of(path)] == [[PROSE]]
    assert not marker.exists()
    assert path.stem not in sys.modules


@pytest.mark.parametrize(
    "content",
    [
        b'"""' + PROSE.encode() + b'"""\ndef (:\n',
        b'"""' + PROSE.encode() + b' \xff\xfe"""\n',
        b'"""' + PROSE.encode() + b'"""\n\x00\n',
        b'"""' + PROSE.encode() + b'"""\nx = ' + b"(" * 500 + b")" * 500,
        b'"""' + PROSE.encode() + b'"""\n#' + b"x" * python_docs.MAX_FILE_BYTES,
        b"",
    ],
    ids=["syntax error", "not UTF-8", "null byte", "nested too deeply", "huge", "empty"],
)
def test_what_cannot_be_read_gives_nothing(tmp_path, content):
    assert documents_of(write_file(tmp_path / "bad.py", content)) == []
    assert documents_of(tmp_path / "missing.py") == []
    assert gc.isenabled()


def test_a_text_stands_once_in_the_corpus_whatever_name_is_in_it(tmp_path, monkeypatch):
    """In a root of its own in the place of the standard library, without packages."""
    root = tmp_path.resolve()
    for name, value in (("_ROOTS", [root]), ("_STDLIB", root), ("read_pins", dict)):
        monkeypatch.setattr(python_docs, name, value)
    write_file(root / "a.py", f'"""{PROSE}"""\ndef f():\n    """{PROSE}\n\n    {MORE}"""')
    write_file(root / "b.py", f'"""{PROSE}"""')
    write_file(root / "c.py", f'"""{MORE.replace("A second", "A   second")}"""')
    named = "The {0} is a model that reads texts of any length there is. It is used with {0}Config, as of version {1}."
    write_file(root / "d.py", f'"""{named.format("Bert", 1)}"""')
    write_file(root / "e.py", f'"""{named.format("RobertaXL", 22)}"""')
    documents = [record.content for record in read_records(python_docs.SOURCE)]
    assert [document.id for document in documents] == ["a", "d"]
    assert " ".join(documents[0].paragraphs) == f"{PROSE} {MORE}"


@pytest.mark.parametrize("name", ["textwrap", "statistics", "asyncio.locks", "unittest.mock", "logging"])
def test_the_standard_library_has_prose(name):
    path = STDLIB.joinpath(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    (document,) = documents_of(path)
    assert document.id == name
    assert sum(map(len, document.paragraphs)) > 500
    assert not any(">>>" in paragraph or "::" in paragraph for paragraph in document.paragraphs)


# Which packages -----------------------------------------------------------------------------------------------------


def test_the_packages_are_those_that_are_pinned_in_the_same_versions():
    root = Path(__file__).resolve().parents[3]
    lines = (root / "constraints.txt").read_text().lower().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    pins = python_docs.read_pins()
    assert len(pins) >= 20
    assert {name: pinned[name] for name in pins} == pins
