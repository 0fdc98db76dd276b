"""Generate the JSON schemas, docs/api.md, and tables in README.md and docs/.

python scripts/generate.py           # or: make generate
python scripts/generate.py --check   # exit with status 1 if a file is stale; write nothing
"""

import argparse
import csv
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

# This repository's package and scripts, whichever are installed: the files below describe them.
sys.path.insert(0, str(Path(__file__).parents[1]))

from rope_jax.attention import backend_names
from rope_jax.config.fit import FitConfig
from rope_jax.config.grid import GridConfig
from rope_jax.config.keys import models_in
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config
from rope_jax.devices.targets import CHIPS
from rope_jax.positions.encodings import ENCODINGS, Encoding, Sizes
from rope_jax.positions.maps import MAPS
from rope_jax.report.text import effective_text
from rope_jax.rope import QUERY_SCALES, STRATEGIES
from rope_jax.rope.hf import HF_FORMS
from scripts.aot import RESULTS as AOT_RESULTS
from scripts.aot import read_results, result_table
from scripts.api_page import api_page
from scripts.plot_reference import LENGTHS, STYLES, Above, Cost, measured_ways, read_cost

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
SCALINGS = ROOT / "docs/scalings.md"
POSITIONS = ROOT / "docs/positions.md"
EXTENSION = ROOT / "docs/extension.md"
ACCELERATORS = ROOT / "docs/accelerators.md"
# The results.csv of the sweeps in the README.
DEMO = ROOT / "docs/figures/demo.csv"
PROTOCOLS = ROOT / "docs/figures/protocols.csv"
TASKS_FOLDER = ROOT / "results/tasks"
# The comparisons in docs/positions.md and docs/scalings.md.
SCALING_RESULTS = ROOT / "results/scalings/comparison.csv"
MAP_RESULTS = ROOT / "results/maps/comparison.csv"
ENCODING_RESULTS = ROOT / "results/encodings/comparison.csv"


def json_schema(model: type[BaseModel]) -> str:
    """Return the JSON schema that lets an editor complete and check the YAML."""
    return json.dumps(model.model_json_schema(), indent=1, ensure_ascii=False) + "\n"


def scalings_table() -> str:
    """Return a table of strategies: type, what it does, when it follows the length, source."""
    lines = ["| `type` | what it does | follows the length | source |", "|---|---|---|---|"]
    for name, strategy in STRATEGIES.items():
        about = (strategy.__doc__ or "").splitlines()[0]
        lines.append(f"| `{name}` | {about} | {strategy.follows_length} | {strategy.source} |")
    return "\n".join(lines) + "\n"


def settings_table() -> str:
    """Return a table of each strategy's settings and its name in Hugging Face's config."""
    lines = ["| `type` | settings | in Hugging Face's config |", "|---|---|---|"]
    for name, strategy in STRATEGIES.items():
        own = [field for field in strategy.model_fields if field not in ("type", "query_scale")]
        settings = ", ".join(f"`{field}`" for field in own)
        lines.append(f"| `{name}` | {settings} | {HF_FORMS[name] or '–'} |")
    return "\n".join(lines) + "\n"


def query_scales_table() -> str:
    """Return a table of query scales: type, formula and source."""
    lines = ["| `type` | factor on a query at position p | source |", "|---|---|---|"]
    for name, scale in QUERY_SCALES.items():
        about = (scale.__doc__ or "").splitlines()[0]
        lines.append(f"| `{name}` | {about} | {scale.source} |")
    return "\n".join(lines) + "\n"


def maps_table() -> str:
    """Return a table of position maps: type, r(i, j), settings with their defaults, source."""
    rows = []
    for name, map_ in MAPS.items():
        written = f"(numbers that `{map_.written_by}` finds)" if map_.written_by else ""
        rows.append((f"`{name}`", map_.relative, written or _defaults(map_), map_.source))
    return _table(("`type`", "r(i, j)", "settings and their defaults", "source"), rows)


def map_settings_table() -> str:
    """Return a table of the settings of every position map: default and meaning."""
    return _settings(MAPS)


def encodings_table() -> str:
    """Return a table of encodings: type, what it does, attention backends, source."""
    rows = []
    for name, encoding in ENCODINGS.items():
        about = (encoding.__doc__ or "").splitlines()[0]
        names = backend_names(interacts=True)
        backends = ", ".join(f"`{name}`" for name in names) if encoding.needs_interaction else "all"
        rows.append((f"`{name}`", about, backends, encoding.source))
    return _table(("`type`", "what it does", "`model.attention`", "source"), rows)


def encoding_settings_table() -> str:
    """Return a table of the settings of every encoding: default and meaning."""
    return _settings(ENCODINGS)


def encoding_properties_table() -> str:
    """Return a table of what each encoding trains, what applies to it, and its longest text."""
    rows = []
    for name, encoding in ENCODINGS.items():
        fitted = encoding.model_validate({}).fitted(128)
        rows.append(
            (
                f"`{name}`",
                _parameters(fitted),
                "yes" if encoding.is_rotary else "no",
                "yes" if encoding.takes_maps else "no",
                "any" if fitted.longest is None else "`length`",
            )
        )
    headings = ("`type`", "trained parameters", "scalings apply", "maps apply", "longest text")
    return _table(headings, rows)


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


def _settings(models: Mapping[str, type[BaseModel]]) -> str:
    """Return a table with one row per setting of each model."""
    rows = [
        (f"`{name}`", f"`{key}`", _default(field), field.description or "")
        for name, model in models.items()
        for key, field in model.model_fields.items()
        if key != "type"
    ]
    return _table(("`type`", "setting", "default", "meaning"), rows)


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


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; a vertical bar in a cell is not a border."""
    lines = ["| " + " | ".join(headings) + " |", "|---" * len(headings) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def demo_table() -> str:
    """Return a table of perplexities on the same tokens, by curve and length."""

    def cell(row: Mapping[str, str]) -> str:
        half = (math.exp(float(row["ci_high"])) - math.exp(float(row["ci_low"]))) / 2
        return f"{float(row['ppl']):.2f} ± {half:.2f}"

    return _by_length(_same_tokens(DEMO), "name", cell)


def above_truncation_table(path: Path, key: str) -> str:
    """Return a table of losses at the window, and of how far each curve lies above them beyond.

    path: the comparison.csv of several runs. key: the column that names a curve, such as
    "encoding-alibi (3 seeds)", of which "alibi" is shown.
    """

    def cell(row: Mapping[str, str]) -> str:
        if row["length"] == row["window"]:
            half = (float(row["ci_high"]) - float(row["ci_low"])) / 2
            return f"{float(row['nll']):.3f} ± {half:.3f}"
        half = (float(row["gain_high"]) - float(row["gain_low"])) / 2
        return f"{-float(row['gain']):+.3f} ± {half:.3f}"

    rows = [row for row in _same_tokens(path) if int(row["length"]) >= int(row["window"])]
    for row in rows:
        row[key] = row[key].partition(" (")[0].removeprefix("encoding-")
    return _by_length(rows, key, cell)


def reference_table(*, all_ways: bool) -> str:
    """Return a table of what each way of extending the demo gives, and of what it takes.

    all_ways: those that the figure leaves out as well.
    """
    rows = []
    for way, losses in measured_ways():
        if not all_ways and (way.run, way.curve) not in STYLES:
            continue
        cells = [_above(losses[length]) if length in losses else "" for length in LENGTHS]
        rows.append((way.kind, way.name, *_cost(read_cost(way)), *cells))
    headings = ("", "", "numbers", "tokens", "seconds", *(f"{n:,}" for n in LENGTHS))
    return _table(headings, rows)


def _above(above: Above) -> str:
    """Return a difference with half of its interval; bold if all of it lies below truncation."""
    text = f"{above.value:+.4f} ± {(above.high - above.low) / 2:.4f}"
    return f"**{text}**" if above.high < 0 else text


def _cost(cost: Cost | None) -> tuple[str, str, str]:
    """Return numbers, tokens and seconds as text."""
    if cost is None:
        return "0", "0", "0"
    return f"{cost.numbers:,}", f"{cost.tokens:,}", f"{cost.seconds:,.0f}"


def _same_tokens(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["protocol"] == "same_tokens"]


def _by_length(
    rows: Sequence[Mapping[str, str]], key: str, cell: Callable[[Mapping[str, str]], str]
) -> str:
    lengths = sorted({int(row["length"]) for row in rows})
    table = []
    for name in dict.fromkeys(row[key] for row in rows):
        cells = {int(row["length"]): cell(row) for row in rows if row[key] == name}
        table.append((name, *(cells.get(length, "") for length in lengths)))
    return _table(("", *(f"{length:,}" for length in lengths)), table)


def protocols_table() -> str:
    """Return a table of perplexities by scaling and protocol, at 2 and 8 times the window."""
    with PROTOCOLS.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    protocols = list(dict.fromkeys(row["protocol"] for row in rows))
    lengths = 256, 1024
    found = {(r["name"], r["protocol"], int(r["length"])): float(r["ppl"]) for r in rows}
    lines = [
        "| | " + " | ".join(f"`{protocol}`" for protocol in protocols) + " |",
        "|---" * (len(protocols) + 1) + "|",
    ]
    for name in dict.fromkeys(row["name"] for row in rows):
        cells = [" → ".join(f"{found[name, p, n]:.2f}" for n in lengths) for p in protocols]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def tasks_table() -> str:
    """Return a table of perplexity, its rise over the window, and passkeys found, by scaling."""
    same_tokens = _same_tokens(TASKS_FOLDER / "results.csv")
    losses = {(row["name"], int(row["length"])): row for row in same_tokens}
    summary = json.loads((TASKS_FOLDER / "summary.json").read_text(encoding="utf-8"))
    window, found = summary["window"], summary["tasks"]["passkey"]
    lengths = sorted({length for _, length in losses})
    longest = lengths[-1]
    beyond = [length for length in lengths if length >= window]
    rows = []
    for name, curve in found.items():
        effective = effective_text(
            curve["effective_length"],
            curve["effective_length_at_least"],
            curve["effective_length_at_most"],
            curve["effective_length_is_last_tested"],
        )
        shares = [f"{100 * curve['exact'][str(n)]['value']:.0f}%" for n in beyond]
        rise = float(losses[name, longest]["nll"]) - summary["nll_at_window"]
        usable = summary["curves"][name]
        length = usable["usable_length"]
        at_least = "≥ " * usable["usable_length_is_last_tested"]
        shown = f"{at_least}{length:,}" if length else "none"
        rows.append((name, f"{rise:+.2f}", shown, *shares, effective))
    headings = (f"nats above truncation at {longest:,}", "usable length")
    passkeys = (f"passkeys found at {beyond[0]:,}", *(f"{n:,}" for n in beyond[1:]))
    return _table(("", *headings, *passkeys, "effective length"), rows)


def chips_table() -> str:
    """Return a table of the chips that programs are planned for."""
    lines = ["| `target` | memory, GiB | TFLOP/s, bfloat16 |", "|---|---|---|"]
    for name, chip in CHIPS.items():
        lines.append(f"| `{name}` | {chip.memory / 2**30:.2f} | {chip.flops / 1e12:,g} |")
    return "\n".join(lines) + "\n"


def between(text: str, name: str, content: str) -> str:
    """Return `text` with the content between the markers called `name` replaced."""
    pattern = re.compile(rf"(<!-- {name}: .*? -->\n).*?(<!-- /{name} -->\n)", re.DOTALL)
    if not pattern.search(text):
        sys.exit(f"no markers are called {name}")
    return pattern.sub(lambda found: found[1] + content + found[2], text)


def generated() -> dict[Path, str]:
    """Return every generated file with the text it should have."""
    readme = between(README.read_text(encoding="utf-8"), "scalings", scalings_table())
    readme = between(readme, "demo", demo_table())
    readme = between(readme, "protocols", protocols_table())
    readme = between(readme, "tasks", tasks_table())
    readme = between(readme, "reference", reference_table(all_ways=False))
    extension = EXTENSION.read_text(encoding="utf-8")
    extension = between(extension, "reference", reference_table(all_ways=True))
    readme = between(readme, "position maps", maps_table())
    readme = between(readme, "position encodings", encodings_table())
    positions = between(POSITIONS.read_text(encoding="utf-8"), "maps", map_settings_table())
    positions = between(positions, "encodings", encoding_properties_table())
    positions = between(positions, "encoding settings", encoding_settings_table())
    positions = between(positions, "map results", above_truncation_table(MAP_RESULTS, "name"))
    positions = between(
        positions, "encoding results", above_truncation_table(ENCODING_RESULTS, "group")
    )
    scalings = between(SCALINGS.read_text(encoding="utf-8"), "settings", settings_table())
    scalings = between(scalings, "query scales", query_scales_table())
    results = above_truncation_table(SCALING_RESULTS, "name")
    scalings = between(scalings, "scaling results", results)
    found = read_results(AOT_RESULTS)
    accelerators = between(ACCELERATORS.read_text(encoding="utf-8"), "chips", chips_table())
    accelerators = between(accelerators, "tpu", result_table(found, "tpu"))
    accelerators = between(accelerators, "gpu", result_table(found, "gpu"))
    return {
        ACCELERATORS: accelerators,
        SCALINGS: scalings,
        POSITIONS: positions,
        EXTENSION: extension,
        ROOT / "configs/schema/train.json": json_schema(Config),
        ROOT / "configs/schema/sweep.json": json_schema(SweepConfig),
        ROOT / "configs/schema/grid.json": json_schema(GridConfig),
        ROOT / "configs/schema/fit.json": json_schema(FitConfig),
        README: readme,
        ROOT / "docs/api.md": api_page(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="only report stale files")
    check = parser.parse_args().check
    stale = [
        (path, text)
        for path, text in generated().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path, text in stale:
        if not check:
            path.write_text(text, encoding="utf-8")
        name = path.relative_to(ROOT)
        print(f"{name}: stale; run `make generate`" if check else f"{name}: written")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
