"""Compares programs on meshes of eight devices with those on one, for `test_split_programs`.

Prints one JSON object: for each case and quantity, the largest difference from the same quantity on
one device, over the largest of its numbers there. Run with eight devices.

Shapes: B windows, T tokens per window.
"""

import functools
import itertools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

from rope_jax.config.devices import MeshConfig, check_mesh
from rope_jax.config.model import ModelConfig
from rope_jax.data.batches import Batch
from rope_jax.devices.mesh import Placement
from rope_jax.evaluation.decoder import nll_of_last, scores_of_last
from rope_jax.model import loss
from rope_jax.model.decoder import LanguageModel
from rope_jax.model.resolve import resolve_model
from rope_jax.positions.encodings import ENCODINGS
from rope_jax.positions.mapping import with_map
from rope_jax.positions.maps import MAPS
from rope_jax.rope import RotaryGeometry, RotaryLayers, parse_scaling
from rope_jax.training.step import loss_sums

B, T, VOCABULARY, LAST = 8, 48, 48, 7
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 8, "num_key_value_heads": 4, "initializer_range": 0.2}
ONE_LAYER = {"num_hidden_layers": 1}
MIXED = {"fsdp": 2, "context": 2, "tensor": 2}
MODELS = {
    "llama": {},
    "blockwise": {"attention": "blockwise"},
    "scanned with remat": {"attention": "blockwise", "layers": "scanned", "remat": "layer"},
    "remat products": {"attention": "blockwise", "layers": "scanned", "remat": "products"},
    "remat attention": {"remat": "attention"},
    "biases": {"qkv_bias": True, "o_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    "Gemma": {
        **{"norm_placement": "both", "attention_softcap": 5.0, "logit_softcap": 3.0},
        **{"norm": "rms_norm_plus_one", "qk_norm": True, "scale_embeddings": True},
    },
    "NeoX": {"norm": "layer_norm", "parallel_residual": True, "gated_mlp": False},
}
MESHES = {
    "llama": [{"data": 8}, {"fsdp": 8}, {"tensor": 4}, {"context": 4}, {"data": 2, "fsdp": 4}],
    "blockwise": [{"context": 8}, MIXED],
}
RNG = np.random.default_rng(5)
SETTINGS = {
    "rerope": {"window": 8},
    "leaky_rerope": {"window": 8, "k": 8.0},
    "self_extend": {"window": 8, "group": 4},
    "dual_chunk": {"chunk": 14, "local": 4},
    "streaming": {"sinks": 3, "recent": 12},
    "lm_infinite": {"sinks": 3, "recent": 12},
    "string": {"shift": 14, "local": 4},
    "far_frequencies": {"window": 8, "far": parse_scaling({"type": "pi", "factor": 4.0})},
    # one pair; 8 heads, of which the keys have 4
    "fitted": {
        "train_length": T // 2,
        "borders": [8],
        "far_inv_freq": RNG.uniform(-0.1, 0.5, (1, 1, 4, 1)).tolist(),
        "far_phase": RNG.uniform(-3, 3, (1, 1, 8, 1)).tolist(),
        "far_amplitude": RNG.uniform(0.5, 2, (1, 1, 8, 1)).tolist(),
        "bias": RNG.uniform(-1, 1, (1, 8, 3)).tolist(),
    },
}


def case(
    fields, mesh, *, encoding="rope", map_=None, windows=(None,), most_logits=None, fits=False
):
    """Return the differences of the gradient, the sums and the NLL of the last tokens.

    fits: also of the gradient by the frequencies.
    """
    on_mesh = measured(fields, mesh, encoding, map_, windows, most_logits, fits)
    alone = reference(json.dumps(fields), encoding, map_, windows, fits)
    return {
        name: largest(map(difference, jax.tree.leaves(on_mesh[name]), jax.tree.leaves(alone[name])))
        for name in alone
    }


@functools.cache
def reference(fields, encoding, map_, windows, fits):
    return measured(json.loads(fields), {}, encoding, map_, windows, None, fits)


def measured(fields, mesh, encoding, map_, windows, most_logits, fits):
    position = ENCODINGS[encoding]().fitted(T)
    config = ModelConfig(**(SIZES | fields), position=position)
    if mesh:
        check_mesh(MeshConfig(**mesh), config, [map_ and MAPS[map_](**SETTINGS[map_])])
    devices = jax.devices() if mesh else jax.devices()[:1]
    if mesh:
        mesh = {"data": 8 // int(np.prod(list(mesh.values())))} | mesh
    placement = Placement(MeshConfig(**mesh), devices)
    placement.check_vocabulary(VOCABULARY)
    alone = LanguageModel(resolve_model(config), VOCABULARY, "half", windows, position)
    model = alone.on(placement.collectives)
    layers = RotaryLayers(RotaryGeometry(position.rotary_dim(config.heads_width), 50.0, T // 2))

    def rotary_at(positions):
        made = layers.rotary(parse_scaling("none"), positions)
        if map_ is None:
            return made
        own = MAPS[map_](**SETTINGS[map_])
        return with_map(made, own, layers, positions, window=T // 2, seq_len=positions.shape[1])

    def share(params, batch, rotary, tokens):
        sums = loss_sums(model, params, batch, rotary)
        return sums.nll.sum() / tokens, sums

    def gradient(params, batch):
        rotary, tokens = rotary_at(batch.positions), batch.weights.sum()
        return placement.gradient(share)(params, batch, rotary, tokens)

    def last(params, windows):
        positions = np.arange(windows.shape[1] - 1, dtype=np.int32)[None]
        of_last = scores_of_last(alone, placement)
        scores = of_last(params, windows, rotary_at(positions), LAST)
        return scores.nll + scores.is_top1  # another first choice would differ by 1

    def by_frequencies(params, windows):
        """As a fit does: the gradient of the mean by the frequencies, the weights being frozen."""
        rotary = rotary_at(np.arange(windows.shape[1] - 1, dtype=np.int32)[None])

        def mean(inv_freq):
            own = rotary.frequencies._replace(inv_freq=inv_freq)
            moved = rotary._replace(frequencies=own)
            return nll_of_last(alone, placement)(params, windows, moved, None).mean()

        return jax.grad(mean)(jnp.asarray(rotary.frequencies.inv_freq))

    params = alone.init(0)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, placement.shard_state(params))
    params, rows = jax.device_put(params, shardings), placement.batch(batch, B)
    old, loss.MOST_LOGITS = loss.MOST_LOGITS, most_logits or loss.MOST_LOGITS
    try:
        grads, sums = jax.jit(gradient)(params, rows)
        # five rows of 37 tokens, which neither rows nor chunks divide
        nll = jax.jit(last)(params, batch().tokens[:5, :38])
    finally:
        loss.MOST_LOGITS = old
    found = {"gradient": grads, "sums": sums, "nll": nll}
    if fits:
        found["frequencies"] = jax.jit(by_frequencies)(params, batch().tokens[:3])
    return jax.device_get(found)


def batch(rows=slice(None)):
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCABULARY, (B, T + 1)).astype(np.int32)
    segments = np.cumsum(rng.random((B, T)) < 0.04, axis=1).astype(np.int32)
    starts = np.diff(segments, axis=1, prepend=segments[:, :1] - 1) > 0
    index = np.arange(T)
    positions = index - np.maximum.accumulate(np.where(starts, index, 0), axis=1)
    weights = (rng.random((B, T)) < 0.8).astype(np.float32)
    arrays = tokens[:, :-1], tokens[:, 1:], segments, positions.astype(np.int32), weights
    return Batch(*(array[rows] for array in arrays))


def largest(numbers):
    """Return the largest number, and NaN if there is one."""
    return float(np.max(list(numbers)))


def difference(found, wanted):
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def few():
    """One case, which takes seconds."""
    fields = ONE_LAYER | MODELS["biases"] | MODELS["blockwise"]
    yield "all axes", lambda: case(fields, MIXED)


def models():
    """Every kind of model and mesh."""
    yield "biases", lambda: case(MODELS["biases"], {"fsdp": 4, "tensor": 2})
    for name, fields in MODELS.items():
        for mesh in MESHES.get(name, [MIXED]):
            yield f"{name} on {mesh}", lambda fields=fields, mesh=mesh: case(fields, mesh)
    windowed = functools.partial(case, {"attention": "blockwise"}, windows=(None, 10))
    yield "sliding windows", lambda: windowed({"context": 4, "tensor": 2})
    fitted = functools.partial(case, {"attention": "blockwise"}, fits=True)
    yield "a fit", lambda: fitted(MIXED)
    chunked = functools.partial(case, {}, most_logits=500)
    yield "logits in chunks", lambda: chunked({"tensor": 4, "fsdp": 2})


def bfloat16():
    """Parameters are gathered in the compute dtype, and gradients are added in float32."""
    for attention in ("xla", "blockwise"):
        fields = {"attention": attention, "dtype": "bfloat16"}
        yield attention, lambda fields=fields: case(fields, MIXED)
    rounded = {"product_dtype": "bfloat16"}
    yield "products", lambda: case(rounded, MIXED)  # too few tokens on each device for kernels
    yield "products by kernels", lambda: case(rounded, {"tensor": 4})
    odd = rounded | {"intermediate_size": 20}  # 5 columns on each device
    yield "products with odd numbers of columns", lambda: case(odd, {"tensor": 4})


def positions():
    """Every encoding and some maps, on meshes that share windows, and heads where they may."""
    for encoding, attention in zip(ENCODINGS, itertools.cycle(("xla", "blockwise"))):
        heads = {} if ENCODINGS[encoding].differs_by_head else {"tensor": 2}
        fields = ONE_LAYER | {"attention": attention}
        of_one = functools.partial(case, fields, encoding=encoding)
        yield f"{encoding} by {attention}", functools.partial(of_one, {"context": 4} | heads)
    for map_, attention in itertools.product(MAPS, ("xla", "blockwise")):
        heads = {} if map_ == "fitted" else {"tensor": 2}
        of_one = functools.partial(case, ONE_LAYER | {"attention": attention}, map_=map_)
        yield f"map {map_} by {attention}", functools.partial(of_one, {"context": 4} | heads)


if __name__ == "__main__":
    jax.config.update("jax_disable_most_optimizations", True)
    kinds = {"few": few, "models": models, "bfloat16": bfloat16, "positions": positions}
    cases = kinds[sys.argv[1]]()
    print(json.dumps({name: measure() for name, measure in cases}))
