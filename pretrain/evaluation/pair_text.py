"""The figures of ``evaluate_pairs`` as lines of text, as in table 3 of Di Liello et al., 2022."""

from typing import Any

COLUMNS = {
    "accuracy": "accuracy",
    "f1": "F1",
    "auc": "AUC",
    "accuracy_even": "accuracy at 1:1",
    "f1_even": "F1 at 1:1",
}
ROWS = {"all": "all pairs", "hard": "positive against hard", "easy": "positive against easy"}


def format_figures(result: dict[str, Any]) -> str:
    """The model, and of each objective the counts of pairs and a table of figures with confidence intervals."""
    tokenizer = {
        "corpus": "the model's tokenizer is the corpus's: ids as they are",
        "model": "the model's tokenizer is another: texts were decoded, and encoded anew",
    }
    lines = [f"{result['model']}: {result['head']}; above 0 is called positive", tokenizer[result["tokenizer"]]]
    for name, figures in result["objectives"].items():
        pairs = figures["pairs"]
        counts = ", ".join(f"{count:,} {kind}" for kind, count in pairs.items() if count)
        lines += [
            "",
            f"{name}: the first {figures['anchors']:,} of {figures['anchors_held_out']:,} held-out anchors of seed "
            f"{result['seed']}, {sum(pairs.values()):,} pairs ({counts}) of up to {figures['max_length']} tokens",
            " " * 24 + "".join(f"{title:<20}" for title in COLUMNS.values()).rstrip(),
        ]
        for group, title in ROWS.items():
            if group in figures:
                lines.append(
                    f"{title:<24}" + "".join(f"{_format_interval(figures[group][c]):<20}" for c in COLUMNS).rstrip()
                )
        lines += [f"{f'accuracy on {kind}':<24}{_format_interval(value)}" for kind, value in figures["kinds"].items()]
    return "\n".join(lines)


def _format_interval(figure: list[float]) -> str:
    return "{:.3f} [{:.3f} {:.3f}]".format(*figure)
