"""gpt-oss."""

from rope_jax.checkpoints.families.base import (
    EXPERTS,
    THEIRS,
    Family,
    Key,
    LocalWindows,
    expert_keys,
    llama_keys,
    llama_rows,
)
from rope_jax.checkpoints.tensors import Row
from rope_jax.config.model import ModelConfig


def _gpt_oss_rows(model: ModelConfig) -> tuple[Row, ...]:
    """Return the rows of gpt-oss, whose experts' gate and up have a column each in turn."""
    layer, ours = "model.layers.{}.", "layers/mlp/experts/"
    rows = [Row(f"{layer}self_attn.sinks", ("layers/self_attn/sinks",))]
    for leaf, suffix in (("kernel", ""), ("bias", "_bias")):
        pair = f"{ours}gate_proj/{leaf}", f"{ours}up_proj/{leaf}"
        name = f"{layer}mlp.experts.gate_up_proj{suffix}"
        rows.append(Row(name, pair, model.intermediate_size, inputs_first=True))
        name = f"{layer}mlp.experts.down_proj{suffix}"
        rows.append(Row(name, (f"{ours}down_proj/{leaf}",), inputs_first=True))
    return (*llama_rows({"mlp.router": ["mlp.router"]}), *rows)


GPT_OSS = (
    Family(
        "gpt_oss",
        (
            *llama_keys("attention_bias", heads=THEIRS),
            *expert_keys("num_local_experts"),
            Key("swiglu_limit", ("feed_forward.swiglu_limit",), 7.0),
            Key("swiglu_alpha", (), 1.702, {1.702: ()}),
        ),
        other_rows=_gpt_oss_rows,
        fixed=EXPERTS
        | {"feed_forward.router_bias": True, "feed_forward.expert_bias": True}
        | {"attention_sinks": True},
        windows=LocalWindows(is_local=lambda _, count: [layer % 2 == 0 for layer in range(count)]),
        defaults={
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 32.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            }
        },
    ),
)
