"""What the Makefile says of this machine."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("browser", [None, "chromium", "chromium-browser", "google-chrome"])
def test_how_to_run_the_tests_of_pages_is_said_where_there_is_no_browser(browser, tmp_path):
    if browser:
        (tmp_path / browser).write_text("#!/bin/sh\n")
        (tmp_path / browser).chmod(0o755)
    make = ["/usr/bin/env", "make", "--silent", "find-browser", f"PATH={tmp_path}"]
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ("apt-get install chromium" in done.stdout) == (browser is None)
    assert done.stdout.count("\n") == (browser is None)
