"""Text as Markdown that shows it as it is."""

import re

from rope_jax.errors import printable

# Characters special to Markdown; an underscore only where it could begin or end emphasis. GitHub
# also makes links of https://…, www.… and a@b.c.
_SPECIAL = re.compile(r"[\\`*\[\]<>|~$&#@]|(?<!\w)_|_(?!\w)|:(?=//)|(?<=www)\.")


def escape_markdown(text: str) -> str:
    """Return one line of Markdown that shows `text` as it is, also in a table."""
    return _SPECIAL.sub(r"\\\g<0>", printable(text))


def yaml_block(yaml: str) -> str:
    """Return a block of code; nothing in it ends the block, whatever backticks it contains."""
    longest = max(map(len, re.findall("`+", yaml)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}yaml\n{yaml}{fence}"
