# SPDX-License-Identifier: Apache-2.0
"""Small random models of every family, as transformers makes and saves them."""

import contextlib

import torch
import transformers as hf

VOCABULARY = 97


def _decoder(**more):
    return dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
                intermediate_size=48, max_position_embeddings=128, bos_token_id=1, eos_token_id=None, **more)


def _encoder(**more):
    return dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
                intermediate_size=48, max_position_embeddings=80, **more)


def _t5(**more):
    return dict(vocab_size=VOCABULARY, d_model=32, d_kv=12, d_ff=48, num_layers=2, num_decoder_layers=3, num_heads=3,
                relative_attention_num_buckets=8, relative_attention_max_distance=20, decoder_start_token_id=0,
                pad_token_id=0, eos_token_id=None, **more)


LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 32}

# name: (class of the model, its config)
FAMILIES = {
    "bert": lambda: (hf.BertForMaskedLM, hf.BertConfig(**_encoder())),
    "roberta": lambda: (hf.RobertaForMaskedLM, hf.RobertaConfig(**_encoder(type_vocab_size=1))),
    "distilbert": lambda: (hf.DistilBertForMaskedLM, hf.DistilBertConfig(
        vocab_size=VOCABULARY, dim=32, n_layers=3, n_heads=4, hidden_dim=48, max_position_embeddings=80)),
    "gpt2": lambda: (hf.GPT2LMHeadModel, hf.GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=3, n_head=4, n_positions=80, bos_token_id=1, eos_token_id=None)),
    "gpt2_scaled": lambda: (hf.GPT2LMHeadModel, hf.GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=3, n_head=4, n_positions=80, bos_token_id=1, eos_token_id=None,
        n_inner=40, activation_function="relu", scale_attn_by_inverse_layer_idx=True, tie_word_embeddings=False)),
    "gpt_neox": lambda: (hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig(**_decoder(rotary_pct=0.5))),
    "gpt_neox_serial": lambda: (hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig(
        **_decoder(rotary_pct=1.0, rotary_emb_base=500, use_parallel_residual=False))),
    "llama2": lambda: (hf.LlamaForCausalLM, hf.LlamaConfig(**_decoder())),
    "llama3": lambda: (hf.LlamaForCausalLM, hf.LlamaConfig(**_decoder(num_key_value_heads=2, rope_parameters=LLAMA3))),
    "llama_linear": lambda: (hf.LlamaForCausalLM, hf.LlamaConfig(**_decoder(
        attention_bias=True, mlp_bias=True, rope_parameters={"rope_type": "linear", "factor": 2.0,
                                                             "rope_theta": 900.0}))),
    "llama_yarn": lambda: (hf.LlamaForCausalLM, hf.LlamaConfig(**_decoder(rope_parameters=YARN))),
    "mistral": lambda: (hf.MistralForCausalLM, hf.MistralConfig(**_decoder(num_key_value_heads=2, sliding_window=9))),
    "qwen2": lambda: (hf.Qwen2ForCausalLM, hf.Qwen2Config(**_decoder(num_key_value_heads=2, tie_word_embeddings=True))),
    "qwen2_window": lambda: (hf.Qwen2ForCausalLM, hf.Qwen2Config(**_decoder(
        num_key_value_heads=1, use_sliding_window=True, sliding_window=7, max_window_layers=1))),
    "qwen3": lambda: (hf.Qwen3ForCausalLM, hf.Qwen3Config(**_decoder(num_key_value_heads=2, head_dim=16))),
    "gemma2": lambda: (hf.Gemma2ForCausalLM, hf.Gemma2Config(**_decoder(
        num_key_value_heads=2, head_dim=12, sliding_window=9, query_pre_attn_scalar=10, attn_logit_softcapping=4.0,
        final_logit_softcapping=3.0, pad_token_id=0))),
    "t5": lambda: (hf.T5ForConditionalGeneration, hf.T5Config(**_t5())),
    "t5_gated": lambda: (hf.T5ForConditionalGeneration, hf.T5Config(
        **_t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False))),
    "bart": lambda: (hf.BartForConditionalGeneration, hf.BartConfig(
        vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4,
        decoder_attention_heads=2, encoder_ffn_dim=48, decoder_ffn_dim=40, max_position_embeddings=80,
        scale_embedding=True, pad_token_id=1, decoder_start_token_id=2, eos_token_id=None, forced_eos_token_id=None)),
}
ENCODERS = ["bert", "roberta", "distilbert"]
ENCODER_DECODERS = ["t5", "t5_gated", "bart"]
DECODERS = [name for name in FAMILIES if name not in ENCODERS + ENCODER_DECODERS]


@contextlib.contextmanager
def all_in_f64():
    """What asks for f32 inside a model, as norms and softmax do, gets f64."""
    names = {name: getattr(torch, name) for name in ("float32", "float")}
    to_float = torch.Tensor.float
    before = torch.get_default_dtype()
    try:
        for name in names:
            setattr(torch, name, torch.float64)
        torch.Tensor.float = torch.Tensor.double
        torch.set_default_dtype(torch.float64)
        yield
    finally:
        for name, dtype in names.items():
            setattr(torch, name, dtype)
        torch.Tensor.float = to_float
        torch.set_default_dtype(before)


def random_model(name):
    """The model, with weights large enough that everything in it matters, in eager attention."""
    torch.manual_seed(5)
    cls, config = FAMILIES[name]()
    config._attn_implementation = "eager"
    model = cls(config).eval()
    for key, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            scale = 0.3 if tensor.ndim > 1 else 0.2
            tensor.add_(torch.randn_like(tensor) * scale)
    if name == "t5_gated":  # as published files of this generation have it
        model.lm_head.weight = torch.nn.Parameter(torch.randn(VOCABULARY, 32))
    return model


def in_f64(model):
    """The same model with every intermediate in f64."""
    with all_in_f64():
        config = type(model.config)(**model.config.to_dict())
        config._attn_implementation = "eager"
        twin = type(model)(config).double().eval()
        if twin.get_output_embeddings() is not None:  # not tied where the original is not
            head = model.get_output_embeddings().weight
            if head is not model.get_input_embeddings().weight:
                twin.get_output_embeddings().weight = torch.nn.Parameter(head.double())
        twin.load_state_dict({key: value.double() for key, value in model.state_dict().items()})
    return twin
