"""The pages in headless Chromium, against a service in this process: one server and one browser for all tests."""

import re
import shutil
from functools import partial
from types import SimpleNamespace

import pytest
from playwright.sync_api import expect, sync_playwright

from serve.answers import Answer
from serve.questions import BI_ENCODER, CROSS_ENCODER
from serve.search import Answered, Hit
from serve.service.evaluations import EvaluatedQuery, write_evaluation
from serve.service.waiting import ServiceSettings
from tests.serve.service.conftest import StandInIndex, running

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
TOKEN = "a-token-of-some-length"
PATIENCE = 120_000  # ms that the browser waits for what is to be there: a crowded machine takes long
ATTACK = "<img src=x onerror='window.ran=1'><script>window.ran=1</script>"
LISTS = "Steps that work:\n\n- open the printer\n- close it\n\n    printer --reset\n    printer --test"
ANSWERS = [
    Answer("a0", "Switch the printer off and on again. 🖨️ printer", "The printer is offline", "https://example.org/t0"),
    Answer("a1", f"{ATTACK} printer & 'quotes' \"twice\"", ATTACK, "javascript:window.ran=1"),
    Answer("a2", LISTS, "", ""),
    Answer("a3", "A screen that stays dark has no power. " * 60, "The screen is dark", ""),
    Answer("manual.pdf#3", "Clean the rollers once a year.", title="Care of the rollers"),
]
# What the page says to a status
FAILURES = {422: "cannot be asked", 429: "Busy", 500: "Something failed", 503: "Not ready", 504: "Too slow"}
FAILURES[0] = "No connection"


class Shelf:
    """Finds all answers that share a word with the question, in their order."""

    cross_encoder = SimpleNamespace(name="tiny-ranker")
    language = "en"
    list_truncations = staticmethod(list)
    index = StandInIndex(ANSWERS, "help desk")

    def search(self, questions, k, rerank_k, first_stage):
        return Answered([self._find(q, k, rerank_k) for q in questions], {"encode": 1.5, "rerank": 8.0, "total": 9.5})

    def _find(self, question, k, rerank_k):
        words = set(question.lower().split())
        found = [answer for answer in ANSWERS if words & set(re.findall(r"\w+", answer.text.lower()))]
        hits = []
        for n, answer in enumerate(found[:k]):
            scores = {BI_ENCODER: 0.9 - n / 10} | ({CROSS_ENCODER: 2.0 - n} if rerank_k else {})
            hits.append(Hit(*answer, score=[*scores.values()][-1], scores=scores))
        return hits


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of a service with an evaluation of 60 questions: A is right on the even ones, B on every third."""
    folder = tmp_path_factory.mktemp("evaluations") / "desk"
    right, wrong = [("a0", 0.9), ("a3", 0.2)], [("a3", 0.8), ("a0", 0.1)]
    found = [{"words": wrong if n % 2 else right, "meaning": [] if n % 3 else right, "both": right} for n in range(60)]
    asked = [EvaluatedQuery(f"q/{n}", f"question {n}", ["a0"], hits) for n, hits in enumerate(found)]
    write_evaluation(folder, asked, ANSWERS)
    with running(ServiceSettings("index", "tiny", evaluation=[str(folder)]), Shelf()) as started:
        yield f"http://127.0.0.1:{started.client.port}"


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser):
    """A page at desktop width. Nothing of it may break the content security policy, or fail in a script."""
    context = browser.new_context(viewport={"width": 1300, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE)
    faults = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("console", lambda note: faults.append(note.text) if "Content Security" in note.text else None)
    yield opened
    context.close()
    assert not faults


def ask(page, question):
    page.fill("#question", question)
    page.press("#question", "Enter")


def fail(route, status):
    """Refuses a request as the service does; 0 stands for a connection that broke."""
    if status:
        route.fulfill(status=status, json={"detail": "too long"}, headers={"Retry-After": "9"})
    else:
        route.abort()


def titles(page):
    page.wait_for_selector("article")
    return page.locator("article h3").all_inner_texts()


def test_a_question_is_typed_and_answered(page, site):
    page.goto(site)
    page.click("#example-list button:has-text('The screen is dark')")
    assert "The screen is dark" in titles(page)
    assert "5 answers" in page.inner_text("#about")
    ask(page, "my PRINTER")
    assert titles(page)[0] == "The printer is offline"
    assert page.get_attribute("article h3 a", "href") == "https://example.org/t0"
    expect(page.locator("article").first.locator("mark")).to_have_text(["printer", "printer"])  # past an emoji
    assert page.inner_text("article .score").split() == ["2.00", "cross-encoder"]  # as in the API
    assert "re-ranking 8.0 ms" in page.inner_text(".timings")
    assert "3 answers" in page.inner_text("#status")
    # the address leads back to it, with its settings
    page.uncheck("#rerank")
    expect(page.locator(".score").first).to_contain_text("bi-encoder")
    page.select_option("#k", "1")
    expect(page.locator("article")).to_have_count(1)
    page.goto(page.url)
    assert titles(page) == ["The printer is offline"]
    assert not page.is_checked("#rerank")
    page.go_back()
    expect(page.locator("article")).to_have_count(3)


def test_text_is_never_read_as_html(page, site):
    page.goto(f"{site}/?q=printer {ATTACK}")
    assert titles(page)[1] == ATTACK
    assert ATTACK in page.locator("article").nth(1).locator(".text").inner_text()
    assert page.locator("article").nth(1).locator("a").count() == 0  # its address is a script
    assert page.locator("#results img, #results script").count() == 0
    assert page.title().startswith("printer <img")
    assert page.evaluate("window.ran") is None


def test_what_the_service_refuses_is_said(page, site):
    page.goto(site)
    page.wait_for_selector("#example-list button")
    for status, said in FAILURES.items():
        page.route("**/search", partial(fail, status=status))
        ask(page, f"printer {status}")
        page.wait_for_selector(f".problem[data-status='{status}']")
        assert said in page.inner_text(".problem h2")
        assert said in page.inner_text("#status")
        assert page.locator("article").count() == 0
        page.unroute("**/search")
    page.click(".problem button")
    assert len(titles(page)) == 3
    assert page.locator(".problem").count() == 0


def test_a_token_is_asked_for(page):
    with running(ServiceSettings("index", "tiny", token=TOKEN), Shelf()) as started:
        page.goto(f"http://127.0.0.1:{started.client.port}/?q=printer")
        page.fill("#token", "another-токен-than-that")
        page.press("#token", "Enter")
        expect(page.locator(".problem p")).to_contain_text("does not know")
        page.fill("#token", TOKEN)
        page.click(".token button")
        assert titles(page)[0] == "The printer is offline"
        page.goto(f"http://127.0.0.1:{started.client.port}/evaluate")  # the token is kept, and there is no evaluation
        expect(page.locator("#about")).to_contain_text("No evaluation")


def test_models_are_compared_and_paged_through(page, site):
    page.goto(f"{site}/evaluate")
    page.wait_for_selector(".figures")
    assert page.locator(".figures tbody tr").count() == 3
    page.select_option("#a", "words")
    page.select_option("#b", "meaning")
    counts = dict(zip(("all", "a", "b", "both", "neither"), page.locator(".count").all_inner_texts(), strict=True))
    assert counts == {"all": "60", "a": "20", "b": "10", "both": "10", "neither": "20"}
    assert page.locator("#questions li").count() == 60
    page.click("#filters button:has-text('A right, B wrong')")
    expect(page.locator(".asked")).to_have_text("question 2")
    assert page.inner_text(".pager span") == "1 of 20"
    page.keyboard.press("ArrowRight")
    expect(page.locator(".asked")).to_have_text("question 4")
    verdicts = page.locator(".verdict").all_inner_texts()
    assert verdicts == ["right answer first", "right answer not found", "right answer first"]
    assert page.locator(".is-right h4:visible").all_inner_texts() == ["The printer is offline"]
    page.click(".model:has-text('both') summary")  # neither A nor B
    assert page.locator(".is-right h4:visible").count() == 2
    page.goto(page.url)
    expect(page.locator(".model")).to_have_count(3)
    assert page.inner_text(".pager span") == "2 of 20"
    page.locator("#questions button").nth(3).focus()
    page.keyboard.press("Enter")
    expect(page.locator("#questions button").nth(3)).to_be_focused()


@pytest.mark.parametrize("path", ["/?q=printer dark", "/evaluate?q=q/4"])
def test_phones_need_no_scrolling_sideways(page, site, path):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(site + path)
    page.wait_for_selector("article, .model")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
