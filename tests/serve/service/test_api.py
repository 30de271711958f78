"""The routes: what they answer, and how they refuse."""

import errno
import json
import logging
import signal
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from data_pipeline.core.errors import KinspanError
from serve.service.waiting import ServiceSettings
from tests.serve.service.conftest import StandIn, running, wait_for

TOKEN = "a-token-of-some-length"


def ask_in_thread(client, query, **settings):
    """Starts a thread that asks, and keeps the ``response``."""

    def ask():
        thread.response = client.search(query, **settings)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def is_refused(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED


def test_a_question_is_answered(start):
    client = start().client
    response = client.search("the  river\0 bank", k=2)
    assert response.status == 200
    found = response.json
    assert found["query"] == "the river bank"
    assert [hit["id"] for hit in found["hits"]] == ["a0", "a1"]
    empty = dict.fromkeys(("question", "url", "title"), "")
    scores = {"score": 1.0, "scores": {"bi_encoder": 1.0}}
    first = {"id": "a0", "text": "about the river bank", **empty, **scores, "marks": [[10, 15], [16, 20]]}
    assert found["hits"][0] == first
    assert set(found["timings"]) == {"wait", "encode"}
    assert found["total"] >= found["timings"]["wait"]
    assert len(client.search("no k").json["hits"]) == 3
    assert response.headers["cache-control"] == "no-store"


def test_about_examples_and_health(start, stand_in, tmp_path):
    client = start().client
    about = client.get("/about").json
    assert [about[name] for name in ("index", "answers", "bi_encoder")] == ["stand-in", 4, "stand-in"]
    assert (about["cross_encoder"], about["first_stage"]) == (None, "bi_encoder")
    assert about["limits"] == {"max_question": 4000, "max_k": 20}
    assert client.get("/examples").json == {"questions": ["one?", "two?"]}
    assert client.get("/health").json == {"status": "ready"}
    stand_in.cross_encoder = SimpleNamespace(name="tiny")
    client = start(cross_encoder="tiny", rerank_k=0).client  # the page sends "rerank" where there is a cross-encoder
    assert client.get("/about").json["cross_encoder"] is None
    assert start(first_stage="bm25").client.search("one").json["hits"][0]["scores"] == {"bm25": 1.0}
    assert client.search("one", rerank=True).status == 422
    (tmp_path / "examples.txt").write_text("\ufefffirst\n\n second \n" + "\n".join(map(str, range(100))), "utf-8")
    given = start(examples=str(tmp_path / "examples.txt")).client.get("/examples").json["questions"]
    assert given[0] == "first"
    assert len(given) == 30


@pytest.mark.parametrize(
    ("body", "named"),
    [
        *((body, "JSON") for body in ("", "{", "[]", "How do I reset the printer?")),
        *((body, "") for body in ("[" * 60_000, '{"a":' * 12_000, "null")),
        *((body, "") for body in (b'{"query": "\xff"}', '{"query": "\\ud800"}')),
        *((json.dumps({"query": query}), "query") for query in (1, None, ["a"], "", "x" * 4001)),
        ('{"query": " \\u0000\\t "}', "question"),
        *((json.dumps({"query": "q", "k": k}), "k: ") for k in (0, 21, True, "x")),
        *(('{"query": "q", "k": ' + k + "}", "") for k in ("1e400", "NaN", "9" * 5000)),
        *[('{"query": "q", "first_stage": "x"}', "first_stage: "), ('{"query": "q", "rerank": true}', "rerank: ")],
        ('{"query": "q", "model": "/etc/passwd"}', "model: "),
        (json.dumps({"query": "q", "x" * 60_000: 1}), "xxx"),
        (json.dumps({"query": "q", "a\n\x1b[31mb": 1}), "a[31mb: "),
    ],
)
def test_bad_input_is_refused_with_a_reason(bad_input_client, body, named):
    refused = bad_input_client.request("POST", "/search", body)
    assert refused.status == 422
    assert named in refused.json["detail"]
    assert "\n" not in refused.json["detail"]
    assert len(refused.json["detail"]) < 200


@pytest.fixture(scope="module")
def bad_input_client():
    """One service for all of them: nothing that is refused may reach the searcher."""
    searcher = StandIn()
    with running(ServiceSettings("stand-in"), searcher) as started:
        yield started.client
        assert not searcher.asked
        assert started.client.search("fine").status == 200


def test_a_large_body_is_refused_and_not_held(start):
    client = start().client
    assert client.search("x" * 1_000_000).status == 413
    chunks = (b"x" * 10_000 for _ in range(30))
    assert client.request("POST", "/search", chunks).status == 413
    with socket.create_connection(("127.0.0.1", client.port)) as raw:  # none of it is sent
        raw.sendall(b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 413")


def test_a_caller_who_leaves_within_a_body_is_no_fault(start, caplog):
    client = start().client
    logging.getLogger("uvicorn.error").addHandler(caplog.handler)
    with socket.create_connection(("127.0.0.1", client.port)) as raw:
        raw.sendall(b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nshort")
    time.sleep(0.5)
    assert client.search("fine").status == 200
    assert "uvicorn.error" not in {record.name for record in caplog.records}
    logging.getLogger("uvicorn.error").removeHandler(caplog.handler)


@pytest.fixture
def queued(start, stand_in):
    """``queued(queries, **settings)``: a service that answers a question, threads of others that wait behind it."""

    def ask(queries, **settings):
        stand_in.gate = threading.Event()
        service = start(**settings)
        threads = {"first": ask_in_thread(service.client, "first")}
        wait_for(lambda: stand_in.asked)
        threads |= {query: ask_in_thread(service.client, query) for query in queries}
        time.sleep(0.5)
        return service, threads

    return ask


def join(threads):
    for thread in threads.values():
        thread.join()
    return {query: thread.response.status for query, thread in threads.items()}


def test_too_many_are_asked_to_come_back(queued, stand_in):
    service, threads = queued(["second"], concurrency=2)
    refused = service.client.search("third")
    assert refused.status == 429
    assert int(refused.headers["retry-after"]) >= 1
    stand_in.gate.set()
    assert join(threads) == {"first": 200, "second": 200}
    assert service.client.search("third").status == 200


def test_a_question_whose_caller_left_is_dropped(queued, stand_in):
    service, threads = queued(["second"], timeout=0.3)
    assert join(threads) == {"first": 504, "second": 504}
    stand_in.gate.set()
    assert service.client.search("third").status == 200
    assert stand_in.asked == [["first"], ["third"]]


def test_a_question_whose_caller_hung_up_is_dropped(queued, stand_in):
    service, _ = queued([], concurrency=2)
    with socket.create_connection(("127.0.0.1", service.client.port)) as caller:
        body = b'{"query": "second"}'
        head = f"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        caller.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        time.sleep(0.5)
        assert service.client.search("third").status == 429
    time.sleep(1)
    stand_in.gate.set()
    assert service.client.search("fourth").status == 200
    assert stand_in.asked == [["first"], ["fourth"]]


def test_waiting_questions_are_answered_before_the_service_ends(queued, stand_in):
    service, threads = queued(["second"])
    service.server.handle_exit(signal.SIGTERM, None)
    wait_for(lambda: is_refused(service.client.port))
    stand_in.gate.set()
    assert join(threads) == {"first": 200, "second": 200}
    service.thread.join(10)
    assert not service.thread.is_alive()


def test_waiting_questions_are_answered_together_and_a_fault_fails_alone(queued, stand_in):
    stand_in.fails = {"bad": ZeroDivisionError("a bug"), "short": KinspanError("out of memory with texts")}
    _, threads = queued(["good", "bad", "short", "fine"])
    stand_in.gate.set()
    assert join(threads) == {"first": 200, "good": 200, "bad": 500, "short": 503, "fine": 200}
    assert threads["good"].response.json["hits"][0]["text"] == "about good"
    assert "bug" not in threads["bad"].response.json["detail"]
    assert [len(batch) for batch in stand_in.asked] == [1, 4, 1, 1, 1, 1]


def test_questions_of_one_mode_are_answered_together_each_with_its_k(queued, stand_in):
    service, threads = queued([])
    for query, settings in (("one", {"k": 1}), ("two", {"k": 2}), ("words", {"first_stage": "bm25"})):
        threads[query] = ask_in_thread(service.client, query, **settings)
        time.sleep(0.2)
    stand_in.gate.set()
    join(threads)
    assert stand_in.asked == [["first"], ["one", "two"], ["words"]]
    assert [len(threads[query].response.json["hits"]) for query in ("one", "two")] == [1, 2]


def test_a_token_is_asked_for(start):
    client = start(token=TOKEN).client
    for path in ("/about", "/examples", "/evaluations", "/metrics"):
        refused = client.get(path)
        assert refused.status == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert client.get(path, Authorization=f"Bearer {TOKEN}x").status == 401
        assert client.get(path, Authorization=f"Bearer {TOKEN}").status == 200
    for path in ("/health", "/", "/openapi.json", "/static/common.js"):
        assert client.get(path).status == 200
    assert client.get("/static/../about").status in (401, 404)
    assert client.get("/about", Authorization=TOKEN).status == 401
    assert client.search("q").status == 401


def test_other_names_of_this_machine_are_refused(start):
    client = start().client
    assert client.get("/about", Host="evil.example.org:8000").status == 400
    for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000"):
        assert client.get("/about", Host=host).status == 200
    assert start(token=TOKEN).client.get("/about", Host="x.org", Authorization=f"Bearer {TOKEN}").status == 200


def test_pages_run_nothing_of_others(start):
    client = start().client
    for path in ("/", "/evaluate", "/static/common.js", "/about", "/nonesuch"):
        headers = client.get(path).headers
        assert len(headers.get_all("content-security-policy")) == 1
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy.get("script-src", policy["default-src"]) == "'self'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
    for path in ("/", "/evaluate"):
        assert "http" not in client.get(path).text.decode().replace("<!doctype html>", "")
    for path in ("/docs", "/static/%2e%2e/%2e%2e/search.py", "/static/index.html"):
        assert client.get(path).status == 404


def test_metrics_count_what_was_asked(start):
    client = start().client
    client.search("q")
    client.search("")
    assert client.request("MADE-UP", "/health").status == 405
    assert client.get("/evaluations/made-up/").status == 404
    text = client.get("/metrics").text.decode()
    for status in ("2xx", "4xx"):
        assert f'http_requests_total{{handler="/search",method="POST",status="{status}"}} 1.0' in text
    assert "made-up" not in text.lower()  # else anyone could fill the memory
