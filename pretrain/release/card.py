"""The model card of a pre-training run: a cross-encoder, a bi-encoder or an adapter."""

import math
from typing import Any, Literal

from huggingface_hub import ModelCardData

from pretrain.modeling.families import FAMILIES
from pretrain.modeling.siamese.model import TEMPERATURE

from .metadata import CardOverrides, make_metadata, render_card

FEWEST_DOCUMENTS = 20  # held out: with fewer, the figures of validation say little of other documents
Kind = Literal["cross-encoder", "bi-encoder", "adapter"]
_FIGURES = (
    "pair_loss",
    "pair_mrr",
    "pair_r1",
    "pair_auc",
    "pair_accuracy",
    "pair_f1",
    "pair_f1_hard",
    "pair_f1_easy",
    "mlm_loss",
    "mlm_accuracy",
    "rtd_loss",
    "rtd_recall",
)
_OF_EACH = ("pair_loss", "pair_auc", "pair_accuracy", "pair_f1")  # of each part of a mixture
_WEIGHTS = {"rtd": ("mlm", "rtd", "pair"), "mlm": ("mlm", "pair"), "none": ("pair",)}


def format_card(
    facts: dict[str, Any],
    model_type: str,
    stated: CardOverrides,
    kind: Kind = "cross-encoder",
    curve: str = "",
    title: str = "",
    tag: str = "",
    **more: Any,
) -> str:
    """Returns the model card: Markdown with the hub's block of metadata.

    facts:      from ``release.read_run_facts``
    model_type: a key of FAMILIES
    curve:      the picture of the training curves that lies beside the card; empty: there is none
    title:      of an adapter
    tag:        of an adapter, its kind
    more:       what card.md says of a bi-encoder (size, architecture) or an adapter (base, parts, size)
    """
    shorts = [shorten_objective(objective["name"]) for objective in facts["objectives"]]
    title = title or "-".join([facts["model"]["name"], *shorts, *(["siamese"] * (kind == "bi-encoder"))])
    token_loss = facts.get("token_loss", "mlm")
    positive_share = sum(o["share"] / o["pairs_per_anchor"] for o in facts["objectives"])
    first, last = ((facts[f"{which}_validation"] or [None])[0] for which in ("first", "last"))
    return render_card(
        "card.md",
        _make_metadata(facts, stated, kind, [tag] if tag else shorts),
        stated,
        facts=facts,
        title=title,
        kind=kind,
        family=FAMILIES[model_type],
        objective=name_objectives(facts),
        with_generator=token_loss == "rtd",
        weights={name: facts["settings"][f"{name}_weight"] for name in _WEIGHTS[token_loss]},
        averaged=facts.get("averaged_steps", []),
        temperature=TEMPERATURE,
        max_length=facts["max_length"],
        curve=curve,
        warnings=find_warnings(facts),
        first=first,
        last=last,
        figures=_list_figures(facts, first, last) if last else [],
        is_validated=_is_validated(facts),
        positive_share=positive_share,
        chance_loss=-sum(p * math.log(p) for p in (positive_share, 1 - positive_share) if p),  # in nats
        **more,
    )


def _make_metadata(facts: dict[str, Any], stated: CardOverrides, kind: Kind, tags: list[str]) -> ModelCardData:
    is_siamese = kind == "bi-encoder"
    return make_metadata(
        stated,
        [kind, "sentence-transformers" if is_siamese else "answer-sentence-selection", *tags, "kinspan"],
        base_model=None if facts.get("from_scratch") else facts["model"].get("hub_name"),
        datasets=_find_datasets(facts["corpus"]),
        library=None if kind == "adapter" else "sentence-transformers",
        task="sentence-similarity" if is_siamese else "text-ranking",
    )


def _find_datasets(corpus: dict[str, Any]) -> list[str]:
    """Returns the hub's names of the data sets that the corpus was streamed from, see readers/huggingface.py."""
    sources = [source["name"] for source in corpus["sources"] if str(source.get("name", "")).startswith("hf:")]
    names = [source.split(":")[1] for source in sources]
    return list(dict.fromkeys(name for name in names if name.count("/") == 1 and not name.startswith((".", "/"))))


def _is_validated(facts: dict[str, Any]) -> bool:
    """Returns whether the last validation is of the released step: a run may validate less often than it saves."""
    return all(last["step"] == facts["step"] for last in facts["last_validation"])


def find_warnings(facts: dict[str, Any]) -> list[str]:
    """Returns reasons not to trust the figures, as clauses without a full stop."""
    warnings = []
    for last in facts["last_validation"]:
        if facts["settings"]["pair_weight"] and last.get("pair_accuracy_positive") == 0:
            warnings.append(
                "the pair head calls no held-out pair positive: its scores may rank, but its accuracy is only the "
                "share of negatives; usual below a few hundred updates"
            )
        documents = facts.get("validation_documents")
        if documents is not None and documents < FEWEST_DOCUMENTS:
            warnings.append(f"the figures rest on {documents} held-out documents, below {FEWEST_DOCUMENTS}")
    return warnings


def name_objectives(facts: dict[str, Any]) -> str:
    """Returns the objectives as "SSP", or "SSP, SP and PSD"; a user's objective keeps its name."""
    names = [shorten_objective(o["name"]) if ":" in o["name"] else o["name"].upper() for o in facts["objectives"]]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def shorten_objective(objective: str) -> str:
    """Returns the name of a user's objective without its place in the module."""
    return objective.partition(":")[0]


def _list_figures(facts: dict[str, Any], first: dict[str, Any], last: dict[str, Any]) -> list[str]:
    """Returns the names of the figures that the card shows: of all pairs, then of each part of a mixture."""
    parts = facts.get("parts") or [objective["name"] for objective in facts["objectives"]]
    corpora = [corpus["name"] for corpus in facts["corpus"].get("corpora", [])]
    of_parts = [f"{name}/{figure}" for name in dict.fromkeys([*corpora, *parts]) for figure in _OF_EACH]
    return [name for name in (*_FIGURES, *of_parts) if name in first and name in last]
