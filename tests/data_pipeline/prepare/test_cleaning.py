"""Each step of cleaning drops what it is for, keeps what it is not for, and is counted and sampled."""

import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.cleaning import STEPS, Rules, Tally, check_rules, clean, normalise
from data_pipeline.prepare.document import Document
from tests.synthetic import write_file

PROSE = "The reader goes through the file once, and it keeps what it finds in memory until the end."
DROPPED = {  # what a step drops
    "tables": [
        *["Name | Age | Town | Country | Height", "1990\t12\t13\t15", "The sum of the whole group\t\t12.5\t\t13.4"],
        *["12 34 56 78 90 12 34 56 78 90 12 34 56 78 90 12 34 56 78 90 12 34 56 78", "||a||b||c||d"],
        *["* * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * *", "_ " * 40],
    ],
    "titles": ["The Title of It All", "the title  of it all."],
    "headers": ["Early life and education", "A heading that is rather long, but in which no sentence comes to its end"],
    "html": ["<br/>", "<p></p>", "<script>var x = 1;</script>", "<!-- nothing -->"],
}
CHANGED = {  # what a step mends
    "html": [
        ("<p>A <b class='x'>bold</b> claim.</p>", "A bold claim."),
        ("Fish &amp; chips &#8212; and more.", "Fish & chips — and more."),
        ("<style>p {}</style>Text.", "Text."),
        ("Die Donau&shy;dampf&shy;schifffahrt.", "Die Donaudampfschifffahrt."),
        ("<p>Write &lt;b&gt; for bold.</p>", "Write <b> for bold."),
    ],
    "characters": [
        ("Die Donau\u00addampf\u00adschiff\u00adfahrt\ufeff.", "Die Donaudampfschifffahrt."),
        ("The of\ufb01ce: para\u200bgraph, \uff26\uff55\uff4c\uff4c\uff17.", "The office: paragraph, Full7."),
        ("Cafe\u0301 Mu\u0308ller, \u2f00.", "Caf\u00e9 M\u00fcller, \u4e00."),
    ],
    "unicode": [
        *[("The cafÃ© was full.", "The café was full."), ("It wasnâ€™t there.", "It wasn’t there.")],
        ("â€œQuotedâ€\x9d words.", "“Quoted” words."),
    ],
}
KEPT = [
    *[PROSE, "He said so!", "Is a < b, or b > a, and what of R&D?"],
    *["Übung macht den Meister, naïve façade: déjà vu. Ångström.", "The choice | is | his. It was made. He knew it."],
    *["In 1999 it rose by 3.5% to $1,200; in 2000 it fell to $900.", "الكتاب على الطاولة.", "这是一本书。"],
    *["यह एक किताब है।", "یہ ایک کتاب ہے۔", "A column of text in which there is one | of them."],
    "   Each line\n   of it is\n   indented,\n   as in an RFC.",
    "Run it with <command> as its argument; Option<T> and List<String> are types.",
    *["ကျွန်ုပ်တို့သည် မြို့တို့ကို ကြည့်ရှုခဲ့ကြသည်။", "มีแม่น้ำเจ้าพระยาไหลผ่านและแบ่งเมืองออกเป็นสองฝั่ง คือ ฝั่งพระนครและฝั่งธนบุรี"],
    *["Code is between <script> and </script>.", "10² is not 102… don´t，！ می\u200cخواهم น้ำ և."],
]


def cleaned(paragraphs, **rules):
    tally = Tally()
    document = Document("id", "The title of it all", paragraphs, "source")
    return clean(document, Rules(0, 0, **rules), tally), tally


def others(name):
    return [step.name for step in STEPS if step.name != name]


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in DROPPED.items() for text in texts])
def test_what_a_step_drops(name, text):
    kept, tally = cleaned([PROSE, text, PROSE], skip_steps=others(name))
    assert kept == [PROSE, PROSE]
    assert tally.counts[f"paragraphs dropped: {name}"] == 1
    assert tally.samples[f"paragraphs dropped: {name}"] == [" ".join(text.split())]


@pytest.mark.parametrize(("name", "text", "mended"), [(n, *pair) for n, pairs in CHANGED.items() for pair in pairs])
def test_what_a_step_mends(name, text, mended):
    kept, tally = cleaned([PROSE, text], skip_steps=others(name))
    assert kept == [PROSE, mended]
    assert tally.counts[f"paragraphs changed: {name}"] == 1


@pytest.mark.parametrize("text", KEPT)
def test_what_no_step_touches(text):
    kept, tally = cleaned([text])
    assert kept == [" ".join(text.split())]
    assert set(tally.counts) == {"documents read", "characters read", "paragraphs read"}


def test_text_of_parsed_markup_is_not_read_as_html():
    text = "The <b> of R&amp;D, and <script>f()</script>, are text."
    assert clean(Document("id", "", [text], "s", is_parsed=True), Rules(0, 0), Tally()) == [text]


def test_a_chinese_character_counts_as_three():
    texts = ["这是一个足够长的中文段落，它会被保留下来的。", "太短的段落。", "没有句号的标题" * 6]
    assert clean(Document("id", "", texts, "s"), Rules(60, 100), Tally()) == texts[::2]


def test_no_space_is_put_between_lines_of_chinese():
    assert normalise("北京是\r\n 首都，\n城\n a\nb") == "北京是首都，城 a b"
    assert normalise(f"城{chr(10) * 200_000}a") == "城 a"  # in linear time


def test_posts_keep_their_form_and_length():
    document = Document("id", "Title", ["Title", "Why", "<b> is a tag.", "1 | 2 | 3 | 4", "cafÃ©"], "f", is_post=True)
    assert clean(document, Rules(), Tally()) == ["Title", "Why", "<b> is a tag.", "1 | 2 | 3 | 4", "café"]


MINE = """
from data_pipeline.prepare.cleaning import Step

STEPS = [Step("shouting", "drops what is in capitals", lambda document, ps: [p for p in ps if not p.isupper()])]
"""


def test_a_step_of_the_users_own_is_counted_like_others_and_a_changed_one_is_another_rule(tmp_path):
    path = write_file(tmp_path / "mine.py", MINE)
    kept, tally = cleaned([PROSE, PROSE.upper()], clean_with=[str(path)])
    assert kept == [PROSE]
    assert tally.counts["paragraphs dropped: shouting"] == 1
    before = Rules(clean_with=[str(path)])
    path.write_text(MINE + "\n# changed\n")
    assert Rules(clean_with=[str(path)]) != before
    assert Rules().steps_hash == ""


@pytest.mark.parametrize(
    "content",
    [
        *["1 / 0", "", "STEPS = [1]", MINE.replace("shouting", "tables"), None],
        *[MINE.replace("p.isupper()", "p.nothing()"), MINE.replace("[p for p in ps if not p.isupper()]", "None")],
    ],
)
def test_steps_that_cannot_be_used_are_a_one_line_error(tmp_path, content):
    path = tmp_path / "mine.py"
    if content is not None:
        path.write_text(content)
    with pytest.raises(KinspanError, match="--clean_with") as error:
        cleaned([PROSE], clean_with=[str(path)])
    assert "\n" not in str(error.value)


TEXTS = {
    "en": "The reader goes through the file once, and it keeps what it finds in memory until the end of the day.",
    "de": "Der Leser geht einmal durch die Datei und behält bis zum Ende des Tages im Gedächtnis, was er dort findet.",
    "fr": "Le lecteur parcourt une seule fois le fichier et garde en mémoire ce qu'il y trouve jusqu'à la fin du jour.",
    "zh": "读者只浏览一次文件，并将找到的内容保存在内存中，直到一天结束为止。这是另一个句子，它更长一些。" * 2,
}


@pytest.mark.parametrize("language", TEXTS)
def test_documents_in_another_language_are_dropped(language):
    for asked in TEXTS:
        kept, tally = cleaned([TEXTS[language]], languages=[asked])
        assert bool(kept) == (asked == language)
        name = f"documents in another language: {language}"
        assert tally.counts[name] == (asked != language)
        assert tally.counts["paragraphs of dropped documents"] == (asked != language)


@pytest.mark.parametrize("body", [[], [TEXTS["fr"]]])
def test_an_answered_question_is_kept_in_the_languages_asked_for_alone(body):
    title, answer = TEXTS["fr"][:60], TEXTS["fr"]
    question = Document("id", title, body, "s", answers=[answer], accepted=0, title_is_text=True, is_post=True)
    for asked, kept in ((["en"], None), (["fr"], body), ([], body)):
        tally = Tally()
        assert clean(question, Rules(languages=asked), tally) == kept
        counted = {name for name in tally.counts if name.startswith("documents ")}
        assert counted == {"documents read"} | ({"documents in another language: fr"} if kept is None else set())


def test_rules_are_checked_before_any_work_is_done():
    check_rules(Rules(languages=["en", "zh"], skip_steps=["html"]))
    with pytest.raises(KinspanError, match="--languages english"):
        check_rules(Rules(languages=["english"]))
    with pytest.raises(KinspanError, match="--skip_step table"):
        check_rules(Rules(skip_steps=["table"]))


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        *["這是一個很長的段落" * 20_000, "x" * 200_000, "a," * 100_000],
        *["<script>" * 25_000, "<!-- " * 40_000, "<a " * 60_000],
    ],
    ids=["no spaces", "one word", "short words", "scripts", "comments", "tags"],
)
def test_the_time_that_a_long_paragraph_takes_grows_with_its_length_alone(text):
    """Hours, where a pattern is tried from each character to the end."""
    cleaned([text + PROSE])


def test_what_stands_beside_hidden_text_stays():
    text = f"{PROSE} if x<y <!-- <b> --> or y> z, <SCRIPT a='1'>if (a<b) write('<script>')</script > {PROSE}"
    assert cleaned([text])[0] == [f"{PROSE} if x<y or y> z, {PROSE}"]
    far = f"<!-- {PROSE * 2000} --> <style>{PROSE * 2000}</style>"
    assert cleaned([far])[0][0].count(PROSE) == 4000
