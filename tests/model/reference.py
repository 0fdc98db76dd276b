"""A decoder in float64 numpy, layer by layer and head by head, and families to try it with.

Shapes: B batch, T length, D model, N heads, K key-value heads, G = N/K, H head dim, L layers,
d rotary dimension.
"""

import jax
import numpy as np

from rope_jax.blocks.mixer import AttentionSpan

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "rms_norm_eps": 1e-2,
}
GEMMA = {
    "norm": "rms_norm_plus_one",
    "norm_placement": "both",
    "activation": "gelu_tanh",
    "scale_embeddings": "sqrt_hidden_size",
    "query_pre_attn_scalar": 30.0,
}
LATENT = {
    "head_dim": None,
    "num_key_value_heads": None,
    "self_attention": {"type": "latent", "q_lora_rank": 10, "kv_lora_rank": 14,
                       "qk_rope_head_dim": 8, "qk_nope_head_dim": 4, "v_head_dim": 6},
    "qkv_bias": True,
}  # fmt: skip
# Groups of experts as in DeepSeek-V3, after layers without; clamped ones as in gpt-oss, with a
# shared expert as in Qwen2-MoE; one for each token, whose input is scaled, as in Llama 4.
GROUPED, CLAMPED, SINGLE = (
    {"type": "experts"} | own
    for own in (
        {
            **{"num_experts": 6, "moe_intermediate_size": 20, "scores": "sigmoid"},
            **{"n_group": 3, "topk_group": 2, "group_score": "best_two", "choice_bias": True},
            **{"routed_scaling_factor": 2.5, "shared_expert_intermediate_size": 16},
        },
        {
            **{"num_experts": 5, "num_experts_per_tok": 3, "norm_topk_prob": False},
            **{"router_bias": True, "expert_bias": True, "swiglu_limit": 0.7},
            **{"shared_expert_intermediate_size": 20, "shared_expert_gate": True},
        },
        {
            **{"num_experts_per_tok": 1, "scores": "sigmoid", "norm_topk_prob": False},
            **{"scaled": "inputs", "n_group": 4, "topk_group": 1},
        },
    )
)
# By name: the model's fields, and the sliding windows or kinds of its layers. What other families
# are made of, tests/checkpoints compares with transformers.
FAMILIES = {
    "gemma2": (GEMMA | {"attention_softcap": 2.0, "logit_softcap": 3.0}, (5, None)),
    "llama4": (
        {"qk_norm": "rotated"},
        (AttentionSpan(attention_chunk=7), AttentionSpan(rotates=False)),
    ),
    "deepseek": (LATENT | {"query_pre_attn_scalar": 5.0}, (None,)),
    "gpt_oss": ({"attention_sinks": True, "qkv_bias": True, "attention_softcap": 9.0}, (5, None)),
    "alternating": (
        {
            "alternate_mixer": {"type": "grouped_query", "output_gate": True},
            "alternate_layers": (True, False),
            **{"feed_forward": CLAMPED, "dense_layers": (1, 2)},
        },
        (5, None),
    ),
    "delta_net": (
        {
            "alternate_mixer": {
                **{"type": "gated_delta_net", "linear_num_key_heads": 2},
                **{"linear_num_value_heads": 4, "linear_conv_kernel_dim": 3},
                **{"linear_key_head_dim": 6, "linear_value_head_dim": 10},
            },
            "alternate_layers": (True, True, False),
            "norm": "rms_norm_plus_one",
        },
        (None,),
    ),
    "groups of experts": ({"feed_forward": GROUPED, "dense_layers": 1}, (5, None)),
}


def kinds_of(windows):
    """Return the kinds of layers, given these or their sliding windows."""
    return tuple(x if isinstance(x, AttentionSpan) else AttentionSpan(x) for x in windows)


def normalized(x, weights, config, epsilon=None):
    """Normalize the last axis of x."""
    root = np.sqrt(np.mean(x**2, -1, keepdims=True) + (epsilon or config.rms_norm_eps))
    return x / root * (weights.get("scale", 1) + config.norm.endswith("plus_one"))


def activated(x, name):
    """Apply a nonlinearity."""
    if name == "silu":
        return x / (1 + np.exp(-x))
    return x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def projected(x, weights):
    """Apply a linear map, with a bias if there is one."""
    return x @ weights["kernel"] + weights.get("bias", 0)


def capped(logits, cap):
    """Bound logits by a soft cap; None: none."""
    return logits if cap is None else cap * np.tanh(logits / cap)


def turn(x, inv_freq, m, positions, layout):
    """Rotate x [B, T, heads, H] by inv_freq [B, d/2], m [B] and positions [B, T]."""
    angles = positions[:, :, None] * inv_freq[:, None]
    d = 2 * inv_freq.shape[-1]
    first = slice(0, d // 2) if layout == "half" else slice(0, d, 2)
    second = slice(d // 2, d) if layout == "half" else slice(1, d, 2)
    by = m[:, None, None] * np.exp(1j * angles)
    turned = (x[..., first] + 1j * x[..., second]) * by[:, :, None]  # pairs as complex numbers
    out = x.copy()
    out[..., first], out[..., second] = turned.real, turned.imag
    return out


def feed_forward(config, x, weights):
    """Compute a feed-forward, of experts if its weights have a router."""
    if "router" in weights:
        return experts(config, x, weights)[0]
    up = projected(x, weights["up_proj"])
    if config.gated_mlp:
        up = activated(projected(x, weights["gate_proj"]), config.activation) * up
    else:
        up = activated(up, config.activation)
    return projected(up, weights["down_proj"])


def experts(config, x, weights):
    """Compute all experts of every token, and return the mixture and the auxiliary loss."""
    own, count = config.feed_forward, config.feed_forward.num_experts
    logits = projected(x, weights["router"]).reshape(-1, count)
    powers = np.exp(logits)
    if own.scores == "softmax":
        scores = powers / powers.sum(-1, keepdims=True)
    else:
        scores = powers / (1 + powers)
    ranked = scores + weights["router"].get("choice_bias", 0)
    chosen = np.zeros(scores.shape, bool)
    for token, ranks in enumerate(ranked):
        groups = np.sort(ranks.reshape(own.n_group, -1))  # ascending
        best = groups[:, -1] if own.group_score == "best" else groups[:, -2:].sum(-1)
        open_groups = np.argsort(-best)[: own.topk_group]
        is_open = np.isin(np.arange(count) // (count // own.n_group), open_groups)
        order = np.argsort(np.where(is_open, -ranks, np.inf))
        chosen[token, order[: own.num_experts_per_tok]] = True
    shares = scores * chosen
    if own.norm_topk_prob:
        shares = shares / shares.sum(-1, keepdims=True)
    shares = (shares * own.routed_scaling_factor).reshape(*x.shape[:-1], count, 1)
    out = 0
    for expert in range(count):
        part = {
            name: {leaf: value[expert] for leaf, value in kind.items()}
            for name, kind in weights["experts"].items()
        }
        if own.scaled == "inputs":
            is_own = shares[..., expert, :] > 0
            out = out + feed_forward(config, shares[..., expert, :] * x, part) * is_own
        elif own.swiglu_limit is None:
            out = out + shares[..., expert, :] * feed_forward(config, x, part)
        else:
            limit = own.swiglu_limit
            gate = np.minimum(projected(x, part["gate_proj"]), limit)
            up = np.clip(projected(x, part["up_proj"]), -limit, limit)
            hidden = (up + 1) * gate / (1 + np.exp(-1.702 * gate))
            out = out + shares[..., expert, :] * projected(hidden, part["down_proj"])
    if "shared_expert" in weights:
        gate = 1.0
        if own.shared_expert_gate:
            gate = 1 / (1 + np.exp(-projected(x, weights["shared_expert_gate"])))
        out = out + gate * feed_forward(config, x, weights["shared_expert"])
    used = chosen.mean(0) / own.num_experts_per_tok
    balance = (used * (scores / scores.sum(-1, keepdims=True)).mean(0)).sum()
    return out, own.balance * count * balance


def convolved(x, kernel, documents):
    """Sum the last tokens of the same document by the kernel [W, C], and activate."""
    out = np.zeros_like(x)
    for back, weight in enumerate(kernel[::-1]):
        for t in range(back, x.shape[1]):
            same = documents[:, t - back] == documents[:, t]
            out[:, t] += x[:, t - back] * weight * same[:, None]
    return activated(out, "silu")


def delta_rule(q, k, v, decay, beta, documents):
    """Read tokens into a memory, one after the other: q and k [B, T, K, H], v [B, T, N, V]."""
    q, k = (np.repeat(y, v.shape[2] // y.shape[2], axis=2) for y in (q, k))
    q, k = (y / np.sqrt((y**2).sum(-1, keepdims=True) + 1e-6) for y in (q, k))
    memory, out = np.zeros((*k.shape[:1], *k.shape[2:], v.shape[-1])), np.empty_like(v)
    for t in range(v.shape[1]):
        kept = decay[:, t] * (documents[:, t] == documents[:, t - 1])[:, None] * (t > 0)
        memory = memory * kept[..., None, None]
        known = np.einsum("bnhv,bnh->bnv", memory, k[:, t])
        memory = memory + np.einsum("bnh,bnv,bn->bnhv", k[:, t], v[:, t] - known, beta[:, t])
        out[:, t] = np.einsum("bnhv,bnh->bnv", memory, q[:, t]) / np.sqrt(q.shape[-1])
    return out


def reference_nll(
    config, layout, params, tokens, targets, positions, segment_ids, rotary, windows=(None,)
):
    """Compute the NLL of the targets."""
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    inv_freq, remainder, m = (np.float64(leaf) for leaf in rotary.frequencies)
    count, batch, length = config.num_hidden_layers, *tokens.shape
    inv_freq = np.broadcast_to(inv_freq + remainder, (count, batch, inv_freq.shape[-1]))
    m = np.broadcast_to(m, (count, batch))
    scale = np.broadcast_to(np.float64(rotary.query_scale), (count, batch, length))
    positions = np.broadcast_to(positions, tokens.shape)
    visible = np.tri(length, dtype=bool)[None]
    if segment_ids is not None:
        visible = visible & (segment_ids[:, :, None] == segment_ids[:, None])
    places = visible.sum(-1) - 1  # of tokens in their documents

    def latent_heads(x, weights):
        """Return q, k and v of latent attention, the rotated dimensions first."""
        own, heads = config.self_attention, config.num_attention_heads
        turned, plain, rank = own.qk_rope_head_dim, own.qk_nope_head_dim, own.kv_lora_rank
        q = x
        if own.q_lora_rank:
            q = projected(x, weights["q_a_proj"])
            q = normalized(q, weights["q_a_layernorm"], config, 1e-6)
        q = projected(q, weights["q_b_proj" if own.q_lora_rank else "q_proj"])
        q = q.reshape(batch, length, heads, plain + turned)
        kv = projected(x, weights["kv_a_proj"])
        shared = np.repeat(kv[:, :, None, rank:], heads, axis=2)
        kv = normalized(kv[..., :rank], weights["kv_a_layernorm"], config, 1e-6)
        kv = projected(kv, weights["kv_b_proj"]).reshape(batch, length, heads, -1)
        q = np.concatenate([q[..., plain:], q[..., :plain]], axis=-1)
        return q, np.concatenate([shared, kv[..., :plain]], axis=-1), kv[..., plain:]

    def grouped_heads(x, weights):
        q, k, v = (projected(x, weights[f"{name}_proj"]) for name in "qkv")
        q, k, v = (y.reshape(batch, length, -1, config.heads_width) for y in (q, k, v))
        if config.qk_norm == "by_head":
            q = normalized(q, weights["q_norms"], config)
            k = normalized(k, weights["k_norms"], config)
        return q, k, v

    def attention(x, number, weights):
        """Return attention's output in layer `number`."""
        is_latent = config.self_attention.type == "latent"
        q, k, v = (latent_heads if is_latent else grouped_heads)(x, weights)
        width, heads = config.heads_width, config.num_attention_heads
        kv_heads = config.kv_heads
        assert (q.shape[2], k.shape[2], v.shape[2]) == (heads, kv_heads, kv_heads)
        q, k = (turn(y, inv_freq[number], m[number], positions, layout) for y in (q, k))
        kind = kinds_of(windows)[number % len(windows)]
        if config.qk_norm == "rotated" and kind.rotates:
            q, k = (normalized(y, {}, config) for y in (q, k))
        q = q * scale[number][:, :, None, None]
        divisor = np.sqrt(config.query_pre_attn_scalar or width)
        window, chunk = kind.sliding_window or length, kind.attention_chunk or length
        chunks = places // chunk
        same = chunks[:, :, None] == chunks[:, None]
        near = np.subtract.outer(np.arange(length), np.arange(length)) < window
        mixed = np.empty((*q.shape[:3], v.shape[3]))
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            logits = q[:, :, head] @ k[:, :, kv_head].swapaxes(1, 2) / divisor
            logits = capped(logits, config.attention_softcap)
            logits = np.where(visible & near & same, logits, -np.inf)
            if config.attention_sinks:
                sink = np.full((batch, length, 1), weights["sinks"][head])
                logits = np.concatenate([logits, sink], axis=-1)
            p = np.exp(logits - logits.max(-1, keepdims=True))
            p = (p / p.sum(-1, keepdims=True))[..., :length]
            mixed[:, :, head] = p @ v[:, :, kv_head]
        mixed = mixed.reshape(batch, length, -1)
        if "gate_proj" in weights:
            mixed = mixed / (1 + np.exp(-projected(x, weights["gate_proj"])))
        return projected(mixed, weights["o_proj"])

    def delta_net(x, weights):
        """Return the output of a gated delta net, token by token."""
        own, out = config.alternate_mixer, []
        heads, width = own.linear_num_value_heads, own.linear_value_head_dim
        same = np.ones((batch, length), int) if segment_ids is None else segment_ids
        q, k, v = (projected(x, weights[f"in_{name}"]) for name in "qkv")
        kernels = (weights[f"conv_{name}"]["kernel"] for name in "qkv")
        q, k, v = (convolved(y, kernel, same) for y, kernel in zip((q, k, v), kernels, strict=True))
        rates = np.exp(weights["A_log"])
        decay = np.exp(
            -rates * np.log1p(np.exp(projected(x, weights["in_a"]) + weights["dt_bias"]))
        )
        beta = 1 / (1 + np.exp(-projected(x, weights["in_b"])))
        v = v.reshape(batch, length, heads, width)
        q, k = (y.reshape(batch, length, own.linear_num_key_heads, -1) for y in (q, k))
        out = delta_rule(q, k, v, decay, beta, same)
        gate = activated(projected(x, weights["in_z"]), "silu")
        root = np.sqrt(np.mean(out**2, -1, keepdims=True) + config.rms_norm_eps)
        out = out / root * weights["norm"]["scale"]
        return projected(out.reshape(batch, length, -1) * gate, weights["out_proj"])

    x = params["embed_tokens"]["embedding"][tokens]
    if config.scale_embeddings == "sqrt_hidden_size":
        x = x * np.sqrt(config.hidden_size)
    for number in range(count):
        stack = next(name for name, numbers in config.stacks.items() if number in numbers)
        place = config.stacks[stack].index(number)
        layer = jax.tree.map(lambda leaf, i=place: leaf[i], params[stack])
        norms = {name: leaf for name, leaf in layer.items() if "norm" in name}

        def apply(name, y, norms=norms):
            return normalized(y, norms.pop(f"{name}_layernorm"), config)

        heads, mlp = layer["self_attn"], layer["mlp"]
        normed = apply("input", x)
        mixed = delta_net(normed, heads) if "A_log" in heads else attention(normed, number, heads)
        if config.norm_placement == "before":  # Llama
            x = x + mixed
            x = x + feed_forward(config, apply("post_attention", x), mlp)
        else:  # Gemma 2
            x = x + apply("post_attention", mixed)
            mixed = feed_forward(config, apply("pre_feedforward", x), mlp)
            x = x + apply("post_feedforward", mixed)
        assert not norms  # every norm of the model is used
    x = normalized(x, params["norm"], config)
    tied = config.tie_word_embeddings
    logits = x @ (params["embed_tokens"]["embedding"].T if tied else params["lm_head"]["kernel"])
    logits = logits + params.get("lm_head", {}).get("bias", 0)
    logits = capped(logits, config.logit_softcap)
    log_sum = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
    return log_sum - np.take_along_axis(logits, targets[:, :, None], -1)[:, :, 0]


def loud_params(model):
    """Draw parameters so large that every part matters; fresh ones give nearly a uniform guess."""
    rng = np.random.default_rng(0)
    usual = 0.0 if model.spec.norm.endswith("plus_one") else 1.0

    def draw(path, leaf):
        if path[-1].key == "scale":
            return (usual + rng.uniform(-0.5, 0.5, leaf.shape)).astype(np.float32)
        if path[-1].key == "bias":
            return (rng.standard_normal(leaf.shape) * 0.5).astype(np.float32)
        fan_in = leaf.shape[-1] if path[-1].key == "embedding" else leaf.shape[-2]
        return (rng.standard_normal(leaf.shape) * 1.5 / np.sqrt(fan_in)).astype(np.float32)

    shapes = model.abstract_params()
    return jax.tree_util.tree_map_with_path(draw, shapes)
