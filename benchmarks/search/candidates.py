"""Writes what the bi-encoder of an index finds for a data set's questions, as a split of files=.

A cross-encoder that re-ranks is chosen on what it will see: the first candidates of the first stage, with right answers
among them or not. Questions without a right one are left out by whoever reads the file, as of every data set."""

import json
from pathlib import Path

import numpy as np

from benchmarks import _common
from data_pipeline.core.files import write_atomically
from finetune.data.registry import SPECS, load_split

EPILOG = f"""example:
  python -m benchmarks.search.candidates --index index --data insuranceqa=InsuranceQA --split dev --questions 200 \\
      --output_dir questions

{SPECS}"""


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.prog = "python -m benchmarks.search.candidates"
    parser.add_argument("--index", required=True, help="Index of all answers of the data set.")
    parser.add_argument("--data", required=True, help="Data set, as below, whose questions are asked.")
    parser.add_argument("--split", choices=("train", "dev", "test"), default="dev")
    parser.add_argument("--questions", type=int, help="Ask so many, evenly spaced. Without it: all.")
    parser.add_argument("--candidates", type=int, default=30, help="Candidates of each.")
    parser.add_argument("--output_dir", required=True, help="Folder for SPLIT.jsonl.")
    args = parser.parse_args()
    from serve.search import Searcher

    data, _ = load_split(args.data, args.split)
    if args.questions and args.questions < data.num_questions:
        data = data.take(np.linspace(0, data.num_questions - 1, args.questions).astype(np.int64))
    hits = Searcher(args.index).search(data.questions, args.candidates).hits
    lines = []
    for number, (name, question, rows) in enumerate(
        zip(data.question_ids, data.questions, data.question_slices(), strict=True)
    ):
        right = {data.answer_ids[row].as_py() for row in range(rows.start, rows.stop) if data.labels[row]}
        for hit in hits[number]:
            line = {"question_id": name, "question": question, "answer_id": hit.id, "answer": hit.text}
            lines.append(json.dumps({**line, "label": int(hit.id in right)}, ensure_ascii=False) + "\n")
    folder = Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{args.split}.jsonl", lines)
    print(f"{folder / args.split}.jsonl: {data.num_questions:,} questions, {len(lines):,} candidates")


if __name__ == "__main__":
    _common.run(main)
