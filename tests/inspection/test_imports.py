"""Importing the package leaves the importer's matplotlib as it was."""

import pkgutil
import subprocess
import sys

import rope_jax.inspection

PROGRAM = """
import importlib, sys
import matplotlib

def settings():
    # dict.items: asking for the backend by its key would choose one
    return dict(dict.items(matplotlib.rcParams)), matplotlib.get_backend(auto_select=False)

matplotlib.rcParams["lines.linewidth"] = 7.0  # stands for a user's own settings
before = settings()
for name in sys.argv[1:]:
    importlib.import_module(name)
assert settings() == before
assert "matplotlib.pyplot" not in sys.modules
"""


def test_importing_the_package_leaves_matplotlib_alone() -> None:
    package = rope_jax.inspection
    names = [f"{package.__name__}.{found.name}" for found in pkgutil.iter_modules(package.__path__)]
    assert f"{package.__name__}.scalings" in names
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *names], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
