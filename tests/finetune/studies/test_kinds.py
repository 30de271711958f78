"""Questions by what they ask for, and by the words that their answers repeat."""

import json

import numpy as np

from finetune.studies.kinds import find_kinds, measure_overlap

ASKED = {
    "How many moons does Mars have?": [("Mars has two moons.", 1), ("Mars is red.", 0)],
    "Name the moon that is largest": [("Ganymede is larger than Mercury.", 1), ("Moons shine.", 1)],
    "In which year, and by whom, was it found?": [("Nobody knows.", 1), ("It was found in a year.", 0)],
}


def test_every_question_is_of_one_kind_of_each(answer_set, tmp_path):
    lines = [
        {"qid": f"q{q}", "question": question, "answer": answer, "label": label}
        for q, (question, answers) in enumerate(ASKED.items())
        for answer, label in answers
    ]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = answer_set(tmp_path, "test")
    kinds = find_kinds(data)
    assert kinds["asked"] == {"how many": [0], "which": [2], "other": [1]}
    for by in kinds.values():
        assert sorted(number for numbers in by.values() for number in numbers) == [0, 1, 2]
    # moon and mar of how, many, moon, do, mar, have; of name, the, moon, that, is, largest one; of the last none
    np.testing.assert_allclose(measure_overlap(data), [2 / 6, 1 / 6, 0])
