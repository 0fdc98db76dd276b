"""Run the blocks of docs/tutorial.md in order, write what they print below them, copy its figure.

python scripts/run_tutorial.py           # about two minutes on 2 CPU cores
python scripts/run_tutorial.py --check   # only say where the page differs; exit with status 1

Blocks of `bash` are run by a shell, those of `python` in this process, all in a new folder. A block
of `text` that follows one of them is its output. The page's figure is that of the sweep of `tiny`.
`--check` compares numbers up to a tolerance and ignores times, speeds and memory, which differ
between machines.
"""

import argparse
import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/tutorial.md"
FIGURE = ROOT / "docs/figures/tutorial.png"
# Where a block of the page writes it, in the folder in which the page is run.
FIGURE_WRITTEN = Path("runs/tiny/evals/sweep/curve.png")
# Where the page says it is run.
_FOLDER = "/home/you/rope-jax"
# Other versions of JAX train a slightly different model. Half-widths of intervals vary more than
# the values themselves.
_TOLERANCE, _TOLERANCE_OF_HALF = 0.2, 0.6
_BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S)
# Values that belong to the machine.
_OF_MACHINE = re.compile(
    r"\d[\d.,]*k? (?:[kMGT]?FLOP/s|tokens/s|tokens per second|MiB|GiB|min|ms|s)\b"
    r"|\d[\d.,]* (?:hours?|minutes?|seconds?)\b"
    r"|\d+:\d\d(?::\d\d)?"
)
# What is shown only after some time.
_TIME_LEFT = re.compile(r"^.*% done(?:, about .* left)?$|,? +about \d+ \w+ left", re.M)
_FRAMES = re.compile(r"[─━│┃┏┓┗┛┡┩├┤┼┬┴╭╮╰╯╸╺═║]")
_NUMBER = re.compile(r"[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


class Block(NamedTuple):
    """A block of code; shown: its output in the page, "" if it has none."""

    language: str
    code: str
    shown: str


def blocks(page: str) -> list[Block]:
    """Return the blocks of code in a page, in order."""
    return [Block(found[1], found[2], found[3] or "") for found in _BLOCK.finditer(page)]


def run(page: str, folder: Path) -> Iterator[str]:
    """Run a page's blocks in an empty folder, and yield what each prints.

    RuntimeError: a block of `bash` fails; the message has what it printed.
    """
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "COLUMNS": "100",
        "NO_COLOR": "1",
    }
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python":
            output = io.StringIO()
            with contextlib.chdir(folder), contextlib.redirect_stdout(output):
                exec(compile(block.code, PAGE.name, "exec"), names)
            printed = output.getvalue()
        else:
            shell: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            words = ["bash", "-e", "-c", block.code]
            done = subprocess.run(words, cwd=folder, env=environment, text=True, **shell)
            if done.returncode:
                raise RuntimeError(f"{block.code}\n{done.stdout}")
            printed = done.stdout
        text = "\n".join(line.rstrip() for line in printed.splitlines()).strip("\n")
        yield text.replace(str(folder), _FOLDER) + "\n" * bool(text)


def with_outputs(page: str, printed: Sequence[str]) -> str:
    """Return a page with the output of each block below it."""
    outputs = iter(printed)

    def written(found: re.Match[str]) -> str:
        output = next(outputs)
        code = f"```{found[1]}\n{found[2]}```\n"
        return f"{code}\n```text\n{output}```\n" if output else code

    return _BLOCK.sub(written, page)


def difference(shown: str, printed: str) -> str:
    """Return the first difference between two outputs, "" if there is none that matters."""
    ours, theirs = _words(shown), _words(printed)
    half = False
    for place, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if not _agree(one, other, _TOLERANCE_OF_HALF if half else _TOLERANCE):
            around = slice(max(0, place - 5), place + 5)
            return f"shown: {' '.join(ours[around])}\nprinted: {' '.join(theirs[around])}"
        half = one in ("±", "[")
    if len(ours) == len(theirs):
        return ""
    least = min(len(ours), len(theirs))
    return f"shown: {' '.join(ours[least:])}\nprinted: {' '.join(theirs[least:])}"


def _words(text: str) -> list[str]:
    """Return words, numbers and punctuation, without what belongs to the machine."""
    text = " ".join(_FRAMES.sub(" ", _TIME_LEFT.sub("", text)).split())
    return re.findall(rf"{_NUMBER.pattern}|\w+|[^\w\s]", _OF_MACHINE.sub("…", text))


def _agree(one: str, other: str, tolerance: float) -> bool:
    """Whether two words agree: numbers with decimals up to the tolerance or their last digit."""
    if one == other:
        return True
    if not (_NUMBER.fullmatch(one) and _NUMBER.fullmatch(other) and "." in one + other):
        return False
    a, b = (float(word.replace(",", "").replace("−", "-")) for word in (one, other))
    last_digit = 10.0 ** -len(one.partition(".")[2].partition("e")[0])
    return abs(a - b) <= max(tolerance * abs(a), 1.5 * last_digit)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="only report differences")
    check = parser.parse_args().check
    os.environ["JAX_PLATFORMS"] = "cpu"
    page = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        printed = list(run(page, Path(folder)))
        if not check:
            shutil.copyfile(Path(folder) / FIGURE_WRITTEN, FIGURE)
    if check:
        shown = (block.shown for block in blocks(page))
        found = [difference(*pair) for pair in zip(shown, printed, strict=True)]
        print("\n\n".join(filter(None, found)) or "the page shows what its blocks print")
        return 1 if any(found) else 0
    PAGE.write_text(with_outputs(page, printed), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} and {FIGURE.relative_to(ROOT)}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
