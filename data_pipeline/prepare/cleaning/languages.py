"""Finding out which language a document is in."""

from functools import cache
from typing import Any

from data_pipeline.errors import KinspanError

MAX_CHARS = 1000  # of a document that are looked at, from its middle
UNKNOWN = "unknown"


@cache
def _load_model() -> Any:
    """Load the identifier, whose model is a part of its package: no network is needed."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        raise KinspanError("--languages needs py3langid: pip install 'kinspan[web]'") from error
    return LanguageIdentifier.from_model_file(MODEL_FILE)


def check_languages(languages: list[str]) -> None:
    known = set(_load_model().labels) if languages else set()
    if wrong := [code for code in languages if code not in known]:
        raise KinspanError(
            f"--languages {wrong[0]}: not a known code (ISO 639, such as en); known are {' '.join(sorted(known))}"
        )


def detect_language(paragraphs: list[str]) -> str:
    """Name the language of a document by its code of ISO 639: two letters where there are two, else three."""
    text = " ".join(paragraphs[:50])
    begin = max(0, len(text) - MAX_CHARS) // 2
    text = text[begin : begin + MAX_CHARS]
    if not any(map(str.isalpha, text)):
        return UNKNOWN
    return str(_load_model().classify(text)[0])
