"""How tensor parallelism cuts a tensor, by its role."""

from __future__ import annotations

VOCAB_PAD = 64  # rows of the embedding and the head are padded to a multiple of this

# How tensor parallelism cuts a role: column splits the outputs, row the inputs (its bias stays whole), kv the KV heads as
# long as there are as many as ranks, heads a vector along heads or channels. What is not here is on every rank.
CUTS: dict[str, str] = {
    role: cut
    for cut, roles in (
        ("vocab", "token_embd output per_layer_token_embd"),
        ("kv", "attn_k attn_v"),
        ("qkv", "attn_qkv"),
        ("column", "attn_q attn_gate attn_q_b attn_kv_b attn_output_a ffn_gate ffn_up ffn_gate_shexp ffn_up_shexp"),
        ("row", "attn_output attn_output_b ffn_down ffn_down_shexp ssm_out ssm_x shortconv.out_proj laurel_r"),
        (
            "column",
            "ssm_dt ssm_ba ssm_alpha ssm_beta ssm_f ssm_f_b ssm_g ssm_g_b ssm_conv1d_q ssm_conv1d_k ssm_conv1d_v",
        ),
        ("column", "shortconv.in_proj shortconv.conv per_layer_model_proj laurel_l altup_proj altup_unembd_proj"),
        ("heads", "attn_sinks ssm_a ssm_d"),
        ("ssm_in", "ssm_in"),
        ("conv", "ssm_conv1d"),
    )
    for role in roles.split()
}
# On every rank whole: norms (but see NORM_CUTS), routers, latents, indexers and small vectors.
WHOLE = frozenset(
    [
        "output_norm",
        "token_embd_norm",
        "token_types_embd",
        "position_embd",
        "attn_norm",
        "attn_norm_2",
        "attn_q_norm",
        "attn_k_norm",
        "attn_q_a",
        "attn_q_a_norm",
        "attn_kv_a_mqa",
        "attn_kv_a_norm",
        "attn_kv",
        "attn_output_norm",
        "layer_output_norm",
        "post_attention_norm",
        "attn_res_norm",
        "attn_res_score",
        "ffn_res_norm",
        "ffn_res_score",
        "output_res_norm",
        "output_res_score",
        "ffn_norm",
        "post_ffw_norm",
        "post_ffw_norm_1",
        "post_ffw_norm_2",
        "pre_ffw_norm_2",
        "post_norm",
        "layer_output_scale",
        "ffn_gate_inp",
        "ffn_gate_inp.scale",
        "ffn_gate_inp_shexp",
        "ffn_down_exps.scale",
        "exp_probs_b",
        "ffn_gate_tid2eid",
        "ffn_latent_down",
        "ffn_latent_up",
        "ffn_routed_down",
        "ffn_routed_norm",
        "ffn_routed_up",
        "indexer.attn_k",
        "indexer.attn_q_b",
        "indexer.k_norm",
        "indexer.k_proj",
        "indexer.proj",
        "indexer.q_norm",
        "indexer.q_proj",
        "attn_compressor_ape",
        "attn_compressor_gate",
        "attn_compressor_kv",
        "attn_compressor_norm",
        "indexer_compressor_ape",
        "indexer_compressor_gate",
        "indexer_compressor_kv",
        "indexer_compressor_norm",
        "hc_attn_base",
        "hc_attn_fn",
        "hc_attn_scale",
        "hc_ffn_base",
        "hc_ffn_fn",
        "hc_ffn_scale",
        "output_hc_base",
        "output_hc_fn",
        "output_hc_scale",
        "per_layer_proj_norm",
        "inp_gate",
        "proj",
        "laurel_post_norm",
        "altup_correct_coef",
        "altup_correct_scale",
        "altup_predict_coef",
        "altup_router",
        "altup_router_norm",
        "ssm_norm",
        "ssm_b_norm",
        "ssm_c_norm",
        "ssm_dt_norm",
        "ssm_f_a",
        "ssm_g_a",
    ]
)
# Not parameters in vLLM's modules.
BUFFERS = frozenset({"layer_output_scale"})
# Linear layers whose module vLLM builds without any quantization method, whatever the checkpoint says.
# Source: vLLM 0.33.0 models/deepseek_v4/compressor.py.
PLAIN_ROLES = frozenset(
    {"attn_compressor_kv", "attn_compressor_gate", "indexer_compressor_kv", "indexer_compressor_gate"}
)
