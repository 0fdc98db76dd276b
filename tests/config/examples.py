"""Configs that the tests of this folder share."""

from tests.rope.test_strategies import scaling


def settings_of(kind):
    """Return settings of a scaling of this type, for a model of 4 layers and 16 pairs per head."""
    query_scale = {"type": "power", "s": 1.5}
    return scaling(kind, 2.0, pairs=16, query_scale=query_scale).model_dump(mode="json")


PLAIN = """\
name: plain
stages:
  - {steps: 200, seq_len: 128, batch_size: 16}
"""

# Every section, both kinds of list, every union, with every key.
FULL = """\
name: full
runs_dir: elsewhere
seed: 7
log_every_steps: 10
init_from: {run: runs/first, step: 500, optimizer: true}
imported: {model: a/b, revision: main, identity: abc}
model: {vocab_size: 300, hidden_size: 96, intermediate_size: 200, num_hidden_layers: 3,
  num_attention_heads: 6, num_key_value_heads: 2, head_dim: 20, tie_word_embeddings: false,
  norm: layer_norm, norm_placement: before, qk_norm: true, rms_norm_eps: 1.0e-06,
  parallel_residual: true, qkv_bias: true, o_bias: true, mlp_bias: true, activation: gelu_tanh,
  gated_mlp: false, feed_forward: {type: mlp}, scale_embeddings: true,
  query_pre_attn_scalar: 24.0, attention_softcap: 50.0, logit_softcap: 30.0,
  initializer_range: 0.01, dtype: bfloat16, product_dtype: bfloat16, param_dtype: bfloat16,
  layers: scanned, remat: attention, attention: xla, position: {type: rope}}
rope: {base: 500000.0, rotary_dim: 12, train_length: 256, layout: interleaved, strategy: null,
  scaling: {type: yarn, factor: 4.0, beta_fast: 16, beta_slow: 2, truncate: false, ramp: index,
  attention_factor: 1.1, mscale: 0.0, mscale_all_dim: 0.5, query_scale: {type: llama4,
  attn_scale: 0.2, floor_scale: 64}}, map: {type: far_frequencies, window: 48, far: {type: pi,
  factor: 2.0, query_scale: null}}, layer_pattern: [{scaling: {type: abf, base: 1000000.0,
  query_scale: null}, base: null, sliding_window: 32}, {scaling: null, base: 1000.0,
  sliding_window: null}]}
data: {type: parquet, files: {train: [a, b], test: [c]}, split_bytes: 4096, column: body,
  validation_fraction: 0.2, test_fraction: 0.3, max_documents: 40, mix: [{task: passkey,
  digits: 3, share: 0.125, shortest: 40}, {task: multikey, keys: 2, values: words, digits: 4,
  share: 0.25, shortest: null}], cache_dir: /somewhere}
tokenizer: {type: file, path: a/tokenizer.json, bos: <s>}
optim: {learning_rate: 0.0001, schedule: wsd, warmup_steps: 5, final_lr_fraction: 0.0,
  decay_fraction: 0.5, weight_decay: 0.0, b1: 0.8, b2: 0.99, eps: 1.0e-09, clip_norm: 0.5}
stages:
  - {steps: 20, seq_len: 32, batch_size: 4, grad_accumulation: 2, learning_rate: null,
     scaling: {type: none, query_scale: null}, positions: {type: pose, length: 40, chunks: 3},
     mixed: {fraction: 0.5, seq_len: 16, scaling: {type: abf, base: 20000.0, query_scale: null}},
     documents: {mask: none, positions: continue}}
  - {steps: 30, seq_len: 256, batch_size: 2, grad_accumulation: 1, scaling: {type: pi,
     factor: 4.0, query_scale: {type: ministral, beta: 0.2}}, learning_rate: 5.0e-05,
     positions: {type: plain}, mixed: null, documents: {mask: document, positions: reset}}
validation: {every_steps: 3, batches: 2}
sweep: {every_steps: 5, window: 32, lengths: [16, 64], max_documents: 8, max_blocks: 3,
  targets: 6, seed: 3, memory_gib: 0.5, scalings: [{type: trained, name: null, map: null}]}
checkpoint: {every_steps: 4, keep: 1}
mesh: {data: 2, fsdp: 3, context: 2, tensor: 2}
distributed: {coordinator: 'host:1', num_processes: 3, process_id: 2, timeout: 7}
"""

SWEEP = """\
name: wide
lengths: [32, 64, 256]
protocols: [same_tokens, whole_window, sliding, per_position, yarn_compat]
stride: 16
scalings:
  - trained
  - none
  - {type: pi, factor: auto}
  - {type: ntk, factor: 8}
  - {type: ntk, factor: 8, name: again}
  - {type: yarn, factor: 2.5, beta_fast: 64, truncate: false, attention_factor: 1.0}
  - {type: resonance, inner: {type: ntk, factor: auto}, query_scale: {type: logn}}
  - {type: longrope, factor: auto, short_factor: [1, 1], long_factor: [1, 2.5]}
  - {type: bucketed, factors: [1, 2.5], inner: {type: ntk_by_parts, beta_fast: 8}}
  - {type: none, query_scale: {type: logn}, map: {type: leaky_rerope, window: 12, k: auto}}
  - {type: trained, map: {type: far_frequencies, far: {type: yarn, factor: 4}}, name: far}
max_documents: 8
max_blocks: 3
targets: 16
bos: every_window
split: validation
data: {type: hub, id: a/b, subset: c, revision: d, column: e, streaming: true, max_documents: 7,
  cache_dir: /somewhere}
tasks:
  - {task: passkey, name: short, samples: 8, depths: [0.0, 0.5], digits: 3}
  - {task: repeat, name: null, samples: 16, stretch: 8}
  - {task: induction, samples: 4}
  - {task: multikey, depths: [0.25], keys: 3, values: uuids, digits: 4}
  - {task: chain, hops: 1, chains: 3, digits: 4}
  - {task: mqar, pairs: 7, load: null}
  - {task: mqar, name: loaded, pairs: null, load: 0.125}
  - {task: passkey_text, digits: 6}
  - {task: needle, kind: words, keys: 4, values: 2, queries: 3}
  - {task: longppl, name: far, mask: a/mask.json, samples: 100}
threshold: 0.5
seed: 3
memory_gib: 0.5
attention: blockwise
tolerance: 0.1
resamples: 100
distributed: {coordinator: 'host:1', num_processes: 3, process_id: 2, timeout: 7}
"""
