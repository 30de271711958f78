"""SemEval: small files of the form of the real ones, and everything that may be wrong with them."""

import pytest

from data_pipeline.core.errors import KinspanError
from finetune.data.registry import load_split
from finetune.data.semeval import DEV, PART_1, PART_2, TESTS
from tests.finetune.data.rows import rows_of


def thread(asked, related, label, body="Which one?"):
    """A new question with one related question and a comment, as SemEval's files have them."""
    of_user = 'DATE="2013-05-02 19:43:00" {0}_USERID="U1" {0}_USERNAME="a &quot;b&quot;"'
    of_comment = 'RELC_RELEVANCE2ORGQ="Good" RELC_RELEVANCE2RELQ="N/A"'
    related_by = f'RELQ_RANKING_ORDER="4" RELQ_CATEGORY="Advice and Help" RELQ_{of_user.format("RELQ")}'
    return f"""<OrgQuestion ORGQ_ID="{asked}">
	<OrgQSubject>Banks &amp; cards</OrgQSubject>
	<OrgQBody>{body}</OrgQBody>

	<Thread THREAD_SEQUENCE="{related}">
		<RelQuestion RELQ_ID="{related}" {related_by} RELQ_RELEVANCE2ORGQ="{label}">
			<RelQSubject>Title {related}</RelQSubject>
			<RelQBody>First line
second line; it&apos;s &lt;b&gt;</RelQBody>
		</RelQuestion>

		<RelComment RELC_ID="{related}_C1" RELC_{of_user.format("RELC")} {of_comment}>
			<RelCText>Not read</RelCText>
		</RelComment>
	</Thread>
</OrgQuestion>

"""


def semeval(folder, *threads, name=TESTS[2017]):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'<?xml version="1.0" encoding="UTF-8"?>\n<xml version="1.0">\n\n{"".join(threads)}</xml>\n')
    return f"semeval2017={folder}"


def test_semeval_joins_titles_and_bodies(tmp_path):
    first = thread("Q1", "Q1_R4", "PerfectMatch"), thread("Q1", "Q1_R9", "Irrelevant")
    data = load_split(semeval(tmp_path, *first, thread("Q2", "Q2_R1", "Relevant", body="")), "test")
    assert rows_of(data) == [
        ("Q1", "Banks & cards Which one?", "Q1_R4", "Title Q1_R4 First line second line; it's <b>", 1),
        ("Q1", "Banks & cards Which one?", "Q1_R9", "Title Q1_R9 First line second line; it's <b>", 0),
        ("Q2", "Banks & cards", "Q2_R1", "Title Q2_R1 First line second line; it's <b>", 1),
    ]


def test_semeval_may_have_several_threads_in_a_question(tmp_path):
    one = thread("Q1", "Q1_R4", "Relevant").partition("</Thread>")[0]
    other = '</Thread><Thread><RelQuestion RELQ_ID="Q1_R5" RELQ_RELEVANCE2ORGQ="Irrelevant"/></Thread></OrgQuestion>'
    data = load_split(semeval(tmp_path, one + other), "test")
    assert data.answers.to_pylist() == ["Title Q1_R4 First line second line; it's <b>", ""]


@pytest.mark.parametrize("folder", [".", "train"])
def test_semeval_trains_on_both_parts(tmp_path, folder):
    spec = semeval(tmp_path, thread("Q1", "Q1_R4", "PerfectMatch"), name=f"{folder}/{PART_1}")
    with pytest.raises(KinspanError, match=PART_2):
        load_split(spec, "train")
    semeval(tmp_path, thread("Q201", "Q201_R4", "Irrelevant"), name=f"{folder}/{PART_2}")
    assert load_split(spec, "train").question_ids == ["Q1", "Q201"]
    assert load_split(spec.replace("2017", "2016"), "train").question_ids == ["Q1", "Q201"]
    semeval(tmp_path, thread("Q9", "Q9_R4", "Irrelevant"), name=f"dev/{DEV}")
    assert load_split(spec, "dev").labels.tolist() == [0]


ENTITIES = "".join(f'<!ENTITY a{k} "{f"&a{k - 1};" * 10}">' for k in range(1, 10))
BOMB = f'<!DOCTYPE x [<!ENTITY a0 "{"b" * 100}">{ENTITIES}]>'


@pytest.mark.parametrize(
    "text",
    [
        *[thread("Q1", "Q1_R4", "?"), thread("", "Q1_R4", "Relevant"), thread("Q1", "Q1_R4", "Relevant")[:200]],
        *["not XML at all", f"{BOMB}<x>&a9;</x>", '<!DOCTYPE x [<!ENTITY a SYSTEM "/etc/hosts">]><x>&a;</x>'],
        f"<!DOCTYPE xml SYSTEM 'x.dtd'><x>{thread('Q1', 'Q1_R1', 'Relevant', '&c;')}</x>",
        *["<x><RelQuestion RELQ_ID='Q1_R1'/></x>", ""],
        f"<x>{thread('Q1', 'Q1_R1', 'Relevant')}{thread('Q1', 'Q1_R1', 'Relevant')}</x>",
        f"<x>{thread('Q1', 'Q1_R1', 'Relevant')}{thread('Q1', 'Q1_R2', 'Relevant', 'Else')}</x>",
    ],
)
def test_broken_semeval_is_named(tmp_path, text):
    (tmp_path / TESTS[2017]).write_text(text)
    with pytest.raises(KinspanError, match=TESTS[2017]):
        load_split(f"semeval2017={tmp_path}", "test")
