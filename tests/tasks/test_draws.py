"""Random choices: the same everywhere, and all equally likely."""

from collections import Counter
from itertools import permutations

from rope_jax.tasks.draws import Draws


def test_the_choices_of_a_seed_never_change():
    draws = Draws(1, 2)
    assert [draws.below(1000) for _ in range(4)] == [929, 283, 242, 985]
    assert draws.fraction() == 0.11674236123693271
    assert draws.tokens(256, 3).tolist() == [171, 28, 7]
    assert Draws(1, 2, purpose=1).below(1000) == 709


def test_a_part_goes_on_by_itself():
    one, other = Draws(3), Draws(3)
    part, same = one.part(), other.part()
    part.tokens(10, 100)
    assert one.below(2**60) == other.below(2**60)
    assert part.below(2**60) != same.below(2**60)
    assert Draws(3).part().below(2**60) != Draws(3).below(2**60)


def test_ordered_choices_are_equally_likely():
    draws = Draws(5)
    counts = Counter(tuple(draws.different(4, 2)) for _ in range(12_000))
    assert set(counts) == set(permutations(range(4), 2))
    assert max(abs(count - 1000) for count in counts.values()) < 5 * 1000**0.5
    assert sorted(Draws(6).different(50, 50)) == list(range(50))
    assert Draws(6).different(50, 50)[:7] == Draws(6).different(50, 7)
