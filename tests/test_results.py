"""What README.md and docs/ say about results/ is what the numbers there show, seed by seed."""

import csv
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
README, POSITIONS, SCALINGS = (
    " ".join((ROOT / page).read_text(encoding="utf-8").split())
    for page in ("README.md", "docs/positions.md", "docs/scalings.md")
)


def losses(path, key):
    """Return the NLL of each seed by name and length; also of a results.csv, with one seed."""
    found = {}
    with (ROOT / path).open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            name = row[key].partition(" (")[0].removeprefix("encoding-")
            seeds = row.get("nll_by_seed") or row["nll"]
            found[name, int(row["length"])] = np.array(seeds.split(), float)
    return found


MAPS = losses("results/maps/comparison.csv", "name")
ENCODINGS = losses("results/encodings/comparison.csv", "group")
SCALED = losses("results/scalings/comparison.csv", "name")
BEYOND = (256, 512, 1024, 2048)


def above(found, name, length):
    return found[name, length] - found["trained", 128]


def listed(numbers):
    """Return three numbers as a sentence names them."""
    first, second, third = (f"{number:.2f}" for number in numbers)
    return f"{first}, {second} and {third}"


def test_the_readme_says_how_far_maps_are_above_truncation():
    demo = losses("docs/figures/demo.csv", "name")
    names = ("rerope-logn", "leaky_rerope-logn", "yarn-auto")
    rerope, leaky, yarn = (
        listed(above(demo, name, n)[0] for n in (512, 1024, 2048)) for name in names
    )
    assert f"they stay {rerope} (leaky: {leaky}) nats above truncation" in README
    assert f"YaRN stands {yarn}. " in README
    with (ROOT / "results/maps/comparison.csv").open(newline="") as file:
        rows = {row["name"]: row for row in csv.DictReader(file) if row["length"] == "2048"}
    means = []
    for name in names[:2]:
        gain, low, high = (float(rows[name][key]) for key in ("gain", "gain_low", "gain_high"))
        means.append(f"{-gain:.2f} ± {(high - low) / 2:.2f}")
    assert f"Over three seeds it is {means[0]} and {means[1]} at 16 times" in README


def test_maps_on_the_page_of_positions():
    with_logn = ("rerope-logn", "leaky_rerope-logn", "self_extend-logn")
    before_yarn = (*with_logn, "leaky_rerope", "dual_chunk", "streaming", "lm_infinite")
    for length in BEYOND:
        for name in ("streaming", "lm_infinite"):
            assert np.abs(above(MAPS, name, length)).max() <= 0.005
        for name in before_yarn:
            assert (MAPS[name, length] < MAPS["yarn-auto", length]).all()
    for name in with_logn:
        assert above(MAPS, name, 512).max() <= 0.03
        assert above(MAPS, name, 2048).max() <= 0.08
    leaky, without = (above(MAPS, name, 2048) for name in ("leaky_rerope-logn", "leaky_rerope"))
    assert without.mean() > 4 * leaky.mean()
    assert (MAPS["leaky_rerope", 512] < MAPS["dual_chunk", 512]).all()
    assert (MAPS["leaky_rerope", 2048] > MAPS["dual_chunk", 2048]).all()


def test_encodings_on_the_page_of_positions():
    best = ("rope", "xpos", "pope", "shaw")
    ordered = ("kerple", "fire", "alibi", "learned", "t5", "sinusoidal", "none")
    inside = [ENCODINGS[name, 128] for name in ordered]
    assert (np.max([ENCODINGS[name, 128] for name in best], axis=0) < inside[0]).all()
    assert (np.diff(inside, axis=0) > 0).all()

    def rise(name, length):
        return ENCODINGS[name, length] - ENCODINGS[name, 128]

    for name in ("alibi", "kerple"):
        assert rise(name, 2048).max() <= 0.035
    assert rise("shaw", 2048).min() >= 0.13
    assert rise("shaw", 2048).max() <= 0.18
    others = {name for name, _ in ENCODINGS} - {"sinusoidal", "rope", "linear", "learned"}
    for length in BEYOND:
        assert (rise("sinusoidal", length) > rise("rope", length)).all()
        for name in others:
            assert (rise("rope", length) > rise(name, length)).all()
        largest = [rise(name, length) for name in (*others, "rope", "linear")]
        assert (rise("sinusoidal", length) > np.max(largest, axis=0)).all()
    near, far = (MAPS["rerope-logn", length] for length in (512, 2048))
    assert f"{listed(near)} nats at 4 times the window, less than every other" in POSITIONS
    assert f"and {listed(far)} at 16 times" in POSITIONS
    assert f"`kerple`, has {listed(ENCODINGS['kerple', 2048])}." in POSITIONS
    for name in others:
        assert (near < ENCODINGS[name, 512]).all()
        assert (ENCODINGS["kerple", 2048] <= ENCODINGS[name, 2048]).all()


@pytest.mark.parametrize("length", [256, 512, 1024])
def test_scalings_on_their_page(length):
    by_pair = ("yarn-8-0.5", "yarn-paper", "dynamic_yarn", "ntk_by_parts-auto", "llama3-auto")
    by_pair += ("resonance-yarn-auto", "bucketed-yarn-1-2-4-8")
    alike = ("pi-auto", "ntk-auto", "dynamic_ntk", "mixed_base-auto")
    worst = np.max([SCALED[name, length] for name in by_pair], axis=0)
    assert (worst < np.min([SCALED[name, length] for name in alike], axis=0)).all()
    assert (SCALED["ntk-logn", length] < SCALED["ntk-auto", length]).all()
    for name in ("cope", "cope-hard"):
        assert np.abs(SCALED[name, length] - SCALED["trained", length]).max() < 0.011
        assert "changes less than 0.011 nats" in SCALINGS
