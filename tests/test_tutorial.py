"""docs/tutorial.md: its blocks run in order, and print what the page shows."""

import subprocess
import sys

import pytest

from scripts.run_tutorial import ROOT, blocks, difference, run, with_outputs


@pytest.mark.slow
def test_the_blocks_print_what_the_page_shows():
    words = [sys.executable, str(ROOT / "scripts/run_tutorial.py"), "--check"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nif right: run it without --check"


PAGE_OF_TWO = """\
```python
x = 1
print("a " * 2)
```

```text
old
```

between

```bash
true
```

```bash
echo $((1 + 1))
```
"""


def test_outputs_are_written_below_their_blocks(tmp_path):
    printed = list(run(PAGE_OF_TWO, tmp_path))
    assert printed == ["a a\n", "", "2\n"]
    written = with_outputs(PAGE_OF_TWO, printed)
    assert written == PAGE_OF_TWO.replace("old", "a a") + "\n```text\n2\n```\n"
    assert with_outputs(written, printed) == written
    assert [block.shown for block in blocks(written)] == printed


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("loss 1.204, 11.4k tokens/s", "loss 1.219, 2,000 tokens/s"),
        ("trained in 0.5 minutes", "trained in 12 seconds"),
        ("0:00:12 done", "1:07 done"),
        (
            "3k tokens/s, about 9 seconds left\nb",
            "2k tokens/s\nlength 8: pi 2.1 nats; 4% done, about 2 minutes left\nb",
        ),
        ("│ 3.32 │ ±0.058 │\n──────", "3.40   ±0.07"),
        ("peak 57 GFLOP/s", "peak 1.5 TFLOP/s"),
        ("0.0", "-0.1"),
        ("−1.32 [−1.35, −1.29]", "−1.30 [−1.39, −1.22]"),
    ],
)
def test_what_differs_between_machines_is_no_difference(shown, printed):
    assert difference(shown, printed) == ""


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("loss 1.204", "loss 1.504"),
        ("64 tokens", "65 tokens"),
        ("3.32 ±0.058", "3.32 ±0.158"),
        ("pi-auto 3.3", "pi-4 3.3"),
        ("a b", "a"),
        ("a", "a b"),
        ("1.5", "inf"),
    ],
)
def test_what_a_reader_would_notice_is_a_difference(shown, printed):
    assert difference(shown, printed)
