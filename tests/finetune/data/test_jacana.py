import gzip

import pytest

from data_pipeline.core.errors import KinspanError
from finetune.data.registry import load_split

QUESTION = "<question>\nWho\tis\tAT&T\t<\t?\nWP\tVBZ\tNNP\tNN\t.\n-\t-\tORG-B\t-\t-\n</question>\n"
PAIRS = f"""<QApairs id='1.4'>
{QUESTION}<negative>
A\t``\tcompany\t.
DT\tNN\t.
</negative>
<positive>
<num>\tmen\t& so on
</positive>
</QApairs>
<QApairs id='2'>
<question>
When\t?
</question>
</QApairs>
<QApairs id='3.1'>
<question>
Where\t?
</question>
<positive>
</positive>
</QApairs>
"""


def test_the_first_line_of_an_element_is_its_text(tmp_path):
    (tmp_path / "dev-less-than-40.manual-edit.xml").write_text(PAIRS)
    data, notes = load_split(f"jacana={tmp_path}", "dev")
    assert data.question_ids == ["1.4", "3.1"]
    assert data.questions == ["Who is AT&T < ?", "Where ?"]
    assert data.answers.to_pylist() == ["A `` company .", "<num> men & so on", ""]
    assert sorted(data.answer_ids.to_pylist()) == ["1.4-1", "1.4-2", "3.1-1"]
    assert data.labels.tolist() == [0, 1, 1]
    assert notes == [
        "jacana dev: questions without a candidate, left out: 1",
        "jacana dev: candidates without text, kept: 1",
    ]


def test_train_is_the_larger_file_where_both_are_there(tmp_path):
    small = "<QApairs id='9'>\n<question>\nWhy\n</question>\n<positive>\nx\n</positive>\n</QApairs>\n"
    (tmp_path / "train-less-than-40.manual-edit.xml").write_text(small)
    data, notes = load_split(f"jacana={tmp_path}", "train")
    assert (data.num_questions, notes) == (1, ["jacana train: read from train-less-than-40.manual-edit.xml"])
    (tmp_path / "train2393.cleanup.xml.gz").write_bytes(gzip.compress(PAIRS.encode()))
    data, notes = load_split(f"jacana={tmp_path}", "train")
    assert (data.num_questions, notes[0]) == (2, "jacana train: read from train2393.cleanup.xml.gz")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (PAIRS.replace("</negative>\n", ""), 10),
        (PAIRS[: PAIRS.index("</negative>")], 7),
        (PAIRS.replace(QUESTION, ""), 2),
        (QUESTION, 1),
        (PAIRS.replace("'3.1'", "'1.4'"), 21),
    ],
)
def test_tags_out_of_place_are_named(tmp_path, text, line):
    (tmp_path / "TEST.xml").write_text(text)
    with pytest.raises(KinspanError, match=f"TEST.xml line {line}:"):
        load_split(f"jacana={tmp_path}", "test")


def test_the_unedited_files_of_the_distribution_are_found(tmp_path):
    (tmp_path / "test-less-than-40.xml").write_text(PAIRS)
    assert load_split(f"jacana={tmp_path}", "test")[0].num_questions == 2
