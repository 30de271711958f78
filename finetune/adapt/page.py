"""The table and the page of an adaptation: the verdict and the rankers."""

from pathlib import Path

from data_pipeline.core.files import JsonObject
from data_pipeline.core.pages import render_template
from finetune.evaluation.significance import format_p

COLUMNS = "gain: over the base model; p: of a gain by chance, the choice counted; ms: for a question's candidates"
SEARCHED = "MRR@10, R@10: of all the documents' paragraphs, those that BM25 and the base model find are ranked"


def format_result(result: JsonObject) -> str:
    """Returns the table of rankers and the verdict, for the terminal."""
    rows = result["sample"]["rows"] if "sample" in result else result["rankers"]
    width = max(len(row["name"]) for row in rows)
    if "sample" in result:
        lines = [f"{'MAP on questions of SelQA':<{width}}  MAP    95% interval"]
        lines += [f"{row['name']:<{width}}  {row['map']:.2f}   {row['low']:.2f} to {row['high']:.2f}" for row in rows]
        lines += ["", result["sample"]["sentence"]]
    else:
        searched = rows[0]["search"]
        lines = [f"{'':<{width}}    MAP    gain      p      ms    MB" + "  MRR@10    R@10" * bool(searched)]
        for row in rows:
            gain = "" if row["p"] is None else f"  {row['gain']:+.3f}  {format_p(row['p']):>5}"
            cost = f"{row['ms']:6,.0f}  {row['megabytes']:4,.0f}"
            search = "".join(f"   {value:.3f}" for value in row["search"].values())
            lines.append(f"{row['name']:<{width}}  {row['map']:.3f}{gain:<15}  {cost}{search}")
        lines += [COLUMNS, *[SEARCHED] * bool(searched), ""]
    released = [f"released: {result['release']}"] if result["release"] else []
    lines += [result["verdict"], *released, f"page: {result['page']}", result["size"], "next:"]
    return "\n".join([*lines, *(f"  {command}" for command in result["commands"])])


def render_page(result: JsonObject) -> str:
    """Returns the HTML page of the content of ``result.json``."""
    title = "Which ranker is best for your documents?" if result["chosen"] else "Pre-trained on your documents"
    return render_template(Path(__file__).parent, "adapt.html", title=title, result=result)
