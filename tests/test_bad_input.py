"""Bad input is reported in one line: tests/bad_input.yaml, and fuzz tests of the loader."""

import io
import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import eval_ppl
import train
from rope_jax import cli
from rope_jax.config.load import dump, load
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config
from rope_jax.errors import UserError
from rope_jax.positions.encodings import ENCODINGS
from rope_jax.positions.maps import MAPS
from rope_jax.rope import STRATEGIES
from rope_jax.rope.strategies.registry import PLAIN
from scripts import fit, key_tokens, plan

ROOT = Path(__file__).parents[1]


def catalogue():
    """Return tests/bad_input.yaml with names of scalings and the like for its placeholders."""
    names = list(STRATEGIES)
    with_factor = [name for name in names if "factor" in STRATEGIES[name].model_fields]
    placeholders = {
        "<scalings>": ", ".join(names),
        "<inner scalings>": ", ".join(s.model_fields["type"].default for s in PLAIN),
        "<extending scalings>": ", ".join(
            s.model_fields["type"].default for s in PLAIN if s.has_extension_factor()
        ),
        "<maps>": ", ".join(MAPS),
        "<encodings>": ", ".join(ENCODINGS),
        "<encodings with maps>": " and ".join(n for n, e in ENCODINGS.items() if e.takes_maps),
        "<scalings with a factor>": " or ".join([", ".join(with_factor[:-1]), with_factor[-1]]),
    }
    content = yaml.safe_load((ROOT / "tests/bad_input.yaml").read_text(encoding="utf-8"))
    for section in content["sections"]:
        for case in section["cases"]:
            for placeholder, text in placeholders.items():
                case["says"] = case["says"].replace(placeholder, text)
    return content


CATALOGUE = catalogue()
CASES = [case for section in CATALOGUE["sections"] for case in section["cases"]]
COMMANDS = {
    "train.py": train.main,
    "eval_ppl.py": eval_ppl.main,
    "scripts/fit.py": fit.main,
    "scripts/key_tokens.py": key_tokens.main,
    "scripts/plan.py": plan.main,
}


def content(text) -> bytes:
    """Return the bytes of a file or command line, which the catalogue gives in several forms."""
    if isinstance(text, list):
        text = "".join(part * times for part, times in text)
    return text if isinstance(text, bytes) else text.encode()


def words(case) -> list[str]:
    return shlex.split(content(case["run"]).decode())


def name_of(case) -> str:
    shown = case["run"] if isinstance(case["run"], str) else case["about"]
    return " ".join([shown, case.get("about", ""), *map(repr, case.get("files", {}).values())])[:90]


def everything_in(folder):
    """Return all paths in a folder, except corpora cached completely, which the next run reads."""
    corpora = {path.parent for path in folder.rglob("SHA256SUMS")}
    kept = [*corpora, *(path.parent for path in corpora)]
    return {p for p in folder.rglob("*") if p not in kept and p.parent not in corpora}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Make a working directory with the catalogue's files."""
    folder = tmp_path / "here"
    for name, text in CATALOGUE["files"].items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # the first import of matplotlib writes a list of fonts, which is slow to make
    monkeypatch.setenv("MPLCONFIGDIR", str(ROOT / ".pytest_cache" / "matplotlib"))
    # the catalogue's messages quote this amount of memory
    monkeypatch.setattr("rope_jax.training.memory.least_available", lambda *_: 16 * 2**30)
    # it makes a folder in the user's cache, whatever the input
    monkeypatch.setattr("rope_jax.user_cache.keep_compiled_programs", lambda: None)
    return folder


@pytest.fixture
def refused(folder, monkeypatch, capsys):
    """Return a function that calls a command, checks its error line and returns it."""

    def refused(*words: str) -> str:
        before = everything_in(folder.parent)
        monkeypatch.setattr(sys, "argv", list(words))
        monkeypatch.setattr(
            "rope_jax.training.loop.Trainer.run", lambda *_: pytest.fail("training began")
        )
        with pytest.raises(SystemExit) as caught:
            cli.run(COMMANDS[words[0]])
        shown = capsys.readouterr()
        assert caught.value.code == 2
        name = Path(words[0]).name
        assert shown.err.startswith(f"{name}: ")
        assert shown.err.count("\n") == 1
        assert shown.err.endswith("\n")
        assert len(shown.err) < 1100
        assert shown.err.rstrip("\n").isprintable()
        assert everything_in(folder.parent) == before
        return shown.err.removeprefix(f"{name}: ").rstrip("\n").replace(str(folder), ".")

    return refused


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_every_case_of_the_catalogue_gives_its_message(folder, refused, case):
    for name, text in case.get("files", {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content(text))
    assert refused(*words(case)) == case["says"]


def test_files_without_read_permission_are_reported(folder, refused, monkeypatch):
    # the tests may run as root, who can read every file: simulate the error
    really_open = io.open

    def open_unless_forbidden(path, *arguments, **settings):
        if os.path.exists(path) and os.stat(path).st_mode & 0o777 == 0:
            raise PermissionError(13, "Permission denied", str(path))
        return really_open(path, *arguments, **settings)

    (folder / "texts").mkdir()
    for name in ("run.yaml", "texts/a"):
        (folder / name).write_text("x")
        (folder / name).chmod(0)
    monkeypatch.setattr("io.open", open_unless_forbidden)
    monkeypatch.setattr("builtins.open", open_unless_forbidden)
    assert refused("train.py", "run.yaml") == "run.yaml: cannot be read (Permission denied)"
    said = refused("train.py", "text.yaml")
    assert said == "data.files: cannot read texts/a: Permission denied"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("train.py pipe", "pipe: cannot be read (a pipe that nothing is written to)"),
        ("train.py loop", "loop: cannot be read (Too many levels of symbolic links)"),
        ("train.py /dev/zero", "/dev/zero: cannot be read (not a regular file)"),
        (
            "train.py run.yaml 'rope.scaling={type: explicit, path: pipe}'",
            "run.yaml: rope.scaling.path: pipe cannot be read (a pipe that nothing is written to)",
        ),
        (
            "eval_ppl.py runs/tiny --sweep pipe",
            "pipe: cannot be read (a pipe that nothing is written to)",
        ),
        (f"eval_ppl.py {'x' * 300}", f"{'x' * 300}: cannot be read (File name too long)"),
    ],
    ids=lambda text: text[:50],
)
def test_what_is_no_file_is_refused_and_not_waited_for(folder, refused, line, says):
    os.mkfifo("pipe")
    os.symlink("loop", "loop")
    assert refused(*shlex.split(line)) == says


def test_a_name_cannot_act_on_the_terminal(folder, refused):
    said = refused("train.py", "\x1b]0;title\x07\n\r\u202e\udcff.yaml")
    assert said == r"\x1b]0;title\x07\n\r\u202e\udcff.yaml: no such file"


def test_a_printed_config_cannot_act_on_the_terminal(folder):
    evil = r'runs_dir="\e]0;x\a\n\r\u202e\xa0\U000E0001"'
    config = load(Config, folder / "run.yaml", [evil])
    assert config.runs_dir == "\x1b]0;x\x07\n\r\u202e\xa0\U000e0001"
    text = dump(config)
    assert all(line.isprintable() for line in text.split("\n"))
    (folder / "dumped.yaml").write_text(text)
    assert load(Config, folder / "dumped.yaml") == config


def test_whole_numbers_may_be_written_with_an_exponent(folder):
    stage = load(Config, folder / "run.yaml", ["stages.0.steps=1e3", "seed=7.0"]).stages[0]
    assert (stage.steps, type(stage.steps)) == (1000, int)


@pytest.mark.parametrize(
    "line",
    ["eval_ppl.py runs/lr=0.1", "train.py jsonl.yaml"],
)
def test_the_commands_report_bad_input_as_processes(folder, line):
    (folder / "a.jsonl").write_text("{oops")
    before = everything_in(folder)
    script, *arguments = line.split()
    before_it = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, str(ROOT / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    after_it = resource.getrusage(resource.RUSAGE_CHILDREN)
    # of the processor, which other programs do not take from it
    seconds = after_it.ru_utime + after_it.ru_stime - before_it.ru_utime - before_it.ru_stime
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"{script}: ")
    assert everything_in(folder) == before
    if "jsonl" not in line:  # which imports jax and datasets; the other takes half a second
        assert done.stdout == ""
        assert seconds < 5


# Fuzz tests: whatever the input, the loader returns a config or raises a UserError

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "40"))
FILES = [
    *((Config, path) for path in sorted(ROOT.glob("configs/*.yaml"))),
    *((SweepConfig, path) for path in sorted(ROOT.glob("configs/sweeps/*.yaml"))),
]
KEYS = sorted({key for schema, path in FILES for key in load(schema, path).model_dump()})
KEYS += ["type", "factor", "beta_fast", "hidden_size", "head_dim", "steps", "seq_len", "train"]
WORDS = [*KEYS, "pi", "yarn", "trained", "auto", "text", "${seed}", "a/b"]
WORDS += ["1e3", "<<", "=", "~", "\0"]

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 2**31, 2**63, 10**30, 1e308, 5e-324]),
    st.floats(),
    st.sampled_from(WORDS),
    st.text(max_size=8),
)
keys = st.one_of(st.sampled_from(KEYS), st.text(max_size=4), st.integers(-1, 3))
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(keys, v, max_size=3), max_leaves=6
)
# looks like YAML at first sight
yamlish = st.text("ab01.e_:{}[]-,&*!#|>'\"%@?=<~$ \t\n", max_size=40)


def places(node, path=()):
    """Yield the path of every value in a raw config."""
    yield path
    if isinstance(node, dict | list):
        for key, inner in node.items() if isinstance(node, dict) else enumerate(node):
            yield from places(inner, (*path, key))


@st.composite
def mutants(draw):
    """Draw a config of configs/ with some values replaced, deleted or added: (schema, raw)."""
    schema, path = draw(st.sampled_from(FILES))
    raw = {"": yaml.safe_load(path.read_text(encoding="utf-8"))}
    for _ in range(draw(st.integers(1, 3))):
        node, *route = raw, *draw(st.sampled_from([p for p in places(raw) if p]))
        for part in route[:-1]:
            node = node[part]
        match draw(st.sampled_from(["replace", "delete", "add"])):
            case "replace":
                node[route[-1]] = draw(values)
            case "delete" if len(route) > 1:
                del node[route[-1]]
            case "add" if isinstance(node[route[-1]], dict):
                node[route[-1]][draw(keys)] = draw(values)
            case "add" if isinstance(node[route[-1]], list):
                node[route[-1]].append(draw(values))
    return schema, raw[""]


overrides = st.builds(
    lambda parts, value: ".".join(map(str, parts)) + "=" + value,
    st.lists(keys, min_size=1, max_size=3),
    st.one_of(yamlish, scalars.map(str), values.map(lambda v: yaml.safe_dump(v, width=9999))),
)


@pytest.fixture(scope="module")
def check_load(tmp_path_factory):
    """Return a check: the loader returns a config that survives a dump, or raises a UserError."""
    path = tmp_path_factory.mktemp("fuzz") / "C.yaml"

    def check_load(schema, content: bytes, given=()):
        path.write_bytes(content)
        try:
            config = load(schema, path, given)
        except UserError as error:
            said = str(error)
        else:
            path.write_text(dump(config), encoding="utf-8")
            assert load(schema, path) == config
            return
        assert said.isprintable()
        assert len(said) > 5

    return check_load


fuzz = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@fuzz
@given(mutant=mutants(), given=st.lists(overrides, max_size=2))
def test_a_changed_config_loads_or_is_a_user_error(check_load, mutant, given):
    schema, raw = mutant
    check_load(schema, yaml.safe_dump(raw).encode("utf-8", "replace"), given)


@fuzz
@given(schema=st.sampled_from([Config, SweepConfig]), raw=values)
def test_any_structure_loads_or_is_a_user_error(check_load, schema, raw):
    check_load(schema, yaml.safe_dump(raw).encode("utf-8", "replace"))


@fuzz
@given(
    schema=st.sampled_from([Config, SweepConfig]),
    content=st.one_of(st.binary(max_size=60), yamlish.map(str.encode)),
)
def test_any_bytes_load_or_are_a_user_error(check_load, schema, content):
    check_load(schema, content)
