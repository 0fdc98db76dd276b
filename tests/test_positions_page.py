"""docs/positions.md: its settings are valid, its numbers are recomputed, and every type is in it.

tests/test_add_a_position_method.py follows its two recipes.
"""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from rope_jax.config.inspection import MapsConfig
from rope_jax.config.load import load
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config
from rope_jax.inspection.maps import shown_maps
from rope_jax.model.layers import LayerInputs, LayerKind, attend
from rope_jax.positions.bands import band_masks, rotations
from rope_jax.positions.encodings import ENCODINGS, RoPE
from rope_jax.positions.mapping import with_map
from rope_jax.positions.maps import MAPS, relative_positions
from rope_jax.rope import RotaryGeometry, RotaryLayers
from rope_jax.rope.strategies import NoScaling
from scripts import show_maps

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/positions.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
ROPE_PAGE = (ROOT / "docs/rope.md").read_text(encoding="utf-8")


def section(heading, text=PAGE):
    """Return the text from a heading to the next one of its level or above."""
    level = heading.partition(" ")[0]
    rest = text.partition(f"\n{heading}\n")[2]
    assert rest, heading
    return re.split(rf"\n#{{1,{len(level)}}} ", rest)[0]


def in_one_line(text):
    return " ".join(text.split())


def test_every_map_is_described_and_in_the_figure():
    paragraphs = section("## The maps").split("\n\n")
    described = [found[1] for p in paragraphs if (found := re.match(r"\n?`(\w+)` ", p))]
    assert described == list(MAPS)
    assert {map_.type for map_ in MapsConfig().maps} == set(MAPS) - {"fitted"}
    (figure,) = re.findall(r"\n    python scripts/show_maps.py\n\n!\[.*?\]\((.*?)\)", PAGE)
    assert (ROOT / "docs" / figure).stat().st_size < 400_000
    assert (MapsConfig().window, MapsConfig().text_length) == (128, 512)


def test_the_figure_of_the_maps_is_the_one_that_the_script_draws(tmp_path):
    """By the last row of every panel, which the script writes to a file of its own."""
    show_maps.main([f"output={tmp_path}/maps.png"])
    drawn = (ROOT / "docs/figures/maps.csv").read_text()
    assert (tmp_path / "maps.csv").read_text() == drawn


def test_every_encoding_is_described():
    text = section("## The encodings")
    assert [name for name in ENCODINGS if f"`{name}`" not in text] == []


def test_links_and_files_exist():
    for folder, text in ((ROOT / "docs", PAGE), (ROOT, README), (ROOT / "docs", ROPE_PAGE)):
        for target, anchor in re.findall(r"\]\(([\w./-]+\.md)(?:#([\w-]+))?\)", text):
            assert (folder / target).exists(), target
            headings = re.findall(r"^#+ (.*)$", (folder / target).read_text(), re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings]
            assert not anchor or anchor in anchors, (target, anchor)
    for path in re.findall(r"`((?:rope_jax|scripts|tests)/[\w/]+(?:\.py|/))`", PAGE + ROPE_PAGE):
        recipe = path.endswith(("grouped.py", "recency.py"))
        assert recipe or (ROOT / path).exists(), path


def test_the_commands_for_windows_are_valid():
    """The stage that the text is about: its length, and its short windows."""
    text = section("## Windows in training")
    commands = re.findall(r"\n    python train.py (.*)", text)
    assert len(commands) == 4
    stages = []
    for words in commands:
        path, *overrides = re.findall(r"'[^']*'|[^\s]+", words)
        config = load(Config, ROOT / path, [word.strip("'") for word in overrides])
        stages.append(config.stages[-1])
    assert [stage.positions.type for stage in stages] == ["randomized", "pose", "pose", "plain"]
    assert [stage.length for stage in stages] == [512] * 4
    assert [stage.seq_len for stage in stages] == [128, 128, 128, 512]
    assert stages[-1].mixed.seq_len == 128


def test_the_sweep_entries_are_what_the_text_says():
    (entries,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    config = SweepConfig.model_validate(yaml.safe_load(entries))
    labels = ["trained", "rerope-logn", "leaky", "grouped", "yarn-2-dual_chunk", "sinks"]
    assert [entry.label for entry in config.scalings] == labels
    by_label = dict(zip(labels, config.scalings, strict=True))
    own = MAPS["rerope"](window=5)
    assert by_label["trained"].map_at(512, 128, own) == own
    assert by_label["sinks"].map_at(512, 128, own).type == "streaming"
    assert by_label["sinks"].at(512, 128, NoScaling()) == NoScaling()
    assert by_label["leaky"].map_at(128, 128, own) is None
    assert by_label["leaky"].scaling_at_window.query_scale.type == "logn"


def test_the_settings_that_auto_stands_for():
    text = in_one_line(section('### What "auto" does'))
    for name in ("leaky_rerope", "self_extend"):
        settings = MAPS[name]().at(128, 512).shown_settings
        assert ", ".join(f"{key}: {value}" for key, value in settings.items()) in text, name
    assert f"`{MAPS['leaky_rerope']().at(128, 512).label}`" in text
    automatic = [name for name in MAPS if name not in ("far_frequencies", "fitted")]
    same_inside = [name for name in automatic if MAPS[name]().at(128, 128)]
    assert same_inside == ["string"]


def test_the_limits_of_maps():
    text = in_one_line(section("## The maps"))
    leaky = MAPS["leaky_rerope"](window=64, k=8)
    assert "A fixed k ends at w + k·(L − 1 − w) + 1 tokens" in text
    leaky.check_reach(128, 64 + 8 * 63 + 1)
    with pytest.raises(ValueError, match=r"the first of 570 tokens at distance 127\.125"):
        leaky.check_reach(128, 64 + 8 * 63 + 2)
    assert "leaves the window for n > L + S − W" in text
    string = "{type: string, shift: 42, local: 4}"
    for length, reaches in ((128 + 38, True), (128 + 39, False)):
        asked = load(MapsConfig, None, [f"maps=[{string}]", f"length={length}"])
        assert shown_maps(asked)[1].reaches == reaches


def command(text, script):
    """Return the words after `script` in the first indented command of a text."""
    found = re.search(rf"\n    python {script} (.*(?:\n     .*)*)", text)[1]
    return re.findall(r"'[^']*'|[^\s\\]+", found)


@pytest.mark.parametrize(
    ("text", "map_", "position"),
    [
        (section("### In training"), "leaky_rerope", "rope"),
        (section("## The encodings"), None, "none"),
        (section("## Position encodings", README), None, "none"),
    ],
)
def test_the_training_commands_are_valid(text, map_, position):
    path, *overrides = command(text, "train.py")
    config = load(Config, ROOT / path, [word.strip("'") for word in overrides])
    assert (config.rope.map and config.rope.map.type, config.model.position.type) == (
        map_,
        position,
    )


def test_the_readmes_sweep_of_a_map_is_valid():
    words = command(section("## Position maps", README), "eval_ppl.py")
    config = load(SweepConfig, None, [word.strip("'") for word in words[1:]])
    assert [entry.label for entry in config.scalings] == ["trained", "leaky_rerope-logn"]


def test_the_readmes_tables_name_every_type():
    for heading, names in (("## Position maps", MAPS), ("## Position encodings", ENCODINGS)):
        rows = re.findall(r"^\| `(\w+)` \|", section(heading, README), re.MULTILINE)
        assert rows == ["type", *names]


@pytest.mark.parametrize("map_", [None, {"type": "streaming", "sinks": 2, "recent": 9}])
def test_the_attention_of_a_model_of_your_own_is_ours(map_):
    (snippet,) = re.findall(
        r"```python\n(.*?)```", section("### In a model of your own"), re.DOTALL
    )
    page: dict = {}
    exec(snippet, page)
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.standard_normal((2, 40, 4, 8)), jnp.float32) for _ in range(3))
    layers, positions = RotaryLayers(RotaryGeometry(8, 100.0, 16)), np.arange(40)[None]
    rotary = layers.rotary(NoScaling(), positions)
    wanted_keys = np.tri(40, dtype=bool)
    if map_:
        map_ = MAPS[map_["type"]](**map_)
        rotary = with_map(rotary, map_, layers, positions, window=16, seq_len=40)
        r = relative_positions(map_.bands(16, 40), positions[0], positions[0])
        wanted_keys = ~np.isnan(r)
    found = page["attention"](q, k, v, rotary, jnp.asarray(positions))
    every = jax.tree.map(lambda leaf: leaf[0], rotations(rotary, jnp.asarray(positions)))
    inputs = LayerInputs(every, jnp.ones((1, 40), jnp.float32), {}, None, None)
    kind = LayerKind(masks=band_masks(rotary))
    wanted = attend(q, k, v, inputs, kind, backend="xla", encoding=RoPE(), layout="half")
    np.testing.assert_allclose(found, wanted, atol=1e-6)

    def last(v):
        return page["attention"](q, k, v, rotary, jnp.asarray(positions))[0, -1]

    gradient = jax.jacobian(last)(v)  # zero where a key is hidden
    reached = np.abs(np.asarray(gradient)[:, :, 0]).sum((0, 1, 3, 4)) > 0
    np.testing.assert_array_equal(reached, wanted_keys[-1])
