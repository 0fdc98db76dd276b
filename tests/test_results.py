"""What README.md and docs/ say about results/ is what the numbers there show, seed by seed."""

import csv
import json
from pathlib import Path

import numpy as np

from rope_jax.comparison.groups import without_seed

ROOT = Path(__file__).parents[1]
README, POSITIONS, EXTENSION = (
    " ".join((ROOT / page).read_text(encoding="utf-8").split())
    for page in ("README.md", "docs/positions.md", "docs/extension.md")
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


def test_the_page_of_positions_has_the_figures_of_the_results():
    near, far = (MAPS["rerope-logn", length] for length in (512, 2048))
    assert f"{listed(near)} nats at 4 times the window, less than every other" in POSITIONS
    assert f"and {listed(far)} at 16 times" in POSITIONS
    assert f"`kerple`, has {listed(ENCODINGS['kerple', 2048])}." in POSITIONS
    others = {name for name, _ in ENCODINGS} - {"sinusoidal", "rope", "linear", "learned"}
    for name in others:
        assert (near < ENCODINGS[name, 512]).all()
        assert (ENCODINGS["kerple", 2048] <= ENCODINGS[name, 2048]).all()


def reference_losses():
    """Return the NLL of each seed in results/reference by run, curve, protocol and length."""
    found = {}
    with (ROOT / "results/reference/comparison.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            (run,) = {without_seed(name) for name in row["runs"].split()}
            key = (run, row["name"], row["protocol"], int(row["length"]))
            found[key] = np.array(row["nll_by_seed"].split(), float)
    return found


REFERENCE = reference_losses()


def beyond_truncation(run, name, length):
    """Return each seed's loss above the demo's own at 128 tokens."""
    base = REFERENCE["demo", "trained", "same_tokens", 128]
    return REFERENCE[run, name, "same_tokens", length] - base


def with_interval(run, name, length):
    """Return how far a mean is from truncation, as "0.0029 ± 0.0027"."""
    with (ROOT / "results/reference/comparison.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            (stem,) = {without_seed(one) for one in row["runs"].split()}
            place = (stem, row["name"], row["protocol"], int(row["length"]))
            if place == (run, name, "same_tokens", length):
                value, low, high = (
                    float(row["above_truncation" + end]) for end in ("", "_low", "_high")
                )
                return f"{abs(value):.4f} ± {(high - low) / 2:.4f}"
    raise KeyError((run, name, length))


def test_the_page_on_extension_has_the_figures_of_the_reference():
    def at(run, name, length, digits=2):
        return f"{abs(beyond_truncation(run, name, length).mean()):.{digits}f}"

    yarn, more = "extend-yarn-x4-120", "extend-none-x1-120"
    for said in (
        f"at 512 tokens by {with_interval('demo', 'far-x4', 256)} nats at 256",
        f"and by {with_interval('demo', 'far-x4', 512)} at 512",
        f"it stands {at('demo', 'far-all', 2048, 3)} above truncation at 16 times the window "
        f"instead of {at('demo', 'far-x4', 2048, 3)}",
        f"stands {at(yarn, 'trained', 1024)} above truncation at 1,024",
        f"end {at(yarn, 'trained', 512, 3)} below the demo's truncation",
        f"at 128 end {at(more, 'trained', 128, 3)} below it",
        f"After 500 steps it is {at('extend-long-yarn-x4-500', 'trained', 512, 3)} and "
        f"{at('extend-long-none-x1-500', 'trained', 128, 3)}.",
        f"do not suffice: {at('extend-none-x4-120', 'trained', 512, 3)} above truncation",
        f"it ends {at('ceiling-x4', 'trained', 512)} above truncation",
    ):
        assert said in EXTENSION, said
    assert at("ceiling-x4", "trained", 512) == at("ceiling-x4", "trained", 128)
    sliding = [
        REFERENCE["demo", name, "sliding", 512].mean()
        for name in ("yarn-auto", "rerope-logn", "far-x4")
    ]
    truncated = REFERENCE["demo", "trained", "sliding", 128].mean()
    first, second, third = (f"{loss:.3f}" for loss in sliding)
    assert f"the same: {first}, {second} and {third} nats at 512 tokens" in EXTENSION
    assert f"and {truncated:.3f} for windows of 128 tokens" in EXTENSION


def test_the_page_on_extension_has_the_figures_of_more_texts():
    with (ROOT / "results/reference/wide.csv").open(newline="", encoding="utf-8") as file:
        rows = {(row["name"], row["length"]): row for row in csv.DictReader(file)}

    def gain(length):
        row = rows["far-x4", length]
        value, low, high = (float(row["gain" + end]) for end in ("", "_low", "_high"))
        return f"{value:.4f} ± {(high - low) / 2:.4f}"

    assert f"it is {gain('512')} at 512 tokens" in EXTENSION
    assert f"the loss falls too, by {gain('128')}" in EXTENSION
    fit, base = rows["far-x4", "512"], rows["trained", "128"]
    assert f"{int(fit['tokens']):,} tokens of {fit['documents']} documents" in EXTENSION
    seeds = [np.array(row["nll_by_seed"].split(), float) for row in (fit, base)]
    assert (seeds[0] < seeds[1]).all()
    for seed in range(3):
        path = ROOT / f"results/reference/wide-s{seed}.csv"
        (low,) = (
            float(row["gain_low"])
            for row in csv.DictReader(path.read_text().splitlines())
            if (row["name"], row["length"]) == ("far-x4", "512")
        )
        assert low > 0
    assert float(fit["gain_low"]) < 0


def test_the_page_on_tasks_says_what_the_passkeys_show():
    page = " ".join((ROOT / "docs/tasks.md").read_text(encoding="utf-8").split())
    tasks = json.loads((ROOT / "results/tasks/summary.json").read_text(encoding="utf-8"))
    found = {
        (name, int(n)): share["value"]
        for name, curve in tasks["tasks"]["passkey"].items()
        for n, share in curve["exact"].items()
    }
    leaky, fitted = (
        [f"{100 * found[name, n]:.0f}%" for n in (512, 2048)]
        for name in ("leaky_rerope-logn", "fitted")
    )
    assert f"finds {leaky[0]} at four times the window and {leaky[1]} at 16 times" in page
    assert f"finds {fitted[0]} at 512 bytes, its fit's length, and {fitted[1]} at 2,048" in page
