"""The overview that the terminal shows before work starts."""

import io

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn
from rich.table import Table

from rope_jax.console import describe_scaling, plain_console, print_overview, print_warning
from rope_jax.rope import RotaryGeometry, RotaryLayers, parse_scaling
from rope_jax.rope.layers import LayerOverride

GEOMETRY = RotaryGeometry(rotary_dim=8, base=10000.0, train_length=64)


@pytest.mark.parametrize("make", [plain_console, Console])
def test_names_are_printed_as_they_are(make):
    stream = io.StringIO()
    facts = {"[red]run": "[/] :smile:", "scalings": ["one", "[b]two"]}
    print_overview(make(file=stream, width=60), "training [/]", facts)
    assert [line.rstrip() for line in stream.getvalue().splitlines()] == [
        "training [/]",
        "  [red]run  [/] :smile:",
        "  scalings  one",
        "            [b]two",
    ]


def test_layers_of_one_kind_share_a_line():
    none, yarn = parse_scaling({"type": "none"}), parse_scaling({"type": "yarn", "factor": 4.0})
    pattern = LayerOverride(), LayerOverride(scaling=none)
    (line,) = describe_scaling(RotaryLayers(GEOMETRY, 4), none, 64)
    assert line == "none: wavelengths 6.283 to 6283 tokens, θ × 1, m 1"
    lines = describe_scaling(RotaryLayers(GEOMETRY, 4, pattern, 8), yarn, 256, "yarn-4")
    assert [line.partition(", base")[0] for line in lines] == (
        ["layers 0, 2: yarn", "layers 1, 3: none"]
    )
    assert lines[1].endswith("yarn-4: wavelengths 6.283 to 6283 tokens, θ × 1, m 1")


ACTIVE = "\x1b]0;title\x07 \x9b31m \r \u202e \udcff \b"
VISIBLE = r"\x1b]0;title\x07 \x9b31m \r \u202e \udcff \x08"


def test_nothing_that_a_terminal_obeys_reaches_it():
    stream = io.StringIO()
    console = plain_console(file=stream, width=300)
    console.print(ACTIVE)
    console.print(ACTIVE, style="yellow")
    console.print("one", ACTIVE, sep="\n", soft_wrap=True)
    print_overview(console, f"training {ACTIVE}\nx", {f"a\n{ACTIVE}": [f"b\n{ACTIVE}", ACTIVE]})
    print_warning(console, f"{ACTIVE}\nis damaged")
    table = Table(title=ACTIVE)
    table.add_column(ACTIVE)
    table.add_row(ACTIVE)
    console.print(table)
    said = stream.getvalue()
    assert all(line.isprintable() for line in said.split("\n"))
    assert said.count(VISIBLE) == 11
    assert f"training {VISIBLE}\\nx\n" in said
    assert f"{VISIBLE}\\nis damaged\n" in said


def test_progress_in_a_terminal_is_escaped_and_keeps_its_own_controls():
    stream = io.StringIO()
    console = plain_console(file=stream, width=100, force_terminal=True)
    with Progress(TextColumn("{task.fields[now]}"), console=console) as bar:
        bar.add_task("", total=1, now="a\x1b]0;b\x07")
    said = stream.getvalue()
    assert r"a\x1b" in said
    assert "\x1b]0;" not in said
    assert "\x1b[?25l" in said  # Rich hides the cursor
