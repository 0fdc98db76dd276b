"""The direction of imports: which part of the package may import which, read from the source.

Every import statement counts, also inside functions and under `if TYPE_CHECKING`.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "rope_jax"

# From the bottom to the top. A part may import those of the layers below it, and itself.
LAYERS = (
    ("errors", "user_cache"),
    ("extras", "stopping"),
    ("rope",),
    ("sealed",),
    ("positions", "protocols", "tasks", "kernels"),
    ("attention", "collectives"),
    ("blocks",),
    ("model",),
    ("config",),
    ("devices",),
    ("data",),
    ("console",),
    ("runs",),
    ("session", "results"),
    ("comparison",),
    ("plots",),
    ("evaluation",),
    ("report",),
    ("training",),
    ("sweeps", "inspection"),
    ("fitting", "checkpoints", "planning"),
    ("runtimes", "generation"),
    ("extending",),
    ("grids",),
    ("cli",),
    ("harness",),
    ("commands",),
    ("__main__",),
)
HEIGHT = {part: height for height, layer in enumerate(LAYERS) for part in layer}
# What lists the commands and reports mistakes in naming one, in less time than importing jax takes.
WITHOUT_JAX = {"__main__", "cli", "commands", "errors", "extras", "stopping"}
JAX = {"jax", "jaxlib", "flax", "optax", "orbax"}
# Whoever uses one of these names the axes of a mesh.
NAMES_MESH_AXES = {
    *("AbstractMesh", "AxisType", "Mesh", "NamedSharding", "PartitionSpec"),
    *("make_mesh", "pmap", "shard_map"),
}


class Import(NamedTuple):
    """One imported module or name, such as `rope_jax.rope.RotaryGeometry`."""

    file: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.name}"

    @property
    def importer(self) -> str:
        """The part of the package that the file belongs to."""
        return part_of(self.file)

    @property
    def part(self) -> str:
        """Which part of the package is imported; "" for other packages and the root itself."""
        package, part, *_ = [*self.name.split("."), ""]
        return part if package == "rope_jax" and part in HEIGHT else ""


def part_of(file: str) -> str:
    return Path(file).with_suffix("").parts[1]


@cache
def trees() -> dict[str, list[ast.AST]]:
    """The nodes of every file of the package."""
    return {
        str(path.relative_to(ROOT)): list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


@cache
def imports() -> list[Import]:
    """Every import of the package."""
    found = []
    for file, nodes in trees().items():
        for node in nodes:
            if isinstance(node, ast.Import):
                found += [Import(file, node.lineno, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{file}:{node.lineno} has a relative import"
                names = (f"{node.module}.{alias.name}" for alias in node.names)
                found += [Import(file, node.lineno, name) for name in names]
    return found


def assert_none(wrong: Iterable[object], rule: str) -> None:
    found = [str(each) for each in wrong]
    assert not found, "\n".join([f"{rule}:", *found])


def test_every_part_has_a_layer() -> None:
    parts = {part_of(file) for file in trees()} - {"__init__"}
    assert parts == set(HEIGHT), "LAYERS has to name every folder and module, and nothing else"


def test_the_package_says_that_it_has_types() -> None:
    assert (PACKAGE / "py.typed").is_file()  # PEP 561


def test_a_part_imports_only_what_is_below_it() -> None:
    others = [i for i in imports() if i.part and i.part != i.importer and i.importer in HEIGHT]
    assert len(others) > 200
    wrong = (i for i in others if HEIGHT[i.part] >= HEIGHT[i.importer])
    assert_none(wrong, "a part may import only the layers below it")


def test_rope_imports_nothing_of_the_rest_and_needs_few_packages() -> None:
    """Those that the README names for `pip install --no-deps`, beside what they need themselves."""
    of_rope = [i for i in imports() if i.importer == "rope"]
    assert_none((i for i in of_rope if i.part not in ("", "rope")), "rope/ works by itself")
    allowed = {"jax", "flax", "numpy", "pydantic", "pydantic_core", "jaxtyping", "rope_jax"}
    used = {i.name.partition(".")[0] for i in of_rope}
    assert used - set(sys.stdlib_module_names) <= allowed


def test_only_checkpoints_imports_orbax() -> None:
    checkpoints = "rope_jax/training/checkpoints.py"
    wrong = (i for i in imports() if i.name.startswith("orbax") and i.file != checkpoints)
    assert_none(wrong, f"orbax belongs to {checkpoints}")


def test_files_that_import_a_package_of_an_extra_say_which() -> None:
    """Without `needs_extra`, the base package would end with a traceback."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    extras = {}
    for extra in re.findall(r"\w+", optional["all"][0].partition("[")[2]):
        extras[re.split(r"\W", optional[extra][0])[0]] = extra
    gguf = "rope_jax/checkpoints/gguf/"  # imported in `needs_extra` as a whole
    used = {(i.file, extras.get(i.name.partition(".")[0])) for i in imports()}
    needed = {(file, extra) for file, extra in used if extra and not file.startswith(gguf)}
    assert {extra for _, extra in needed} == {*extras.values()} - {"gguf", "tensorboard"}
    wrong = (
        f"{file} imports a package of {extra}"
        for file, extra in needed
        if f'needs_extra("{extra}"' not in (ROOT / file).read_text(encoding="utf-8")
    )
    assert_none(wrong, "a package of an extra has to be imported in `with needs_extra(...)`")


def test_only_mesh_names_mesh_axes() -> None:
    wrong = (
        f"{file}:{node.lineno} uses {name}"
        for file, nodes in trees().items()
        if file not in ("rope_jax/devices/mesh.py", "rope_jax/collectives.py")
        for node in nodes
        for name in (getattr(node, field, None) for field in ("id", "attr", "name"))
        if isinstance(name, str) and name.split(".")[-1] in NAMES_MESH_AXES
    )
    assert_none(wrong, "only these files name the axes of a mesh")


def test_listing_the_commands_loads_no_jax() -> None:
    files = (Path(file) for file in trees() if part_of(file) in WITHOUT_JAX)
    modules = [".".join(file.with_suffix("").parts) for file in files]
    program = f"import sys, {', '.join(modules)}; print({JAX} & {{*sys.modules}})"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
