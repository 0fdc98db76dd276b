"""CSV whose text cells are inert in a spreadsheet and are read back as they were."""

import csv
import io

import pytest

from rope_jax.runs.tables import format_csv, text_of_cell


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("+cmd", "'+cmd"),
        ("-cmd", "'-cmd"),
        ("@SUM", "'@SUM"),
        ("'=x", "''=x"),
        ("plain", "plain"),
        ("it's", "it's"),
        ("'quoted'", "'quoted'"),
        ("-0.5", "-0.5"),
        ("a=b,c", "a=b,c"),
        ("", ""),
    ],
)
def test_text_is_inert_and_read_back(text, cell):
    made = format_csv(["a", text], [[text, 1]])
    header, row = csv.reader(io.StringIO(made, newline=""))
    assert (header[1], row[0]) == (cell, cell)
    assert text_of_cell(cell) == text


def test_what_a_terminal_would_obey_is_escaped():
    assert format_csv(["\x1b]0;x\x07"], [["\t=x\r\n"]]) == "\\x1b]0;x\\x07\n\\t=x\\r\\n\n"


def test_numbers_are_written_to_the_last_digit():
    assert format_csv(["a"], [[-0.1], [1 / 3], [-3], [None], [True], [float("-inf")]]) == (
        f"a\n-0.1\n{1 / 3!r}\n-3\n\nTrue\n-inf\n"
    ).replace("\n\n", '\n""\n')
