"""The types of the library reach the users of an installed package (PEP 561)."""

import site
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import rope_jax

ROOT = Path(__file__).parents[1]
# Line by line: the program, and what mypy says about it.
PROGRAM = {
    "from rope_jax.evaluation import SweepResult, sweep": "",
    "from rope_jax.rope import RotaryGeometry, cos_sin, parse_scaling, rotate": "",
    'frequencies = parse_scaling("dynamic_ntk").frequencies(RotaryGeometry(64), 100)': "",
    "cos, sin = cos_sin(frequencies, [0, 1, 2])": "",
    "def mean(result: SweepResult) -> float: return result.measurements[0].sums.mean()": "",
    "def wrong(result: SweepResult) -> None: result.plott()": '"SweepResult" has no attribute',
    'RotaryGeometry(rotary_dim="64")': 'Argument "rotary_dim" to "RotaryGeometry" has incompatible',
    "parse_scaling(3)": 'Argument 1 to "parse_scaling" has incompatible',
}


def test_the_package_says_that_it_has_types():
    assert (Path(rope_jax.__file__).parent / "py.typed").is_file()


@pytest.mark.slow
def test_a_users_program_is_checked_with_our_types(tmp_path):
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=False)
    packages = sysconfig.get_path("purelib", vars={"base": str(environment)})
    # our own package and what it needs, as if installed there
    paths = [str(ROOT), *site.getsitepackages(), sysconfig.get_path("purelib")]
    (Path(packages) / "installed.pth").write_text("\n".join(paths) + "\n", encoding="utf-8")
    (tmp_path / "user.py").write_text("\n".join(PROGRAM) + "\n", encoding="utf-8")
    python = environment / "bin" / "python"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--python-executable", python, "user.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    *found, last = done.stdout.splitlines()
    wanted = {number: says for number, says in enumerate(PROGRAM.values(), 1) if says}
    assert len(found) == len(wanted), done.stdout + done.stderr
    for line, (number, says) in zip(found, wanted.items(), strict=True):
        assert line.startswith(f"user.py:{number}: error: {says}")
    assert last == "Found 3 errors in 1 file (checked 1 source file)"
