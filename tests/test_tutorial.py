"""docs/tutorial.md: its blocks run in order, and print what the page shows."""

import subprocess
import sys

import pytest

from scripts.run_tutorial import ROOT


@pytest.mark.slow
def test_the_blocks_print_what_the_page_shows():
    words = [sys.executable, str(ROOT / "scripts/run_tutorial.py"), "--check"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nif right: run it without --check"
