import gzip
import json
from unittest import mock

import pytest

from data_pipeline.core.errors import KinspanError
from finetune.data.builders.asnq import REPEATED, build_asnq
from finetune.data.registry import load_split

PAGE = "<P> The answer is {k} . Another sentence . </P> <P> {k} again . </P>"


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    """Starting worker processes takes longer than all the work."""
    monkeypatch.setattr("finetune.data.builders.asnq.map_chunks", lambda work, chunks, _: map(work, chunks))


def line(k, annotators=1, question=None):
    answer = {"long_answer": {"start_token": 0, "end_token": 10}, "short_answers": [{"start_token": 4, "end_token": 5}]}
    record = {"question_text": question or f"question {k}", "document_text": PAGE.format(k=k)}
    return json.dumps({**record, "annotations": [{**answer, "yes_no_answer": "NONE"}] * annotators}) + "\n"


def write(path, lines):
    path.write_bytes(gzip.compress("".join(lines).encode()) if path.suffix == ".gz" else "".join(lines).encode())
    return str(path)


def questions_of(folder, split):
    return list(load_split(f"asnq={folder}", split).questions)


def test_train_in_the_order_of_the_files(tmp_path):
    files = [
        write(tmp_path / "b.jsonl.gz", map(line, range(30, 60))),
        write(tmp_path / "a.jsonl", map(line, range(30))),
    ]
    with mock.patch("data_pipeline.prepare.encode.CHUNK_BYTES", 1000):
        tallies = build_asnq(files, [], tmp_path / "asnq")
    assert questions_of(tmp_path / "asnq", "train") == [f"question {k}" for k in [*range(30, 60), *range(30)]]
    assert dict(tallies["train"].labels["train"]) == {1: 0, 2: 60, 3: 60, 4: 60}
    data = load_split(f"asnq={tmp_path / 'asnq'}", "train")
    assert data.answers[:3].to_pylist() == ["The answer is 30 .", "Another sentence .", "30 again ."]
    assert [p.name for p in (tmp_path / "asnq").iterdir()] == ["train.tsv"]


def test_dev_is_halved_by_question_alone(tmp_path):
    def halves(name, order):
        source = write(tmp_path / f"{name}.jsonl", [line(k, annotators=5) for k in order])
        tally = build_asnq([], [source], tmp_path / name)["dev"]
        found = [questions_of(tmp_path / name, split) for split in ("dev", "test")]
        assert [tally.questions[split] for split in ("dev", "test")] == list(map(len, found))
        return found

    dev, test = halves("up", range(41))
    assert (len(dev), len(test)) == (21, 20)
    assert sorted(dev + test) == sorted(f"question {k}" for k in range(41))
    assert dev == sorted(dev, key=lambda q: int(q.split()[1]))  # the order of the file, not of the hash
    assert [q for q in dev if int(q.split()[1]) < 21] != dev
    down = halves("down", reversed(range(41)))
    assert [sorted(half) for half in down] == [sorted(dev), sorted(test)]


def test_what_is_left_out_is_counted(tmp_path):
    lines = [line(0), "{\n", "[]\n", "\n", line(1), line(2, question="question 0")]
    tally = build_asnq([write(tmp_path / "nq.jsonl", lines)], [], tmp_path / "asnq", max_rejected=0.1)["train"]
    assert (tally.outcomes["kept"], tally.outcomes[REPEATED], tally.read.rejected) == (2, 1, 2)
    assert tally.first_rejected.startswith(f"{tmp_path}/nq.jsonl line 2: not JSON")
    assert questions_of(tmp_path / "asnq", "train") == ["question 0", "question 1"]


def test_files_are_written_whole_or_not_at_all(tmp_path):
    build_asnq([write(tmp_path / "nq.jsonl", [line(0)])], [], tmp_path / "asnq")
    before = (tmp_path / "asnq/train.tsv").read_bytes()
    broken = tmp_path / "broken.jsonl.gz"
    broken.write_bytes(gzip.compress("".join(map(line, range(2000))).encode())[:-100])
    with pytest.raises(KinspanError, match=r"broken\.jsonl\.gz line \d+"):
        build_asnq([str(broken)], [], tmp_path / "asnq")
    with pytest.raises(KinspanError, match=r"--train: .* line 1"):
        build_asnq([write(tmp_path / "no.jsonl", ["{\n"])], [], tmp_path / "asnq")
    assert [(p.name, p.read_bytes()) for p in (tmp_path / "asnq").iterdir()] == [("train.tsv", before)]


def test_flags_that_name_nothing(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for train, dev, flag in (
        *[([], [], "--train"), (["absent*"], [], "--train"), ([], [str(tmp_path / "empty")], "--dev")],
    ):
        with pytest.raises(KinspanError, match=flag):
            build_asnq(train, dev, tmp_path / "asnq")
    with pytest.raises(KinspanError, match="--output_dir"):
        build_asnq([write(tmp_path / "nq.jsonl", [line(0)])], [], tmp_path / "file")
