"""Keys and values that are hidden: digits, numbers, words and UUIDs."""

from collections.abc import Callable
from typing import Literal, TypeVar

from rope_jax.tasks.draws import Draws

T = TypeVar("T")

NAMES = (
    *("amber", "azure", "bronze", "cobalt", "copper", "coral", "crimson", "ebony"),
    *("emerald", "garnet", "golden", "indigo", "ivory", "jade", "lilac", "linen"),
    *("maroon", "mauve", "ochre", "olive", "opal", "pearl", "purple", "ruby"),
    *("russet", "scarlet", "silver", "topaz", "umber", "velvet", "violet", "yellow"),
)
"""What keys are called."""
WORDS = (
    *("anchor", "basket", "bridge", "button", "candle", "castle", "cellar", "church"),
    *("circle", "cradle", "desert", "dinner", "engine", "feather", "finger", "flower"),
    *("forest", "garden", "hammer", "harbor", "island", "jacket", "kettle", "ladder"),
    *("lantern", "letter", "market", "meadow", "mirror", "mountain", "needle", "orchard"),
    *("palace", "pepper", "pillow", "planet", "pocket", "prison", "ribbon", "river"),
    *("saddle", "school", "shadow", "shovel", "spider", "spring", "statue", "stone"),
    *("summer", "table", "temple", "thunder", "ticket", "timber", "tunnel", "valley"),
    *("vessel", "village", "wagon", "walnut", "whistle", "window", "winter", "wolf"),
)
"""What values of words are made of."""
QUALITIES = (
    *("ancient", "brave", "calm", "clever", "daring", "eager", "faithful", "gentle"),
    *("happy", "honest", "humble", "jolly", "kind", "lively", "lucky", "mighty"),
    *("modest", "noble", "patient", "polite", "proud", "quiet", "rapid", "secret"),
    *("simple", "steady", "sturdy", "tender", "timid", "vivid", "wise", "young"),
)
"""What may precede a word."""
NAMED = len(QUALITIES) * len(WORDS)
"""How many values `named` chooses from."""

Kind = Literal["numbers", "words", "uuids"]


def digits(draws: Draws, count: int) -> str:
    """Return `count` independent digits."""
    return "".join(str(draws.below(10)) for _ in range(count))


def number(draws: Draws, count: int) -> str:
    """Return a number of `count` digits, of which the first is not 0."""
    return str(1 + draws.below(9)) + digits(draws, count - 1)


def words(draws: Draws) -> str:
    """Return three words, such as "anchor-meadow-wolf"."""
    return "-".join(draws.one_of(WORDS) for _ in range(3))


def named(draws: Draws) -> str:
    """Return a quality and a word, such as "quiet-harbor"."""
    return f"{draws.one_of(QUALITIES)}-{draws.one_of(WORDS)}"


def uuid(draws: Draws) -> str:
    """Return a random UUID, version 4 of RFC 4122."""
    text = "".join(draws.one_of("0123456789abcdef") for _ in range(30))
    variant = draws.one_of("89ab")
    return f"{text[:8]}-{text[8:12]}-4{text[12:15]}-{variant}{text[15:18]}-{text[18:]}"


def different(make: Callable[[], T], count: int) -> list[T]:
    """Return `count` values that differ; there have to be that many."""
    found: list[T] = []
    while len(found) < count:
        value = make()
        if value not in found:
            found.append(value)
    return found
