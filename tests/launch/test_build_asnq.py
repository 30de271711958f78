"""The command in a process of its own: its workers must find the packages."""

import json

from tests.launch.entries import program_of
from tests.programs import run_program


def run(*arguments, cwd):
    return run_program(*program_of("build_asnq"), *arguments, cwd=cwd)


def test_a_tiny_run(tmp_path):
    answer = {"long_answer": {"start_token": 0, "end_token": 6}, "short_answers": [{"start_token": 3, "end_token": 4}]}
    page = {"document_text": "<P> It is blue . </P> <P> Not blue , red . </P> <P> No . </P>"}
    annotations = {"annotations": [{**answer, "yes_no_answer": "NONE"}]}
    lines = [json.dumps({"question_text": f"colour {k}", **page, **annotations}) for k in range(4)]
    (tmp_path / "nq.jsonl").write_text("\n".join([*lines, "{\n"]))
    flags = ["--train", "nq.jsonl", "--dev", "nq.jsonl", "--output_dir", "asnq", "--num_workers", 2]
    done = run(*flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "61,186" in done.stdout  # the paper's, beside ours
    assert "nq.jsonl line 5" in done.stdout
    written = {p.name: p.read_text().splitlines() for p in (tmp_path / "asnq").iterdir()}
    assert {name: len(rows) for name, rows in written.items()} == {"train.tsv": 12, "dev.tsv": 6, "test.tsv": 6}
    assert written["train.tsv"][:3] == [
        "colour 0\tIt is blue .\t4",
        "colour 0\tNot blue , red .\t2",
        "colour 0\tNo .\t1",
    ]
