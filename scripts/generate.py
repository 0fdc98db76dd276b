"""Generate the tables of README.md and docs/: whatever is between markers with a name in TABLES.

python scripts/generate.py           # or: make generate
python scripts/generate.py --check   # exit with status 1 if a page is stale; write nothing
"""

import argparse
import csv
import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from pydantic import BaseModel
from pydantic.fields import FieldInfo

# This repository's package and scripts, whichever are installed: the pages describe them.
sys.path.insert(0, str(Path(__file__).parents[1]))

from results.tables import (
    apart_table,
    hybrid_table,
    longer_table,
    position_table,
    reference_table,
    retrieval_table,
    smollm2_in_short,
    smollm2_published,
    smollm2_trained,
    table,
    ways_table,
)
from results.ways import COPYING, SMOLLM2
from rope_jax.attention.backends import softmax_names
from rope_jax.checkpoints.gguf.architectures import ARCHITECTURES
from rope_jax.config.schema import models_in
from rope_jax.console import signed_text
from rope_jax.devices.chips import CHIPS
from rope_jax.positions.encodings import ENCODINGS, Encoding, Sizes
from rope_jax.positions.maps import MAPS
from rope_jax.report.measured import effective_text
from rope_jax.rope import QUERY_SCALES, STRATEGIES, RotaryGeometry
from rope_jax.rope.hf import HF_FORMS
from rope_jax.rope.pairs import turns, wavelengths
from scripts.aot import result_table
from scripts.decay import decay_scores, first_negative_distance, mean_and_peak_by_octave
from scripts.plot_rope import BASES, KNOWN_MODELS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Rows of the sweeps that the pages show, and of the comparisons of several runs.
DEMO = ROOT / "docs/figures/demo.csv"
PROTOCOLS = ROOT / "docs/figures/protocols.csv"
TASKS = ROOT / "results/tasks"
FAMILIES = ROOT / "docs/families.csv"
MARKED = re.compile(r"(<!-- ([\w ]+): .*? -->\n).*?(<!-- /\2 -->\n)", re.DOTALL)


def about(model: type[BaseModel]) -> str:
    """Return the first line of a class's docstring."""
    return (model.__doc__ or "").splitlines()[0]


def scalings_table() -> str:
    """Return a table of strategies: type, what it does, when it follows the length, source."""
    return table(
        ("`type`", "what it does", "follows the length", "source"),
        (
            (f"`{name}`", about(strategy), strategy.follows_length, strategy.source)
            for name, strategy in STRATEGIES.items()
        ),
    )


def scaling_settings_table() -> str:
    """Return a table of each strategy's settings and its name in Hugging Face's config."""
    rows = []
    for name, strategy in STRATEGIES.items():
        keys = [f"`{key}`" for key in strategy.model_fields if key not in ("type", "query_scale")]
        rows.append((f"`{name}`", ", ".join(keys), HF_FORMS[name] or "–"))
    return table(("`type`", "settings", "in Hugging Face's config"), rows)


def query_scales_table() -> str:
    """Return a table of query scales: type, formula and source."""
    return table(
        ("`type`", "factor on a query at position p", "source"),
        ((f"`{name}`", about(scale), scale.source) for name, scale in QUERY_SCALES.items()),
    )


def maps_table() -> str:
    """Return a table of position maps: type, r(i, j), settings with their defaults, source."""
    rows = []
    for name, map_ in MAPS.items():
        written = f"(numbers that `{map_.written_by}` finds)" if map_.written_by else ""
        rows.append((f"`{name}`", map_.relative, written or _defaults(map_), map_.source))
    return table(("`type`", "r(i, j)", "settings and their defaults", "source"), rows)


def _defaults(model: type[BaseModel]) -> str:
    """List a model's settings with their defaults, such as "`sinks` 4, `recent` auto: L − 1"."""
    listed = []
    for key, field in model.model_fields.items():
        _, has_auto, auto = (field.description or "").partition("auto: ")
        if key != "type":
            listed.append(f"`{key}` {_default(field)}{has_auto and f': {auto}'}")
    return ", ".join(listed)


def _default(field: FieldInfo) -> str:
    """Return a setting's default in words."""
    if field.is_required():
        return "(a scaling)" if models_in(field.annotation) else "(required)"
    default = field.get_default()
    if type(default) is float:
        return f"{default:g}"
    return "null" if default is None else "none" if default == () else str(default)


def settings_table(models: Mapping[str, type[BaseModel]]) -> str:
    """Return a table with one row per setting of each model: default and meaning."""
    rows = [
        (f"`{name}`", f"`{key}`", _default(field), field.description or "")
        for name, model in models.items()
        for key, field in model.model_fields.items()
        if key != "type"
    ]
    return table(("`type`", "setting", "default", "meaning"), rows)


def encodings_table() -> str:
    """Return a table of encodings: type, what it does, attention backends, source."""
    names, rows = ", ".join(f"`{name}`" for name in softmax_names()), []
    for name, encoding in ENCODINGS.items():
        backends = names if encoding.model_validate({}).needs_interaction else "all"
        rows.append((f"`{name}`", about(encoding), backends, encoding.source))
    return table(("`type`", "what it does", "`model.attention`", "source"), rows)


def encoding_properties_table() -> str:
    """Return a table of what each encoding trains, what applies to it, and its longest text."""
    rows = []
    for name, encoding in ENCODINGS.items():
        resolved = encoding.model_validate({}).resolved(128)
        applies = ("yes" if it else "no" for it in (encoding.is_rotary, encoding.takes_maps))
        longest = "any" if resolved.longest is None else "`length`"
        rows.append((f"`{name}`", _parameters(resolved), *applies, longest))
    headings = ("`type`", "trained parameters", "scalings apply", "maps apply", "longest text")
    return table(headings, rows)


def _parameters(encoding: Encoding) -> str:
    """Name an encoding's parameters, and say whether the layers share them."""
    layers = 7
    shapes = encoding.parameter_shapes(Sizes(layers, 128, 4, 32, 0.02))
    owners = {1: "shared by all layers", layers: "one per layer"}
    parts = [
        ", ".join(f"`{name}`" for name, shape in shapes.items() if shape[0] == axis) + f": {owner}"
        for axis, owner in owners.items()
        if axis in {shape[0] for shape in shapes.values()}
    ]
    return "; ".join(parts) or "none"


def families_table() -> str:
    """Return a table of families of checkpoints, with the worst difference from transformers.

    It also has llama.cpp's names of the architectures whose files are read as the family.
    """
    stored: dict[str, list[str]] = {}
    for name, architecture in ARCHITECTURES.items():
        for variant in (architecture, *architecture.variants.values()):
            stored.setdefault(variant.model_type, []).append(f"`{name}`")
    with FAMILIES.open(newline="", encoding="utf-8") as file:
        rows = [
            (
                f"`{row['model_type']}`",
                row["models"],
                row["decoder"],
                _power_of_ten(float(row["worst"])),
                "; ".join(filter(None, (row["refused"], row["not_exported"]))) or "–",
                ", ".join(stored.get(row["model_type"], ["–"])),
            )
            for row in csv.DictReader(file)
        ]
    headings = ("model_type", "models", "what the decoder does for it", "worst", "refused", "GGUF")
    return table(headings, rows)


def _power_of_ten(value: float) -> str:
    """Return 5.2e-05 as 5.2·10⁻⁵, which no browser breaks."""
    digits, _, exponent = f"{value:.1e}".partition("e")
    return f"{digits}·10" + str(int(exponent)).translate(
        str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    )


def chips_table() -> str:
    """Return a table of the chips that programs are planned for."""
    return table(
        ("`target`", "memory, GiB", "TFLOP/s, bfloat16"),
        (
            (f"`{name}`", f"{chip.memory / 2**30:.2f}", f"{chip.flops / 1e12:,g}")
            for name, chip in CHIPS.items()
        ),
    )


def demo_table() -> str:
    """Return a table of perplexities on the same tokens, by curve and length."""

    def cell(row: Mapping[str, str]) -> str:
        half = (math.exp(float(row["ci_high"])) - math.exp(float(row["ci_low"]))) / 2
        return f"{float(row['ppl']):.2f} ± {half:.2f}"

    return _by_length(_rows(DEMO, "same_tokens"), "name", cell)


def above_truncation_table(comparison: str, key: str) -> str:
    """Return a table of losses at the window, and of how far each curve lies above them beyond.

    comparison: a folder of results/. key: the column that names a curve, such as
    "encoding-alibi (3 seeds)", of which "alibi" is shown.
    """

    def cell(row: Mapping[str, str]) -> str:
        if row["length"] == row["window"]:
            return f"{float(row['nll']):.3f} ± {_half(row, 'ci'):.3f}"
        return f"{signed_text(-float(row['gain']))} ± {_half(row, 'gain'):.3f}"

    rows = _rows(ROOT / "results" / comparison / "comparison.csv", "same_tokens")
    rows = [row for row in rows if int(row["length"]) >= int(row["window"])]
    for row in rows:
        row[key] = row[key].partition(" (")[0].removeprefix("encoding-")
    return _by_length(rows, key, cell)


def _half(row: Mapping[str, str], interval: str) -> float:
    return (float(row[f"{interval}_high"]) - float(row[f"{interval}_low"])) / 2


def _rows(path: Path, protocol: str) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["protocol"] == protocol]


def _by_length(
    rows: Sequence[Mapping[str, str]], key: str, cell: Callable[[Mapping[str, str]], str]
) -> str:
    lengths = sorted({int(row["length"]) for row in rows})
    shown = []
    for name in dict.fromkeys(row[key] for row in rows):
        cells = {int(row["length"]): cell(row) for row in rows if row[key] == name}
        shown.append((name, *(cells.get(length, "") for length in lengths)))
    return table(("", *(f"{length:,}" for length in lengths)), shown)


def protocols_table() -> str:
    """Return a table of perplexities by scaling and protocol, at 2 and 8 times the window."""
    with PROTOCOLS.open(newline="", encoding="utf-8") as file:
        ppl = {(r["name"], r["protocol"], int(r["length"])): r["ppl"] for r in csv.DictReader(file)}
    protocols = list(dict.fromkeys(protocol for _, protocol, _ in ppl))
    rows = [
        (
            name,
            *(" → ".join(f"{float(ppl[name, p, n]):.2f}" for n in (256, 1024)) for p in protocols),
        )
        for name in dict.fromkeys(name for name, _, _ in ppl)
    ]
    return table(("", *(f"`{protocol}`" for protocol in protocols)), rows)


def tasks_table() -> str:
    """Return a table of perplexity, its rise over the window, and passkeys found, by scaling."""
    losses = {
        (row["name"], int(row["length"])): row
        for row in _rows(TASKS / "results.csv", "same_tokens")
    }
    summary = json.loads((TASKS / "summary.json").read_text(encoding="utf-8"))
    window = summary["window"]
    beyond = sorted({length for _, length in losses if length >= window})
    rows = []
    for name, curve in summary["tasks"]["passkey"].items():
        effective = effective_text(
            curve["effective_length"],
            curve["effective_length_at_least"],
            curve["effective_length_at_most"],
            curve["effective_length_is_last_tested"],
        )
        shares = [f"{100 * curve['exact'][str(n)]['value']:.0f}%" for n in beyond]
        rise = float(losses[name, beyond[-1]]["nll"]) - summary["nll_at_window"]
        usable = summary["curves"][name]
        length = usable["usable_length"]
        at_least = "≥ " * usable["usable_length_is_last_tested"]
        shown = f"{at_least}{length:,}" if length else "none"
        rows.append((name, signed_text(rise, 2), shown, *shares, effective))
    headings = (f"nats above truncation at {beyond[-1]:,}", "usable length")
    passkeys = (f"passkeys found at {beyond[0]:,}", *(f"{n:,}" for n in beyond[1:]))
    return table(("", *headings, *passkeys, "effective length"), rows)


def decay_table() -> str:
    """Return a table of the score of equal queries and keys at near and far distances, by base."""
    rows = []
    for base in BASES:
        scores = decay_scores(RotaryGeometry(64, base).inv_freq(), np.arange(2048))
        means, peaks = mean_and_peak_by_octave(scores)
        falls = ("–", "–")
        if base >= 500:
            falls = f"{(means[2] - means[7]) / 5:.2f}", f"{8 * math.log(2) / math.log(base):.2f}"
        numbers = f"{means[2]:.2f}", f"{means[7]:.2f}", *falls, f"{peaks[-1]:.2f}"
        rows.append((f"{base:,.0f}", *(number.replace("-0.", "−0.") for number in numbers)))
    falls = ("fall per octave", "√d·ln 2/ln b")
    headings = ("base (d 64)", "mean score, Δ 4–7", "Δ 128–255", *falls)
    return table((*headings, "largest \\|score\\|, Δ 1,024–2,047"), rows)


def bases_table() -> str:
    """Return a table of the longest wavelengths of published models."""
    rows = []
    for model in KNOWN_MODELS:
        theta, window = model.geometry.inv_freq(), model.window
        longest = wavelengths(theta)[-1]
        rows.append(
            (
                *(model.name, f"{model.dim}", f"{model.base:,.0f}", f"{window:,}"),
                *(f"{longest:,.0f}", f"{longest / window:.3g}"),
                f"{first_negative_distance(theta, 2**18):,}",
            )
        )
    return table(("model", "d", "base", "window L", "λ_max", "λ_max / L", "sum < 0 from Δ ="), rows)


def circles_table() -> str:
    """Return a table of the pairs of published models that turn once within the window."""
    rows = []
    for model in KNOWN_MODELS:
        circles = turns(model.geometry.inv_freq(), model.window)
        share = math.log(model.window / 2 / math.pi) / math.log(model.base)
        slowest = float(f"{circles[-1]:.2g}")
        digits = f"{slowest:.4f}" if slowest < 0.01 else f"{slowest:.3f}"
        whole = f"{(circles >= 1).sum()} of {circles.size}"
        rows.append((model.name, f"{share:.2f}", whole, digits))
    headings = ("ln(L/2π)/ln b", "pairs with a full circle", "slowest pair, turns in L")
    return table(("model", *headings), rows)


def precision_table() -> str:
    """Return a table of the error of cos by the dtype of frequencies and angles.

    That of `cos_sin` is the bound that its tests hold.
    """
    theta = RotaryGeometry(64, 1e4, 4096).inv_freq()
    rows = []
    in_float32 = theta.astype(np.float32)
    for bound, name in ((4096, "4,096"), (131_072, "131,072"), (10**6, "10^6"), (10**7, "10^7")):
        positions = np.arange(bound + 1)
        if bound > 131_072:
            positions = np.random.default_rng(0).integers(0, bound + 1, 2**16)
        product = positions[:, None].astype(np.float32) * in_float32
        errors = (
            np.abs(np.cos(np.float64(angles)) - np.cos(positions[:, None] * theta)).max()
            for angles in (positions[:, None] * np.float64(in_float32), product)
        )
        texts = (f"{e:.2f}" if e >= 0.05 else f"{e:.1e}".replace("e-0", "e-") for e in errors)
        rows.append((name, *texts, "3e-7"))
    columns = ("float32 frequency, exact product", "float32 frequency and product", "`cos_sin`")
    return table(("positions up to", *columns), rows)


# By the name in the markers around it, `<!-- name: … -->` and `<!-- /name -->`.
TABLES: dict[str, Callable[[], str]] = {
    "bases": bases_table,
    "chips": chips_table,
    "circles": circles_table,
    "copying": lambda: ways_table(COPYING, COPYING.measured()),
    "decay": decay_table,
    "demo": demo_table,
    "encoding results": lambda: above_truncation_table("encodings", "group"),
    "encoding settings": lambda: settings_table(ENCODINGS),
    "encodings": encoding_properties_table,
    "every way": reference_table,
    "families": families_table,
    "gpu": lambda: result_table("gpu"),
    "map results": lambda: above_truncation_table("maps", "name"),
    "maps": lambda: settings_table(MAPS),
    "hybrid": hybrid_table,
    "over results": lambda: above_truncation_table("over", "name"),
    "position encodings": encodings_table,
    "position maps": maps_table,
    "precision": precision_table,
    "protocols": protocols_table,
    "query scales": query_scales_table,
    "scaling results": lambda: above_truncation_table("scalings", "name"),
    "scalings": scalings_table,
    "smollm2": lambda: ways_table(SMOLLM2, smollm2_published()),
    "smollm2 apart": apart_table,
    "gemma": lambda: longer_table(65536, 32768, novels="gemma.csv"),
    "smollm2 in 20 steps": lambda: longer_table(12288, novels="texts/novels.csv"),
    "smollm2 on other texts": lambda: longer_table(
        12288, manuals="texts/manuals.csv", programs="texts/programs.csv"
    ),
    "smollm2 at twice its window": lambda: longer_table(16384, novels="twice/*.csv"),
    "smollm2 by position": position_table,
    "smollm2 in short": smollm2_in_short,
    "smollm2 tasks": retrieval_table,
    "smollm2 trained further": lambda: ways_table(SMOLLM2, smollm2_trained()),
    "settings": scaling_settings_table,
    "tasks": tasks_table,
    "tpu": lambda: result_table("tpu"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only report stale pages")
    check = parser.parse_args().check
    is_stale = False
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        written = MARKED.sub(lambda match: match[1] + TABLES[match[2]]() + match[3], text)
        if written != text:
            is_stale = True
            name = page.relative_to(ROOT)
            print(f"{name}: stale; run `make generate`" if check else f"{name}: written")
            if not check:
                page.write_text(written, encoding="utf-8")
    return 1 if check and is_stale else 0


if __name__ == "__main__":
    sys.exit(main())
