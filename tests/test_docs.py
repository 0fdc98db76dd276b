"""The README and docs/: links lead somewhere, commands are valid, examples run."""

import re
import shlex
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from flax import linen, nnx

from rope_jax.blocks.attention import attend
from rope_jax.blocks.base import DecoderSpec
from rope_jax.blocks.mixer import AttentionSpan, LayerInputs
from rope_jax.config.fit import FitConfig
from rope_jax.config.inspection import MapsConfig
from rope_jax.config.load import load
from rope_jax.config.model import ModelConfig
from rope_jax.config.resolve import resolve_model
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.inspection.maps import shown_maps, write_map_rows
from rope_jax.model.decoder import DecoderInputs, LanguageModel
from rope_jax.positions.bands import band_masks, rotations
from rope_jax.positions.mapping import with_map
from rope_jax.positions.maps import MAPS, relative_positions
from rope_jax.rope import RotaryGeometry, RotaryLayers, parse_scaling
from rope_jax.rope.strategies import NoScaling
from scripts.plot_rope import KNOWN_MODELS

ROOT = Path(__file__).parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
}


def examples(page, language="python"):
    """Return a page's blocks of code."""
    return re.findall(rf"```{language}\n(.*?)```", PAGES[page], re.DOTALL)


def test_links_lead_to_files_and_headings():
    for page, text in PAGES.items():
        for target, anchor in re.findall(r"\]\(((?!https?:)[^)#\s]*)(?:#([\w-]+))?\)", text):
            path = (ROOT / page).parent / target if target else ROOT / page
            assert path.exists(), (page, target)
            if anchor:
                headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
                anchors = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
                assert anchor in anchors, (page, target, anchor)


def commands(text):
    """Yield the words after rope-jax of every such command in a page's indented blocks."""
    for found in re.finditer(r"^ +\S*rope-jax ((?:.*\\\n)*.*)", text, re.MULTILINE):
        command = re.sub(r" +#.*", "", found[1]).replace("\\\n", " ")
        if command.count("'") % 2:  # an argument over several lines
            command += text[found.end() :].partition("'")[0] + "'"
        yield shlex.split(command)


# Of a command that cannot be read as it is; what a recipe adds is not there yet.
PLACEHOLDER = re.compile(
    r"[$<…]|CONFIG|\bRUN\b|half|recency|grouped|fused|soft_mixture|strategy.json|--help"
)
CONFIGS = {"train": TrainingConfig, "sweep": SweepConfig, "fit": FitConfig}


def test_commands_have_valid_configs(monkeypatch):
    """Every config that a page names with overrides can be read, except those of its own making."""
    monkeypatch.chdir(ROOT)
    checked = 0
    for command, *words in (words for text in PAGES.values() for words in commands(text)):
        if command not in CONFIGS or any(PLACEHOLDER.search(word) for word in words):
            continue
        *_, path = [None, *(word for word in words if "=" not in word)]
        path = path if path and path.endswith(".yaml") else None
        if path is None or Path(path).exists():
            overrides = [word for word in words if "=" in word and not word.startswith("-")]
            load(CONFIGS[command], path and Path(path), overrides)
            checked += 1
    assert checked > 25


# Examples


def test_the_example_of_the_readme_rotates_in_linen_as_its_module_does():
    class Attention(linen.Module):
        @linen.compact
        def __call__(self, inputs, position):
            return names["rotary"](inputs, position)

    def run():
        exec(examples("README.md")[0], names)
        inputs, position = jnp.ones((1, 100, 2, 64)), jnp.arange(100)[None] + 7
        rotated = names["rope"](inputs, inputs, position)[0]
        return names["q"], Attention().apply({}, inputs, position), rotated

    names: dict = {}
    q, found, wanted = jax.jit(run)()  # operation by operation it would be compiled for seconds
    assert q.shape == (2, 100, 8, 64)
    np.testing.assert_array_equal(found, wanted)


def test_the_three_forms_of_the_rotation_are_equal():
    names: dict = {}
    exec(examples("docs/rope.md")[0], names)
    for form in ("complex_product", "matrix", "elementwise"):
        np.testing.assert_allclose(names[form], names["of_models"], atol=1e-5)


def test_the_sweep_of_a_model_of_your_own_runs(capsys):
    """The ellipsis is filled in with the smallest model that rotates something."""
    (example,) = examples("docs/sweeps.md")
    model = (
        "    x = params[tokens[:, :-1]][:, :, None, :]\n"
        "    q, k = rotate(x, cos[0], sin[0]), rotate(x, cos[0], sin[0])\n"
        "    score = jnp.einsum('btnh,bsnh->bts', q, k)\n"
        "    mask = positions[..., :, None] >= positions[..., None, :]\n"
        "    weight = jax.nn.softmax(jnp.where(mask, score, -jnp.inf))\n"
        "    logits = jnp.einsum('bts,bsh->bth', weight, x[:, :, 0]) @ params.T\n"
        "    return -jnp.take_along_axis(\n"
        "        jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1)[..., 0]\n"
    )
    filled = re.sub(r"    \.\.\. .*\n    return nll\n", lambda _: model, example)
    rng = np.random.default_rng(0)
    names = {
        "jax": jax,
        "documents": [rng.integers(0, 16, 9000) for _ in range(2)],
        "params": jnp.asarray(rng.normal(size=(16, 64)).astype(np.float32)) * 0.3,
    }
    # short lengths, for a fast test; all else is the page's own text
    exec(filled.replace("[1024, 2048, 4096, 8192]", "[16, 32, 64]"), names)
    printed = capsys.readouterr().out.split("\n")[:-1]
    losses = {tuple(line.split()[:2]): float(line.split()[2]) for line in printed}
    assert len(losses) == 9
    # up to its train_length an `auto` factor is 1: no scaling
    assert losses["yarn-auto", "64"] == losses["trained", "64"] != losses["ntk-8", "64"]


def test_the_examples_of_scalings_run():
    module, functions, _ = examples("docs/scalings.md")
    names: dict = {}
    jax.eval_shape(lambda: exec(module + functions, names))
    assert names["k"].shape == (2, 100, 2, 64)
    layers = next(b for b in examples("docs/scalings.md", "yaml") if "pattern" in b)
    raw = yaml.safe_load(layers) | {"name": "x", "model": {"num_hidden_layers": 8}}
    config = TrainingConfig.model_validate(
        raw | {"stages": [{"steps": 200, "seq_len": 128, "batch_size": 1}]}
    )
    local = [own.sliding_window is not None for own in config.pattern]
    assert local == [True, True, True, False] * 2
    kinds = [config.rotary_layers.for_layer(i, config.rope.scaling)[1].type for i in range(8)]
    assert kinds == ["none"] * 3 + ["yarn"] + ["none"] * 3 + ["drope"]


@pytest.mark.parametrize("map_", [None, {"type": "streaming", "sinks": 2, "recent": 9}])
def test_the_attention_of_a_model_of_your_own_is_ours(map_):
    (snippet,) = (s for s in examples("docs/positions.md") if "def attention" in s)
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

    @jax.jit
    def both(v):
        every = jax.tree.map(lambda leaf: leaf[0], rotations(rotary, jnp.asarray(positions)))
        scale, masks = jnp.ones((1, 40), jnp.float32), band_masks(rotary)
        inputs = LayerInputs(every, scale, {}, None, None, masks)
        wanted, _ = attend(DecoderSpec(), AttentionSpan(), inputs, q, k, v)
        found, pull = jax.vjp(
            lambda v: page["attention"](q, k, v, rotary, jnp.asarray(positions))[0, -1], v
        )
        return wanted[0, -1], found, pull(jnp.ones_like(found))[0]

    wanted, found, gradient = both(v)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    reached = np.abs(np.asarray(gradient[0])).sum((1, 2)) > 0  # by the last query
    np.testing.assert_array_equal(reached, wanted_keys[-1])


def test_the_figure_of_the_maps_is_that_of_the_config(tmp_path):
    """By the last row of every panel, which is in a file of its own."""
    asked = MapsConfig()
    write_map_rows(tmp_path / "maps.csv", shown_maps(asked), asked.text_length)
    assert (tmp_path / "maps.csv").read_text() == (ROOT / "docs/figures/maps.csv").read_text()
    assert {map_.type for map_ in asked.maps} == set(MAPS) - {"fitted"}


def test_the_demo_is_the_first_of_the_known_models():
    demo = load(TrainingConfig, ROOT / "configs/demo.yaml")
    assert KNOWN_MODELS[0].geometry == demo.rotary_layers.geometry


def test_the_decoder_in_one_file_is_ours():
    (source,) = examples("docs/decoder.md")
    page: dict = {"__name__": "decoder"}
    exec(source, page)
    sizes = {"vocab_size": 61, "hidden_size": 32, "num_key_value_heads": 2}
    config = page["Config"](**sizes, train_length=16, factor=4.0)
    model = LanguageModel(resolve_model(ModelConfig(**sizes, attention="xla")).spec(), 61)
    params = jax.tree.map(lambda x: 3 * x, model.init(0))
    ours = page["Decoder"](config, nnx.Rngs(0))
    layers = [jax.tree.map(lambda x, i=i: x[i], params["layers"]) for i in range(4)]
    embedding, norm = params["embed_tokens"]["embedding"], params["norm"]
    state = {"embedding": embedding, "norm": norm, "layers": dict(enumerate(layers))}
    nnx.update(ours, state)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 61, (2, 65)))
    positions = jnp.arange(64)[None]
    rotary = RotaryLayers(RotaryGeometry(8, 10_000.0, 16)).rotary(
        parse_scaling({"type": "yarn", "factor": 4}), positions
    )
    wanted = model.nll(
        params, DecoderInputs(tokens[:, :-1], tokens[:, 1:], positions, None, rotary)
    )
    assert 0.5 < np.std(wanted) < 5  # a model that tells tokens apart
    with jax.numpy_rank_promotion("allow"):
        found = page["nll"](ours, tokens)
    np.testing.assert_allclose(found, wanted, atol=1e-4)
