"""The documentation of Python as answers: what ``help()`` says of the standard library's modules, classes and
functions, with their signatures, and the sections of the language reference that pydoc brings along.

Unlike the corpus ``python-docs``, which is running prose to train on, examples and lists stay as they are: an answer is
to be read. The modules are Python's own and are imported by a list, ``python_modules.txt``.
"""

import importlib
import inspect
import re
import sys
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOM = 1200  # characters of a passage: about as many as the default bi-encoder reads
TWINS = ("bytes", "bytearray")  # whose methods say what those of str say
SHORTEST = 12  # characters of a docstring that says something
Documented = tuple[str, str, str, str]  # title, signature, text and address
DOCS = f"https://docs.python.org/{sys.version_info[0]}.{sys.version_info[1]}"
_NO_ANSWER = re.compile(r"see help\(|initialize self|implement \w+\(|helper for pickle|return self[<>=!]=", re.I)
_HEADING = re.compile(r"(?m)^(\S.*)\n([*=\-~^])\2{3,}$\n?")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+|<[^<>]*>")


def read_python_docs() -> Iterator[tuple[str, str, str, str]]:
    """Yields id, text, title and address of each passage; of texts that stand under several names, the first."""
    texts: set[str] = set()
    titles: set[str] = set()
    for title, signature, doc, url in [*_read_modules(), *_read_topics()]:
        if doc in texts or title in titles:
            continue
        texts.add(doc)
        titles.add(title)
        name = "_".join(title.split())  # no white space, which a TREC file cannot hold
        passages = split_passages(f"{signature}\n\n{doc}", ROOM)
        for number, passage in enumerate(passages, 1):
            part = f" ({number} of {len(passages)})" if len(passages) > 1 else ""
            yield f"{name}#{number}" if number > 1 else name, passage, title + part, url


def split_passages(text: str, room: int) -> list[str]:
    """Cuts a text at blank lines into passages of at most ``room`` characters, or of one paragraph that is longer."""
    passages: list[str] = []
    for paragraph in filter(str.strip, re.split(r"\n[ \t]*\n", text)):
        if passages and len(passages[-1]) + len(paragraph) + 2 <= room:
            passages[-1] += "\n\n" + paragraph
        else:
            passages.append(paragraph)
    if len(passages) > 1 and len(passages[-1]) < room // 8:  # a tail that says little alone
        passages[-2:] = ["\n\n".join(passages[-2:])]
    return [textwrap.dedent(passage.strip("\n")) for passage in passages]


def _read_modules() -> Iterator[Documented]:
    names = Path(__file__).with_name("python_modules.txt").read_text("utf-8").split()
    for name in names:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = importlib.import_module(name)
        except ImportError:  # which not every build of Python has
            continue
        page = f"{DOCS}/library/{name.lower()}.html"
        if name != "builtins" and (doc := _read_doc(module)):
            yield name, name, doc, page
        for own, thing in _list_members(module):
            if name == "builtins":
                yield from _describe(own, thing, f"{DOCS}/library/{_find_builtin_page(thing)}.html")
            else:
                yield from _describe(f"{name}.{own}", thing, page)


def _list_members(module: Any) -> list[tuple[str, Any]]:
    """The public functions that a module offers as its own, and then its classes."""
    listed = getattr(module, "__all__", None)
    names = listed or [name for name in vars(module) if not name.startswith("_")]
    top = module.__name__.partition(".")[0]
    things = [(name, getattr(module, name, None)) for name in dict.fromkeys(names)]
    if listed is None:
        things = [(name, thing) for name, thing in things if _is_from(top, getattr(thing, "__module__", None) or top)]
    routines = [(name, thing) for name, thing in things if inspect.isroutine(thing)]
    classes = [(name, thing) for name, thing in things if inspect.isclass(thing)]
    return routines + sorted(classes, key=lambda named: named[0] in TWINS)


def _is_from(top: str, module: str) -> bool:
    """Whether a thing of this module is offered by the one: its own, or of its part in C."""
    return module.partition(".")[0].lstrip("_") in (top, "posix", "posixpath", "builtins")


def _find_builtin_page(thing: Any) -> str:
    if not inspect.isclass(thing):
        return "functions"
    return "exceptions" if issubclass(thing, BaseException) else "stdtypes"


def _describe(title: str, thing: Any, page: str) -> Iterator[Documented]:
    """A function, or a class and its public methods."""
    if doc := _read_doc(thing) or (_read_doc(vars(thing).get("__init__")) if inspect.isclass(thing) else ""):
        yield title, *_sign(title, thing, doc), f"{page}#{title}"
    for name, own in vars(thing).items() if inspect.isclass(thing) else ():
        if not name.startswith("_") and (doc := _read_doc(own)):
            yield f"{title}.{name}", *_sign(f"{title}.{name}", own, doc), f"{page}#{title}.{name}"


def _read_doc(thing: Any) -> str:
    """What a thing says of itself, and not what its type says."""
    doc = getattr(thing, "__doc__", None)
    if not isinstance(doc, str) or (not inspect.isclass(thing) and doc == type(thing).__doc__):
        return ""
    doc = inspect.cleandoc(doc)
    return "" if len(doc) < SHORTEST or _NO_ANSWER.search(doc[:60]) else doc


def _sign(title: str, thing: Any, doc: str) -> tuple[str, str]:
    """The title with the signature, and the docstring without the one that it may begin with."""
    name, (first, _, rest) = title.rpartition(".")[2], doc.partition("\n")
    begins = re.match(rf"(?:\w+\.)*{re.escape(name)}\(", first)
    if begins and rest.strip():
        doc = rest.strip("\n")
    function = getattr(thing, "__func__", thing)
    if not callable(function):
        return title, doc
    try:
        signature = re.sub(r"\((?:self|cls|type)(?:, /)?(?:, )?", "(", str(inspect.signature(function)), count=1)
    except (ValueError, TypeError, AttributeError):  # of functions in C, some say it in the docstring alone
        signature = first[begins.end() - 1 :] if begins else "(...)"
    return title + ("(...)" if _ADDRESS.search(signature) or len(signature) > 200 else signature), doc


def _read_topics() -> Iterator[Documented]:
    """The sections of the language reference, by their headings."""
    from pydoc_data.topics import topics

    for topic in sorted(topics):
        before, *parts = _HEADING.split(topics[topic])  # heading, its rule, what follows, and again
        for heading, text in [(topic, before), *zip(parts[::3], parts[2::3], strict=True)]:
            if len(text.strip()) >= SHORTEST:
                title = heading.replace('"', "").strip()
                yield title, title, re.sub(r"(?m)^   ", "", text).strip("\n"), ""
