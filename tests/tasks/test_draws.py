"""Random choices: the same everywhere, and all equally likely.

The forms of keys and values are tested with the tasks that hide them.
"""

from collections import Counter
from itertools import pairwise, permutations

from rope_jax.tasks.draws import NAMES, QUALITIES, WORDS, Draws, distinct


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


def test_no_word_occurs_twice_and_no_name_is_the_beginning_of_another():
    assert [len(set(words)) for words in (NAMES, WORDS, QUALITIES)] == [32, 64, 32]
    assert not any(y.startswith(x) for x, y in pairwise(sorted(NAMES)))


def test_different_values_differ():
    draws = Draws(3)
    assert sorted(distinct(lambda: draws.below(10), 10)) == list(range(10))
