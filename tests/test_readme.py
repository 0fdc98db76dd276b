"""What the README shows works as shown."""

import re
from pathlib import Path

import numpy as np

from rope_jax.rope import RotaryGeometry

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def code(containing: str) -> str:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    return next(block for block in blocks if containing in block)


def test_the_scaling_that_the_readme_adds() -> None:
    names: dict = {}
    exec(code("class HalfScaling"), names)
    geometry = RotaryGeometry(rotary_dim=8)
    frequencies = names["HalfScaling"](factor=4).frequencies(geometry)
    theta = geometry.inv_freq()
    np.testing.assert_allclose(frequencies.inv_freq, theta / [1, 1, 4, 4], rtol=1e-6)
    assert frequencies.attention_factor == 1


def test_the_model_that_the_readme_sweeps(capsys) -> None:
    """The example with its ellipsis filled in by the smallest model that rotates something."""
    import jax

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
