"""Names in Markdown are shown, not obeyed."""

import pytest

from rope_jax.report.table import escape_markdown, yaml_block


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("runs/a_b", "runs/a_b"),
        ("a|b`c`", r"a\|b\`c\`"),
        ("[x](y) <b>", r"\[x\](y) \<b\>"),
        ("https://a.b www.a.b a@b.c", r"https\://a.b www\.a.b a\@b.c"),
        ("corpus: one", "corpus: one"),
        ("a\n# b\x1b", r"a\\n\# b\\x1b"),
        ("_a_ **b**", r"\_a\_ \*\*b\*\*"),
    ],
)
def test_markdown_is_escaped(text, shown):
    assert escape_markdown(text) == shown


@pytest.mark.parametrize("name", ["plain", "```", "a ````` b", "``"])
def test_nothing_ends_a_block(name):
    block = yaml_block(f"name: x\n{name}\n<script>\n")
    fence = block.partition("yaml")[0]
    assert len(fence) >= 3
    assert block.count(fence) == 2
    assert block.endswith(f"<script>\n{fence}")
