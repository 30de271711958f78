"""The model card of a release."""

import math
from typing import Any

from huggingface_hub import EvalResult

from pretrain.modeling.families import FAMILIES
from pretrain.modeling.siamese.model import TEMPERATURE

from .curve import CURVE
from .metadata import Stated, describe_licence, make_metadata, make_results
from .usage import format_loading, format_usage

_TEXT = """---
{metadata}
---

# {title}

{base} {how} with **{objective}** and {token_loss}{scores}

## Use

{usage}

`AutoModelForSequenceClassification` (`{classifier}`) gives the same score as a logit;
{masked_lm}

## Training

{training}

{curve}{objectives}

## Data

{data}

## Figures

{warnings}On {pairs} pairs of held-out documents, before training and at {measured}:

{figures}

{compared}

## Licence

{licence}
"""

FEWEST_DOCUMENTS = 20  # held out: with fewer, the figures of validation say little of other documents
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

_SCORES = """: given two texts A and B, it
scores {asks}. Made to be fine-tuned on answer sentence selection, and usable as it is to rank
sentences by how well they go with another."""

_TOKENS_ALONE = """. The pair loss had no weight: the pairs gave the
data, and **the pair head is untrained**. Made to be fine-tuned, and to compare with."""

_BESIDE = """`AutoModelForMaskedLM` (`{masked_lm}`) the masked-LM head. One file holds both heads, so that
`transformers` lists the other one's tensors as UNEXPECTED; none is missing or fresh."""

_PERMUTED = """. **The labels of the pairs were permuted**, as a
control for studies: the pair head has learned nothing that would rank anything."""

_IN_A_FOLDER = """the masked-LM model (`{masked_lm}`) is in the folder `{folder}`:
{loading}."""


_GENERATOR = """`AutoModelForPreTraining`
(`ElectraForPreTraining`) tells replaced tokens from original ones. One file holds both heads, so that `transformers`
lists the other one's tensors as UNEXPECTED; none is missing or fresh. The generator (`{masked_lm}`) is in the folder
`{folder}`: {loading}."""


_IN_RESULTS = {"pair_auc": "AUC", "pair_accuracy": "accuracy", "pair_f1": "F1"}
_HUB_METRICS = {"pair_auc": "roc_auc", "pair_accuracy": "accuracy", "pair_f1": "f1"}  # the hub's names of them


def format_card(facts: dict[str, Any], model_type: str, stated: Stated, with_curve: bool = False) -> str:
    """The model card: Markdown with the Hub's block of metadata.

    facts:      from ``release.read_run_facts``
    model_type: a key of FAMILIES
    with_curve: the training curves lie beside the card
    """
    family = FAMILIES[model_type]
    objectives = facts["objectives"]
    with_generator = facts.get("token_loss") == "rtd"
    masked_lm = _GENERATOR if with_generator else _IN_A_FOLDER if family.masked_lm_folder else _BESIDE
    folder = "generator" if with_generator else family.masked_lm_folder
    settings, corpus = facts["settings"], facts["corpus"]
    shorts = [shorten_objective(o["name"]) for o in objectives]
    title = f"{facts['model']['name']}-{'-'.join(shorts)}"
    metadata = describe_run(facts, stated, title, ["cross-encoder", "answer-sentence-selection", *shorts, "kinspan"])
    averaged = facts.get("averaged_steps", [])
    rows = {
        "Steps": f"{facts['step']:,} of {facts['total_steps']:,}",
        "Weights": f"the average of those at the steps {', '.join(f'{step:,}' for step in averaged)}",
        "Pairs in a batch": settings["global_batch_size"],
        f"Tokens of a {'text' if settings.get('pair_loss') else 'pair'}, at most": facts["max_length"],
        "Weights of the losses": _format_weights(settings, facts.get("token_loss", "mlm")),
        "Peak learning rate": f"{settings['learning_rate']}, {facts['warmup_steps']} steps of warm-up",
        "Precision": facts["precision"],
        "ZeRO stage": facts["zero_stage"],
        "Seed": settings["seed"],
    }
    if not averaged:
        del rows["Weights"]
    if settings.get("pair_loss"):
        rows["Cosines are divided by"] = settings["temperature"] or TEMPERATURE
        rows["Texts find their queries, too"] = "yes" if settings["symmetric"] else "no"
        rows["Negatives of its own, each query"] = settings["own_negatives"] or 0
    if with_generator:
        rows["Generator"] = f"{facts['generator']}, embeddings: {settings['embedding_sharing']}"
    training = "| | |\n|---|---|\n" + "\n".join(f"| {k} | {v} |" for k, v in rows.items())
    return _TEXT.format(
        metadata=metadata,
        title=title,
        usage=format_usage(stated, facts["max_length"]),
        base=facts["model"]["name"],
        how="trained from scratch" if facts.get("from_scratch") else "after continued pre-training",
        objective=name_objectives(facts),
        scores=_format_scores(facts),
        objectives="\n".join(map(_format_objective, objectives)),
        compared=_format_comparison(facts),
        token_loss="replaced-token detection (ELECTRA)" if with_generator else "masked language modelling",
        classifier=family.classifier,
        masked_lm=masked_lm.format(
            masked_lm=family.masked_lm,
            folder=folder,
            loading=format_loading(stated, "AutoModelForMaskedLM", folder or ""),
        ),
        training=training,
        curve=f"![Training curves]({CURVE})\n\n" if with_curve else "",
        data=_format_data(corpus),
        pairs=f"{facts['eval_pairs']:,}",
        warnings="".join(f"**Mind that {text}.**\n\n" for text in find_warnings(facts)),
        measured=_name_measured(facts),
        figures=_format_figures(facts),
        licence=describe_licence(stated),
    )


def describe_run(
    facts: dict[str, Any],
    stated: Stated,
    title: str,
    tags: list[str],
    results: list[EvalResult] | None = None,
    **more: Any,
) -> str:
    """The card's block of metadata, from what the run knows and what was stated.

    results: None: those of the pair head
    more:    of make_metadata
    """
    return make_metadata(
        stated,
        title,
        tags,
        base_model=None if facts.get("from_scratch") else facts["model"].get("hub_name"),
        datasets=_find_datasets(facts["corpus"]),
        results=_list_results(facts) if results is None else results,
        **more,
    )


def _find_datasets(corpus: dict[str, Any]) -> list[str]:
    """The hub's names of the data sets that the corpus was streamed from, see readers/huggingface.py."""
    names = [source["name"] for source in corpus["sources"] if str(source.get("name", "")).startswith("hf:")]
    found = [name.split(":")[1] for name in names]
    return list(dict.fromkeys(name for name in found if name.count("/") == 1 and not name.startswith((".", "/"))))


def _list_results(facts: dict[str, Any]) -> list[EvalResult]:
    """The last validation for the model index; nothing of weights that validation never saw, such as an average."""
    if facts.get("averaged_steps") or not facts["settings"]["pair_weight"] or not _is_validated(facts):
        return []
    name = f"held-out pairs of the pre-training documents ({name_objectives(facts)})"
    titles = {_HUB_METRICS[figure]: title for figure, title in _IN_RESULTS.items()}
    figures = [{_HUB_METRICS[f]: last[f] for f in _IN_RESULTS if f in last} for last in facts["last_validation"]]
    return [
        result
        for of_last in figures
        for result in make_results(of_last, titles, name, split="validation", task="text-classification")
    ]


def _is_validated(facts: dict[str, Any]) -> bool:
    """Whether the last validation is of the step that is released: a run may validate less often than it saves."""
    return all(last["step"] == facts["step"] for last in facts["last_validation"])


def _name_measured(facts: dict[str, Any]) -> str:
    """Of which weights the last figures are."""
    if not _is_validated(facts):
        return f"step {facts['last_validation'][0]['step']:,}, the last one before these weights that was validated"
    if facts.get("averaged_steps"):
        return "the last of these checkpoints, not of their average"
    return "this checkpoint"


def find_warnings(facts: dict[str, Any]) -> list[str]:
    """What should make a reader of a release's figures wary, as clauses without a full stop.

    facts: from ``release.read_run_facts``
    """
    warnings = []
    for last in facts["last_validation"]:
        if facts["settings"]["pair_weight"] and last.get("pair_accuracy_positive") == 0:
            warnings.append(
                "the pair head calls no held-out pair positive: its scores may rank, but as a classifier it always "
                "says no, and the accuracy is only the share of negatives"
            )
        documents = facts.get("validation_documents")
        if documents is not None and documents < FEWEST_DOCUMENTS:
            warnings.append(
                f"the figures rest on {documents} held-out documents: with fewer than {FEWEST_DOCUMENTS} they say "
                "little (a larger --validation_share of launch/prepare.py holds out more)"
            )
    return warnings


def format_training(facts: dict[str, Any], model_type: str, stated: Stated, with_curve: bool = False) -> str:
    """The sections of a card from the training on: they say the same of a model, a bi-encoder and an adapter."""
    _, title, sections = format_card(facts, model_type, stated, with_curve).partition("\n## Training\n")
    return title + sections


def name_objectives(facts: dict[str, Any]) -> str:
    """The objectives in a few words: "SSP", "SSP, SP and PSD", or a name of the user's own as it is."""
    names = [shorten_objective(o["name"]) if ":" in o["name"] else o["name"].upper() for o in facts["objectives"]]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def shorten_objective(objective: str) -> str:
    """The name of an objective of the user's own without what names it within its module."""
    return objective.partition(":")[0]


def _format_weights(settings: dict[str, Any], token_loss: str) -> str:
    names = {"rtd": ("mlm", "rtd", "pair"), "mlm": ("mlm", "pair"), "none": ("pair",)}[token_loss]
    return ", ".join(f"{name} {settings[f'{name}_weight']:g}" for name in names)


def _format_scores(facts: dict[str, Any]) -> str:
    if not facts["settings"]["pair_weight"]:
        return _TOKENS_ALONE
    if facts["settings"].get("permute_pair_labels"):
        return _PERMUTED
    return _SCORES.format(asks="; or ".join(o["asks"] for o in facts["objectives"]))


def _format_objective(objective: dict[str, Any]) -> str:
    name, share = objective["name"], f", {objective['share']:.0%} of the pairs" if objective["share"] < 1 else ""
    source = f" ({objective['source']})" if objective["source"] else ""
    negatives = f" Negatives: {objective['negatives']}." if objective["negatives"] else ""
    if objective["pairs_per_anchor"] == 1:
        return f"- **{name}**: A and B of its positives{source}{share}. The other texts of a batch are the negatives."
    positives = f"One pair in {objective['pairs_per_anchor']} is positive{share}."
    return f"- **{name}**: {objective['asks']}{source}. {positives}{negatives}"


def _format_comparison(facts: dict[str, Any]) -> str:
    """What the figures are to be compared with."""
    if facts["settings"].get("pair_loss"):
        texts = facts["eval_pairs"] * (1 + (facts["settings"]["own_negatives"] or 0))
        return (
            "Of all texts B of these pairs, the one of each A is looked for: MRR is the mean of 1 / its rank, R@1 the "
            f"share of those that come first. Chance finds one in {texts:,}.{_describe_masks(facts['settings'])}"
        )
    share = _compute_positive_share(facts["objectives"])
    return f"Always predicting the share of positives ({share:.0%}) gives a pair loss of {_compute_entropy(share):.3f}."


def _describe_masks(settings: dict[str, Any]) -> str:
    share = settings["mlm_probability"]
    return f" The texts are masked as in training, {share:.0%} of their tokens." if share else ""


def _compute_positive_share(objectives: list[dict[str, Any]]) -> float:
    return sum(o["share"] / o["pairs_per_anchor"] for o in objectives)


def _compute_entropy(share: float) -> float:
    """The loss, in nats, of a model that always predicts the share of positives."""
    return -share * math.log(share) - (1 - share) * math.log(1 - share)


def _format_data(corpus: dict[str, Any]) -> str:
    totals = corpus["totals"]
    lines = [
        f"{totals['documents']:,} documents, {totals['paragraphs']:,} paragraphs, {totals['tokens']:,} tokens; "
        f"fingerprint `{corpus['fingerprint'][:16]}`.",
        "",
    ]
    for own in corpus.get("corpora", []):
        lines.append(
            f"- {own['share']:.1%} of the pairs from **{own['name']}**: {own['totals']['documents']:,} documents, "
            f"fingerprint `{own['fingerprint'][:16]}`"
        )
    lines += [f"- {s['origin']}: {s['documents']:,} documents, licence: {s['licence']}" for s in corpus["sources"]]
    if any(s["licence"] == "not stated" for s in corpus["sources"]):
        lines += ["", "To state a licence here, prepare the corpus with `--licence NAME`, or edit this card."]
    return "\n".join(lines)


def _format_figures(facts: dict[str, Any]) -> str:
    if not facts["last_validation"]:
        return "(this run was not validated)"
    first, last = facts["first_validation"][0], facts["last_validation"][0]
    lines = [f"| | step {first['step']} | step {last['step']} |", "|---|---|---|"]
    parts = facts.get("parts") or [o["name"] for o in facts["objectives"]]
    corpora = [corpus["name"] for corpus in facts["corpus"].get("corpora", [])]
    of_parts = [f"{name}/{n}" for name in dict.fromkeys([*corpora, *parts]) for n in _OF_EACH]
    names = [n for n in (*_FIGURES, *of_parts) if n in first and n in last]
    lines += [f"| {n} | {first[n]:.3f} | {last[n]:.3f} |" for n in names]
    return "\n".join(lines)
