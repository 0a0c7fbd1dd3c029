# SPDX-License-Identifier: Apache-2.0
"""Small random models of every family that generates, as transformers saves them."""

import torch
import transformers

torch.set_num_threads(1)  # more would wait for each other longer than they compute

VOCABULARY = 61
DECODER = dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
               max_position_embeddings=96, bos_token_id=1, eos_token_id=2, pad_token_id=0)
GROUPED = dict(**DECODER, num_key_value_heads=2)
BART = dict(vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=48,
            bos_token_id=1, eos_token_id=2, pad_token_id=0, decoder_start_token_id=2)
T5 = dict(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, eos_token_id=2,
          pad_token_id=0, decoder_start_token_id=0)

CONFIGS = {
    "gpt2": lambda: transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=2, n_head=4,
                                            bos_token_id=1, eos_token_id=2),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**DECODER, rotary_pct=0.5),
    "llama": lambda: transformers.LlamaConfig(**GROUPED),
    "mistral": lambda: transformers.MistralConfig(**GROUPED, sliding_window=16),
    "qwen2": lambda: transformers.Qwen2Config(**GROUPED),
    "qwen3": lambda: transformers.Qwen3Config(**GROUPED, head_dim=16),
    "gemma2": lambda: transformers.Gemma2Config(**GROUPED, head_dim=8, query_pre_attn_scalar=8, sliding_window=16),
    "t5": lambda: transformers.T5Config(**T5),
    "bart": lambda: transformers.BartConfig(**BART, forced_eos_token_id=None),
}
ENCODER_DECODERS = {"t5", "bart"}
NAMES = sorted(CONFIGS)


def make(name, seed=0):
    """A model whose logits are far enough apart that rounding decides nothing."""
    torch.manual_seed(seed)
    config = CONFIGS[name]()
    config._attn_implementation = "eager"
    kind = transformers.AutoModelForSeq2SeqLM if name in ENCODER_DECODERS else transformers.AutoModelForCausalLM
    model = kind.from_config(config).eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            if value.dim() > 1:
                value.normal_(0, 0.5 if "embed" in key or "shared" in key or "wte" in key else 0.25)
    return model


def prompts(count, seed, longest=24):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (count,), generator=generator)
    return [torch.randint(3, VOCABULARY, (int(length),), generator=generator).tolist() for length in lengths]


def generate(model, prompt, tokens, **options):
    """The new tokens of transformers, without what it pads with."""
    with torch.no_grad():
        result = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                                max_new_tokens=tokens, **options)[0].tolist()
    return result[1 if model.config.is_encoder_decoder else len(prompt):]
