"""The examples of the README and of docs/scalings.md run as they are printed."""

import re
from pathlib import Path

import jax
import numpy as np
import yaml

from rope_jax.config.training import Config
from rope_jax.rope import parse_scaling

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def code(containing: str) -> str:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    return next(block for block in blocks if containing in block)


def test_the_examples_of_docs_scalings() -> None:
    text = (Path(__file__).parents[1] / "docs/scalings.md").read_text(encoding="utf-8")
    module, functions, _ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict = {}
    # traced as a whole: operation by operation it would be compiled for seconds
    jax.eval_shape(lambda: exec(module + functions, names))
    assert names["q"].shape == (2, 100, 8, 64)
    assert names["k"].shape == (2, 100, 2, 64)
    # the layers' YAML is a config
    layers = next(b for b in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "pattern" in b)
    raw = yaml.safe_load(layers) | {"name": "x", "model": {"num_hidden_layers": 8}}
    config = Config.model_validate(
        raw | {"stages": [{"steps": 200, "seq_len": 128, "batch_size": 1}]}
    )
    assert config.sliding_windows == (1024, 1024, 1024, None, 1024, 1024, 1024, None)
    kinds = [config.rotary_layers.for_layer(i, config.rope.scaling)[1].type for i in range(8)]
    assert kinds == ["none"] * 3 + ["yarn"] + ["none"] * 3 + ["drope"]
    # every setting of every explicit example parses
    for line in re.findall(r"scaling: (\{type: explicit.*?\})(?: |$)", text, re.MULTILINE):
        if "path" not in line:
            parse_scaling(yaml.safe_load(line))


def test_the_model_that_the_readme_sweeps(capsys) -> None:
    """The example with its ellipsis filled in by the smallest model that rotates something."""
    example = code("def nll_fn").replace("return nll", "", 1)
    model = (
        "    from jax.numpy import asarray\n"
        "    x = params[tokens[:, :-1]][:, :, None, :]\n"
        "    q, k = rotate(x, cos[0], sin[0]), rotate(x, cos[0], sin[0])\n"
        "    score = jnp.einsum('btnh,bsnh->bts', q, k)\n"
        "    mask = positions[..., :, None] >= positions[..., None, :]\n"
        "    weight = jax.nn.softmax(jnp.where(mask, score, -jnp.inf))\n"
        "    logits = jnp.einsum('bts,bsh->bth', weight, x[:, :, 0]) @ params.T\n"
        "    return -jnp.take_along_axis(\n"
        "        jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1)[..., 0]\n"
    )
    filled = re.sub(r"    \.\.\. .*\n", lambda _: model, example)
    rng = np.random.default_rng(0)
    names = {
        "jax": jax,
        "documents": [rng.integers(0, 16, 9000) for _ in range(2)],
        "params": jax.numpy.asarray(rng.normal(size=(16, 64)).astype(np.float32)) * 0.3,
    }
    # short lengths, for a fast test; all else is the README's own text
    exec(filled.replace("[1024, 2048, 4096, 8192]", "[16, 32, 64]"), names)
    printed = capsys.readouterr().out.split("\n")[:-1]
    assert len(printed) == 9
    losses = {tuple(line.split()[:2]): float(line.split()[2]) for line in printed}
    # up to its train_length an `auto` factor is 1: no scaling
    assert losses["yarn-auto", "64"] == losses["trained", "64"] != losses["ntk-8", "64"]
