"""The model card of a pre-training run: a cross-encoder, a bi-encoder or an adapter."""

import math
from typing import Any, Literal

from huggingface_hub import EvalResult, ModelCardData

from pretrain.modeling.families import FAMILIES
from pretrain.modeling.siamese.model import TEMPERATURE

from .metadata import CardOverrides, make_metadata, make_results, render_card

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
# Of the model index: each figure's name on the hub, and its title
_PAIR_RESULTS = {"pair_auc": ("roc_auc", "AUC"), "pair_accuracy": ("accuracy", "accuracy"), "pair_f1": ("f1", "F1")}
_TEXT_RESULTS = {"pair_mrr": ("mrr", "MRR"), "pair_r1": ("recall_at_1", "R@1")}


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
    """The model card: Markdown with the hub's block of metadata.

    facts:      from ``release.read_run_facts``
    model_type: a key of FAMILIES
    curve:      the picture of the training curves that lies beside the card; empty: there is none
    title:      of an adapter
    tag:        of an adapter, its kind
    more:       what card.md says of a bi-encoder (size, architecture) or an adapter (base, parts, size)

    Raises KinspanError where the block of metadata cannot be read back.
    """
    shorts = [shorten_objective(objective["name"]) for objective in facts["objectives"]]
    title = title or "-".join([facts["model"]["name"], *shorts, *(["siamese"] * (kind == "bi-encoder"))])
    token_loss = facts.get("token_loss", "mlm")
    positive_share = sum(o["share"] / o["pairs_per_anchor"] for o in facts["objectives"])
    first, last = ((facts[f"{which}_validation"] or [None])[0] for which in ("first", "last"))
    return render_card(
        "card.md",
        _describe_run(facts, stated, kind, title, [tag] if tag else shorts),
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


def _describe_run(
    facts: dict[str, Any], stated: CardOverrides, kind: Kind, title: str, tags: list[str]
) -> ModelCardData:
    is_siamese = kind == "bi-encoder"
    return make_metadata(
        stated,
        title,
        [kind, "sentence-transformers" if is_siamese else "answer-sentence-selection", *tags, "kinspan"],
        base_model=None if facts.get("from_scratch") else facts["model"].get("hub_name"),
        datasets=_find_datasets(facts["corpus"]),
        results=_list_results(facts, is_siamese),
        library=None if kind == "adapter" else "sentence-transformers",
        task="sentence-similarity" if is_siamese else "text-ranking",
    )


def _find_datasets(corpus: dict[str, Any]) -> list[str]:
    """The hub's names of the data sets that the corpus was streamed from, see readers/huggingface.py."""
    names = [source["name"] for source in corpus["sources"] if str(source.get("name", "")).startswith("hf:")]
    found = [name.split(":")[1] for name in names]
    return list(dict.fromkeys(name for name in found if name.count("/") == 1 and not name.startswith((".", "/"))))


def _list_results(facts: dict[str, Any], is_siamese: bool) -> list[EvalResult]:
    """The last validation for the model index; nothing of weights that validation never saw, such as an average."""
    if facts.get("averaged_steps") or not facts["settings"]["pair_weight"] or not _is_validated(facts):
        return []
    known, what = (_TEXT_RESULTS, "texts") if is_siamese else (_PAIR_RESULTS, "pairs")
    return [
        result
        for last in facts["last_validation"]
        for result in make_results(
            {hub: last[figure] for figure, (hub, _) in known.items() if figure in last},
            dict(known.values()),
            f"held-out {what} of the pre-training documents ({name_objectives(facts)})",
            split="validation",
            task="information-retrieval" if is_siamese else "text-classification",
        )
    ]


def _is_validated(facts: dict[str, Any]) -> bool:
    """Whether the last validation is of the step that is released: a run may validate less often than it saves."""
    return all(last["step"] == facts["step"] for last in facts["last_validation"])


def find_warnings(facts: dict[str, Any]) -> list[str]:
    """What should make a reader of a release's figures wary, as clauses without a full stop."""
    warnings = []
    for last in facts["last_validation"]:
        if facts["settings"]["pair_weight"] and last.get("pair_accuracy_positive") == 0:
            warnings.append(
                "the pair head calls no held-out pair positive: its scores may rank, but as a classifier it always "
                "says no, and the accuracy is only the share of negatives; usual below a few hundred updates"
            )
        documents = facts.get("validation_documents")
        if documents is not None and documents < FEWEST_DOCUMENTS:
            warnings.append(
                f"the figures rest on {documents} held-out documents: with fewer than {FEWEST_DOCUMENTS} they say "
                "little (a larger --validation_share of kinspan prepare holds out more)"
            )
    return warnings


def name_objectives(facts: dict[str, Any]) -> str:
    """The objectives in a few words: "SSP", "SSP, SP and PSD", or a name of the user's own as it is."""
    names = [shorten_objective(o["name"]) if ":" in o["name"] else o["name"].upper() for o in facts["objectives"]]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def shorten_objective(objective: str) -> str:
    """The name of an objective of the user's own without what names it within its module."""
    return objective.partition(":")[0]


def _list_figures(facts: dict[str, Any], first: dict[str, Any], last: dict[str, Any]) -> list[str]:
    """The names of the figures that the card shows: of all pairs, then of each part of a mixture."""
    parts = facts.get("parts") or [objective["name"] for objective in facts["objectives"]]
    corpora = [corpus["name"] for corpus in facts["corpus"].get("corpora", [])]
    of_parts = [f"{name}/{figure}" for name in dict.fromkeys([*corpora, *parts]) for figure in _OF_EACH]
    return [name for name in (*_FIGURES, *of_parts) if name in first and name in last]
