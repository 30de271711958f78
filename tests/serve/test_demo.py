"""``make demo`` as a user has it: from nothing to an answer on the page, and again in seconds."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from serve.building import build_index
from serve.demo import name_evaluation
from tests.launch.entries import program_of

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
AGAIN = 30  # seconds in which it has to start the second time; it takes a few where nothing else runs


@contextmanager
def start_demo(folder):
    """The address of the page, and what was printed before it."""
    command = [sys.executable, *map(str, program_of("demo")), "--output_dir", str(folder), "--port", "0"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        said = ""
        while "ready: " not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        yield re.search(r"ready: (http://127\.0\.0\.1:\d+)", said)[1], said
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.stdout.close()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_the_demo_answers_in_the_browser(tmp_path):
    with start_demo(tmp_path) as (address, said), sync_playwright() as playwright:
        assert "indexing" in said
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(address)
        page.fill("#question", "How can I read a CSV file row by row?")
        page.press("#question", "Enter")
        expect(page.locator("article")).to_have_count(3)
        assert page.locator("article h3").first.inner_text() == "csv.reader"
        page.goto(f"{address}/evaluate")
        expect(page.locator(".figures tbody tr")).to_have_count(3)
        browser.close()
    began = time.monotonic()
    with start_demo(tmp_path) as (_, said):
        assert time.monotonic() - began < AGAIN
        assert "indexing" not in said


def test_every_cross_encoder_has_an_evaluation_of_its_own(tmp_path, embedder, answers):
    build_index(tmp_path / "index", embedder, answers[:3])
    build_index(tmp_path / "other", embedder, answers[:4])
    asked = ["", "cross-encoder/ms-marco-MiniLM-L6-v2", "cross-encoder/stsb-roberta-base", "BAAI/bge", "BAAI/bge-2"]
    names = {name_evaluation(tmp_path / index, model) for index in ("index", "other") for model in asked}
    assert len(names) == 10
    assert all(re.fullmatch(r"evaluation-[0-9a-f]{8}", name) for name in names)
    assert name_evaluation(tmp_path / "index", "BAAI/bge") in names  # and the same each time


def test_a_port_that_is_taken_is_said_before_the_work(tmp_path, monkeypatch, capsys):
    import socket

    from data_pipeline.core.errors import KinspanError
    from launch.commands import demo

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(sys, "argv", ["demo", "--output_dir", str(tmp_path / "demo"), "--port", str(port)])
        with pytest.raises(KinspanError, match=f"--port {port} cannot be listened on"):
            demo.main()
    assert not (tmp_path / "demo").exists()
