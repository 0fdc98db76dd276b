"""The terminal: text as it is, lines broken between words, tables whose numbers stay whole."""

import io
import re

from rich.progress import MofNCompleteColumn, TaskProgressColumn

from rope_jax.console import (
    describe_duration,
    plain_console,
    print_message,
    print_overview,
    print_table,
    print_warning,
    print_wrapped,
    progress_bar,
    time_left,
    wrap,
)
from rope_jax.errors import printable


def test_lines_are_broken_after_clauses_and_at_spaces():
    fact = "yarn: slowest wavelength 35,330 tokens; frequencies × 1…0.0625; m 1.28"
    assert wrap(fact, 70) == [fact]
    assert wrap(fact, 69, indent=2) == [
        "yarn: slowest wavelength 35,330 tokens; frequencies × 1…0.0625;",
        "  m 1.28",
    ]
    assert wrap("one two three; four", 9) == ["one two", "three;", "four"]
    assert wrap("a-very-long-name 12,345,678", 5) == ["a-very-long-name", "12,345,678"]
    assert wrap("名前 名前 名前", 9) == ["名前 名前", "名前"]  # each is four cells wide


def test_facts_stand_beside_their_names_if_they_fit_and_no_line_is_too_wide():
    stream = io.StringIO()
    facts = {
        "run": "/a/folder/of/some/runs/long, step 3",
        "scalings at 256 tokens": ["yarn: slowest wavelength 35,330 tokens; m 1.28"],
    }
    print_overview(plain_console(file=stream, width=40), "sweep", facts)
    _, run, _, name, first, second = stream.getvalue().splitlines()
    assert run == "  run  /a/folder/of/some/runs/long, step"
    assert name == "  scalings at 256 tokens"
    assert (first, second) == ("    yarn: slowest wavelength 35,330", "      tokens; m 1.28")


def test_a_message_is_broken_in_a_terminal_only():
    message = "/a/folder/of/words: is damaged and left out"

    def shown(**options):
        console = plain_console(file=io.StringIO(), width=24, no_color=True, **options)
        print_message(console, message)
        return console.file.getvalue()

    assert shown() == f"{message}\n"  # a line of a log is found by what it says
    assert shown(force_terminal=True) == "/a/folder/of/words: is\ndamaged and left out\n"


def test_no_cell_of_a_table_is_cut_or_folded():
    stream = io.StringIO()
    console = plain_console(file=stream, width=22)
    rows = [("a", "512.25", "1024.25", "2048.25"), ("long", "7", "7", "7")]
    print_table(console, ("name", "512", "1,024", "2,048"), rows)
    assert [line.rstrip() for line in stream.getvalue().splitlines()] == [
        "name     512    1,024",
        "a     512.25  1024.25",
        "long       7        7",
        "",
        "name    2,048",
        "a     2048.25",
        "long        7",
    ]


ACTIVE = "\x1b]0;title\x07 \x9b31m \r \u202e \udcff \b"
VISIBLE = r"\x1b]0;title\x07 \x9b31m \r \u202e \udcff \x08"


def test_nothing_that_a_terminal_obeys_reaches_it():
    stream = io.StringIO()
    console = plain_console(file=stream, width=300)
    console.print("one", printable(ACTIVE), sep="\n", soft_wrap=True)
    print_overview(console, f"training {ACTIVE}\nx", {f"a\n{ACTIVE}": [f"b\n{ACTIVE}", ACTIVE]})
    print_warning(console, f"{ACTIVE}\nis damaged")
    print_table(console, ("", printable(ACTIVE)), [("", printable(ACTIVE))])
    said = stream.getvalue()
    assert all(line.isprintable() for line in said.split("\n"))
    assert said.count(VISIBLE) == 8
    assert f"training {VISIBLE}\\nx\n" in said
    assert f"{VISIBLE}\\nis damaged\n" in said


def test_markup_is_no_markup_wherever_text_is_printed():
    name = "[/] [red]x :smile:"
    stream = io.StringIO()
    console = plain_console(file=stream, width=100, force_terminal=True, color_system="truecolor")
    print_warning(console, name)
    print_wrapped(console, name)
    print_overview(console, name, {name: [name, name]})
    print_table(console, (name, name), [(name, name)])
    with progress_bar(console, TaskProgressColumn) as bar:
        bar.add_task(name, total=1, now=name)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert plain.count(name) >= 11
    assert not re.search(r"\x1b\[([0-9]+;)*31m", stream.getvalue())  # red


def test_durations_are_rounded_to_what_an_estimate_can_say():
    for seconds, text in {
        0.2: "about 1 second",
        89: "about 89 seconds",
        91: "about 2 minutes",
        5500: "about 2 hours",
        200_000: "about 2 days",
        1e9: "about 11,574 days",
    }.items():
        assert describe_duration(float(seconds)) == text


class Clock:
    """The time that a test says it is."""

    now = 0.0

    def __call__(self):
        return self.now


def shown_bar(width=120, **fields):
    """Return a bar of 100 units, its task, its clock, and a function that draws it as text."""
    clock = Clock()
    how = {"width": width, "force_terminal": True, "no_color": True, "get_time": clock}
    console = plain_console(file=io.StringIO(), **how)
    bar = progress_bar(console, MofNCompleteColumn)
    task = bar.add_task("training", total=100, now="first step", **fields)

    def drawn():
        with console.capture() as captured:
            console.print(bar.get_renderable())
        return captured.get()

    return bar, task, clock, drawn


def test_time_left_is_estimated_however_far_apart_updates_are():
    bar, task, clock, drawn = shown_bar()
    for seconds, done in ((5000, 0), (9000, 10), (9900, 20)):  # compiling is part of the first 10
        assert "-:--:--" in drawn()
        assert time_left(bar.tasks[task]) == ""
        clock.now = seconds
        bar.update(task, completed=done)
    assert "2:00:00" in drawn()  # 80 more, at 10 in 900 s
    assert time_left(bar.tasks[task]) == ", about 2 hours left"
    bar.update(task, completed=100)
    assert "0:00:00" in drawn()
    assert time_left(bar.tasks[task]) == ""


def test_a_bar_becomes_narrow_before_any_figure_is_cut():
    now = "loss 4.567, 14.3k tokens/s, validation 5.678"
    for width, bar_width in ((80, 8), (100, 28), (120, 40)):
        bar, task, _, drawn = shown_bar(width)
        bar.update(task, total=1000, completed=620, now=now)
        (line,) = drawn().splitlines()
        assert re.fullmatch(rf"training .{{{bar_width}}}  620/1000 -:--:-- {now}\s*", line), line
    bar.update(task, now=f"{now}, {now}, {now}")
    assert " 620/1000 " in drawn()  # the text is folded, not the count


def test_a_file_gets_no_bar():
    console = plain_console(file=io.StringIO())
    with progress_bar(console, TaskProgressColumn) as bar:
        bar.update(bar.add_task("reading", total=1, now=""), completed=1)
    assert console.file.getvalue() == ""
