"""The direction of imports: which part of the package may import which, read from the source.

Every import statement counts, also inside functions and under `if TYPE_CHECKING`.
"""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "rope_jax"

# From the bottom to the top. A part may import those of the layers below it, and itself.
LAYERS = (
    ("errors", "invocation", "user_cache"),
    ("stopping",),
    ("rope",),
    ("sealed",),
    ("positions", "protocols", "tasks", "kernels"),
    ("attention",),
    ("blocks",),
    ("config",),
    ("devices",),
    ("data",),
    ("console",),
    ("model",),
    ("runs",),
    ("session", "results"),
    ("comparison",),
    ("plots",),
    ("report",),
    ("evaluation",),
    ("training",),
    ("sweeps", "inspection"),
    ("fitting", "checkpoints", "planning"),
    ("grids",),
    ("cli",),
    ("commands",),
    ("__main__",),
)
HEIGHT = {part: height for height, layer in enumerate(LAYERS) for part in layer}
ROOT_MODULES = {
    *(
        "__main__",
        "cli",
        "console",
        "errors",
        "invocation",
        "sealed",
        "session",
        "stopping",
        "user_cache",
    ),
}
# What answers --help and mistakes in a config, in less time than importing jax takes.
WITHOUT_JAX = {
    *("__main__", "cli", "commands", "config", "errors", "invocation", "protocols", "stopping"),
    *("tasks", "user_cache"),
}
JAX = {"jax", "jaxlib", "flax", "optax", "orbax"}
# Whoever uses one of these names the axes of a mesh.
NAMES_MESH_AXES = {
    "AbstractMesh",
    "AxisType",
    "Mesh",
    "NamedSharding",
    "PartitionSpec",
    "make_mesh",
    "pmap",
    "shard_map",
}


class Import(NamedTuple):
    """One imported module or name, such as `rope_jax.rope.RotaryGeometry`."""

    file: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.name}"

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]

    @property
    def part(self) -> str | None:
        """Which part of the package is imported; None for other packages and the root itself."""
        package, *inside = self.name.split(".")
        return inside[0] if package == "rope_jax" and inside and inside[0] in parts() else None


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@cache
def parts() -> frozenset[str]:
    """Folders and modules at the root of the package."""
    return frozenset(part_of(path) for path in PACKAGE.rglob("*.py")) - {"__init__"}


def imports_of(source: str, file: str) -> Iterator[Import]:
    """Every import of a file; a relative one by its full name."""
    folder = Path(file).parts[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            above = folder[: len(folder) - node.level + 1] if node.level else ()
            for alias in node.names:
                name = [*above, *([node.module] if node.module else []), alias.name]
                yield Import(file, node.lineno, ".".join(name))


@cache
def imports(part: str) -> tuple[Import, ...]:
    """The imports of all files of a part."""
    return tuple(
        found
        for path in sorted(PACKAGE.rglob("*.py"))
        if part_of(path) == part
        for found in imports_of(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
    )


def is_type_checking(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and (node.test.id == "TYPE_CHECKING")
    )


def assert_none(wrong: list[Import], rule: str) -> None:
    assert not wrong, "\n".join([f"{rule}:", *map(str, wrong)])


def test_every_part_has_a_layer() -> None:
    assert parts() == set(HEIGHT), "LAYERS has to name every folder and module, and nothing else"


def test_only_these_modules_lie_at_the_root() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert modules == ROOT_MODULES, "put a module into the folder of its subject"


@pytest.mark.parametrize("part", sorted(HEIGHT))
def test_a_part_imports_only_what_is_below_it(part: str) -> None:
    wrong = [
        found
        for found in imports(part)
        if found.part not in (None, part) and HEIGHT[found.part] >= HEIGHT[part]
    ]
    assert_none(wrong, f"{part}/ may import only the layers below it")


def test_rope_imports_nothing_of_the_rest() -> None:
    wrong = [i for i in imports("rope") if i.package == "rope_jax" and i.part != "rope"]
    assert_none(wrong, "rope/ has to work without the rest of the package")


def test_settings_of_positions_import_jax_only_inside_functions() -> None:
    # the schema of a config contains them; the modules that compute may import it at the top
    settings = [PACKAGE / "positions" / name for name in ("__init__.py", "mask.py")]
    settings += [*PACKAGE.glob("positions/maps/*.py"), *PACKAGE.glob("positions/encodings/*.py")]
    assert len(settings) > 10
    computing = {f"rope_jax.positions.{name}" for name in ("bands", "mapping", "interaction")}
    wrong = []
    for path in settings:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) or is_type_checking(node):
                node.body = [ast.Pass()]  # imported when called, or never
        source = ast.unparse(ast.fix_missing_locations(tree))
        for found in imports_of(source, str(path.relative_to(ROOT))):
            module = ".".join(found.name.split(".")[:3])
            if found.package in JAX or module in computing:
                wrong.append(found)
    assert_none(wrong, "settings of positions are read before jax is imported")


@pytest.mark.parametrize("part", sorted(WITHOUT_JAX))
def test_what_answers_help_does_not_name_jax(part: str) -> None:
    wrong = [found for found in imports(part) if found.package in JAX]
    assert_none(wrong, f"{part} is imported before anything that takes a second to load")


def test_only_checkpoints_imports_orbax() -> None:
    wrong = [
        found
        for part in parts()
        for found in imports(part)
        if found.package == "orbax" and found.file != "rope_jax/training/checkpoints.py"
    ]
    assert_none(wrong, "orbax belongs to training/checkpoints.py")


def test_only_mesh_names_mesh_axes() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} uses {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path not in {PACKAGE / "devices" / name for name in ("mesh.py", "collectives.py")}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in (getattr(node, field, None) for field in ("id", "attr", "name"))
        if isinstance(name, str) and name.split(".")[-1] in NAMES_MESH_AXES
    ]
    assert not wrong, "\n".join(["only these files of devices/ name the axes of a mesh:", *wrong])


# Runs in a fresh interpreter: what each step has imported by its end. Later steps keep the
# modules of the earlier ones, so each step is at fault only if those before it are not.
STEPS = """
import importlib, json, runpy, sys
packages, modules, scripts = json.loads(sys.argv[1])
found = {}
def note(step):
    found[step] = sorted({name.partition(".")[0] for name in sys.modules} & set(packages))
for module in modules:
    importlib.import_module(module)
    note(module)
for script in scripts:
    sys.argv = [script, "--help"]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit:
        note(script)
print(json.dumps(found), file=sys.stderr)
"""


def test_help_and_config_load_no_jax() -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sorted(PACKAGE.rglob("*.py"))
        if part_of(path) in WITHOUT_JAX
    ]
    scripts = ["train.py", "eval_ppl.py"]
    done = subprocess.run(
        [sys.executable, "-c", STEPS, json.dumps([sorted(JAX), modules, scripts])],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stderr)
    assert list(found) == [*modules, *scripts]
    loaded = {step: names for step, names in found.items() if names}
    assert not loaded, f"jax must not be loaded after {next(iter(loaded))}: {loaded}"


def test_the_way_from_a_config_to_the_curve_exists():
    way = re.findall(r"\]\(([\w/]+\.py)\)", (ROOT / "CONTRIBUTING.md").read_text())
    assert way[0] == "eval_ppl.py"
    assert [path for path in way if not (ROOT / path).is_file()] == []
    assert len(way) <= 25
